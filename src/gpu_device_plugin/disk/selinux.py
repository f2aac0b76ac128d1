"""SELinux labels of our directories: where it enforces, containers read `container_file_t` only.

New files take the type of the directory that they are made in, so once all that is there carries
the type, what comes later does. Their level comes from the process that makes them: with categories
in it, which a runtime gives each pod that names no level, no other pod may read them. A kernel that does not enforce, or knows no SELinux, needs nothing.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.errors import StorageError

TYPE = "container_file_t"
_ATTRIBUTE = "security.selinux"
_FIELDS = 4  # user:role:type:level
_LEVEL = "s0"  # no categories: for every container


def read_label(path: Path) -> str:
    """The label of a file; empty where its file system has none."""
    try:
        return os.getxattr(path, _ATTRIBUTE, follow_symlinks=False).decode().rstrip("\0")
    except OSError:
        return ""


def write_label(path: Path, label: str) -> None:
    """Give a file a label; OSError where policy or file system refuse."""
    os.setxattr(path, _ATTRIBUTE, label.encode(), follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class SelinuxKernel:
    """Where the kernel tells of SELinux, and how labels are read and written."""

    enforce: Path = Path("/sys/fs/selinux/enforce")  # often hidden from containers
    own_context: Path = Path("/proc/self/attr/current")  # tells where `enforce` is hidden
    read: Callable[[Path], str] = read_label
    write: Callable[[Path, str], None] = write_label

    @property
    def may_enforce(self) -> bool:
        """Whether labels decide; where only our own context is seen, it is taken to be so."""
        try:
            return self.enforce.read_text(encoding="ascii").strip() == "1"
        except OSError:
            return _is_context(_text(self.own_context))

    @property
    def own_categories(self) -> str:
        """Categories of this process, which every file that it makes gets; empty where none."""
        return _categories(_text(self.own_context))


class SecurityLabels:
    """Sees to the labels of these directories."""

    def __init__(self, directories: Sequence[Path], kernel: SelinuxKernel) -> None:
        self._directories = directories
        self._kernel = kernel
        self._is_needed = kernel.may_enforce

    def ensure(self) -> None:
        """Give what lies there a label that every container may read, where it has another."""
        if not self._is_needed:
            return
        if categories := self._kernel.own_categories:
            raise StorageError(
                f"SELinux enforces on this node, and the agent runs with the categories {categories}: "
                f"only containers with the same may read what it makes. Give it the level {_LEVEL}: "
                f"seLinuxOptions.level={_LEVEL} beside seLinuxOptions.type"
            )
        for directory in self._directories:
            # What is in a directory of the right type was made there, or labelled with it.
            if directory.is_dir() and not _is_readable(self._kernel.read(directory)):
                self._label((*_walk(directory), directory))

    def _label(self, paths: Iterable[Path]) -> None:
        for path in paths:
            label = self._kernel.read(path)
            try:
                if not _is_readable(label):
                    self._kernel.write(path, _readable(label))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(
                    f"SELinux enforces on this node, and {path} has the label {label or 'none'}: "
                    f"containers may not read it, and it cannot be given the type {TYPE} "
                    f"and the level {_LEVEL} ({error.strerror}). On the node, as root: "
                    f"{relabel(*self._directories)}"
                ) from error


def relabel(*directories: Path) -> str:
    """The command that gives directories, and all in them, what containers may read."""
    return f"chcon -R -t {TYPE} -l {_LEVEL} {' '.join(map(str, directories))}"


def _walk(directory: Path) -> Iterator[Path]:
    """Everything in it, deepest first, so that one that breaks off is begun again."""
    for parent, directories, files in os.walk(directory, topdown=False):
        yield from (Path(parent, name) for name in (*files, *directories))


def _is_context(text: str) -> bool:
    """Whether it is `user:role:type` or more: AppArmor's profiles are not."""
    return len(text.split(":")) >= _FIELDS - 1


def _categories(label: str) -> str:
    """Those of its level, of the lower one of a range: `s0:c1,c2` has some, `s0-s0:c1` none."""
    level = ":".join(label.split(":")[3:])
    return level.partition("-")[0].partition(":")[2] if _is_context(label) else ""


def _is_readable(label: str) -> bool:
    is_of_type = _is_context(label) and label.split(":")[2] == TYPE
    return is_of_type and not _categories(label)


def _readable(label: str) -> str:
    if not _is_context(label):
        return f"system_u:object_r:{TYPE}:{_LEVEL}"
    user, role, _, *level = label.split(":")
    return ":".join((user, role, TYPE, *([_LEVEL] if level else ())))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\0\n")
    except OSError:
        return ""
