"""The isolation library on the node: `<library dir>/<version>/` with all that is mounted from it.

    libgpuslice.so    preloaded into every process of a capped container
    ld.so.preload     one line that says so, mounted as /etc/ld.so.preload
    gpu-limit-hook    sets the driver's memory limit before a container starts (newer versions)
    gpu-selftest      says in the container whether the cap is effective (newer versions)

The agent's package contains the library. The name of a version contains a digest of its content,
so two builds never share one, and files that containers have mapped are never written to. A version
stays until the last pod whose grant names it is gone: the kubelet keeps an Allocate answer for the
life of the pod, and a missing preload file would mean a container without a cap.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.disk.durable import sync_directory
from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.grants.cdi_spec import HOOK
from gpu_device_plugin.errors import StorageError, storage_errors

LIBRARY = "libgpuslice.so"
PRELOAD = "ld.so.preload"
SELFTEST = "gpu-selftest"
_NEEDED = (LIBRARY, PRELOAD)
_FILES = (PRELOAD, LIBRARY, SELFTEST, HOOK)
_VERSION = re.compile(r"\w[\w.+!]*-[0-9a-f]{12}")
_UNFINISHED = re.compile(rf"\.{_VERSION.pattern}\.new")
_DIGEST_LETTERS = 12
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Package:
    """A version of the library, ready to be installed: name of its directory, and files by name."""

    version: str
    files: Mapping[str, bytes]


def package(version: str, library: Path, programs: Iterable[Path], target: str) -> Package:
    """The version that consists of these files; `target` is the library's path in a container."""
    with storage_errors("read"):
        files = {LIBRARY: library.read_bytes(), PRELOAD: f"{target}\n".encode()}
        files |= {program.name: program.read_bytes() for program in programs}
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return Package(f"{version}-{digest.hexdigest()[:_DIGEST_LETTERS]}", files)


class LibraryVersions:
    """The versions below one directory; `bundled`: this agent's package, or None."""

    def __init__(self, directory: Path, bundled: Package | None) -> None:
        self._directory = directory
        self._directory_text = str(directory)  # used at every Allocate and every check
        self._bundled = bundled
        self._open_files = _OpenFiles()

    def install(self) -> bool:
        """Install this agent's version, or repair it; returns whether anything was written."""
        self._keep_open()  # before one that a container has leased is replaced
        return self._bundled is not None and self._fill(self._bundled.version, self._bundled.files)

    def current(self) -> str:
        """The version that new containers get: that of this agent, else the newest complete one, else ""."""
        if self._bundled is not None:
            return self._bundled.version if self.is_complete(self._bundled.version) else ""
        complete = [name for name in self._names() if self.is_complete(name)]
        return max(complete, key=_order, default="")

    def is_complete(self, version: str) -> bool:
        """Whether all that containers of that version need is there, as files."""
        directory = f"{self._directory_text}/{version}"
        if self._bundled is not None and version == self._bundled.version:
            sizes = self._bundled.files.items()
            return all(_size(f"{directory}/{name}") == len(text) for name, text in sizes)
        return all(_size(f"{directory}/{name}") is not None for name in _NEEDED)

    def whole(self) -> Mapping[str, bool]:
        self._keep_open()
        return {
            name: _size(f"{self._directory_text}/{name}/{SELFTEST}") is not None
            for name in self._names()
            if self.is_complete(name)
        }

    def has_text(self, version: str, text: bytes) -> bool:
        """Whether a version's library contains a text; StorageError: it cannot be read."""
        with storage_errors("read"):
            return text in (self._directory / version / LIBRARY).read_bytes()

    def provide(self, version: str) -> bool:
        """Complete a version that a grant names; returns False if nothing was missing.

        If the files of another agent's version are lost, its content is lost too. This agent's replaces
        it: the layouts of limits and region do not change, and containers that mount the old name
        must not start without a library.
        """
        if self.is_complete(version):
            return False
        if self._bundled is None:
            raise StorageError(
                f"{self._directory / version}: version {version} of the isolation library is "
                f"missing or incomplete, and this agent was built without one"
            )
        return self._fill(version, self._bundled.files)

    def remove_unused(self, used: Collection[str], *, is_leaving: bool = False) -> tuple[str, ...]:
        """Remove unused versions that an agent installed; returns their names. Others are left alone.

        `is_leaving`: no new container will come, so this agent's own, unused, is removed too.
        """
        own = self._bundled.version if self._bundled else self.current()
        kept = {*used} if is_leaving else {*used, own}
        removed = []
        for name in self._names():
            if _UNFINISHED.fullmatch(name):
                shutil.rmtree(self._directory / name, ignore_errors=True)
            if name in kept or not _VERSION.fullmatch(name):
                continue
            failpoint("library.before-remove")
            # The preload file first: without it half a version does not look complete.
            for file in _FILES:
                with contextlib.suppress(OSError):
                    (self._directory / name / file).unlink()
            with contextlib.suppress(OSError):
                (self._directory / name).rmdir()
                removed.append(name)
        return tuple(removed)

    def _keep_open(self) -> None:
        files = (f"{self._directory_text}/{n}/{file}" for n in self._names() for file in _FILES)
        self._open_files.keep({path for path in files if _size(path) is not None})

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in self._directory.iterdir() if entry.is_dir()]
        except OSError:
            return []

    def _fill(self, version: str, files: Mapping[str, bytes]) -> bool:
        directory = self._directory / version
        try:
            amiss = [name for name in files if not _holds(directory / name, files[name])]
            if not amiss:
                return False
            self._directory.mkdir(parents=True, exist_ok=True)
            if not directory.is_dir():
                self._make_new(directory, files)
            else:
                # Containers may have files of it mounted, so the directory cannot be replaced.
                for name in amiss:
                    _replace(directory / name, files[name])
                sync_directory(directory)
        except OSError as error:
            raise StorageError(
                f"{error.filename or directory}: version {version} of the isolation library "
                f"cannot be installed: {error.strerror}"
            ) from error
        return True

    def _make_new(self, directory: Path, files: Mapping[str, bytes]) -> None:
        fresh = directory.with_name(f".{directory.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        fresh.chmod(0o755)
        for name, content in files.items():
            _write(fresh / name, content, _mode(name))
        sync_directory(fresh)
        failpoint("library.before-rename")
        directory.unlink(missing_ok=True)  # not a directory: a file or a dangling link
        fresh.rename(directory)
        sync_directory(directory.parent)


def _holds(path: Path, content: bytes) -> bool:
    if _size(path) != len(content):
        return False
    try:
        # Never waiting for a lease (`_OpenFiles`).
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read() == content
    except BlockingIOError:  # a container has leased it: another file takes its place
        return False


def _size(path: str | Path) -> int | None:
    """Size of a file, in one call; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - at every Allocate and every check; a Path costs more
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    _write(fresh, content, _mode(path.name))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # made by a container runtime for a missing mount source
    fresh.rename(path)


def _mode(name: str) -> int:
    return 0o644 if name == PRELOAD else 0o755


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write and flush a file, because containers may start before the agent does."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        path.chmod(mode)


def _order(name: str) -> tuple[tuple[int, str], ...]:
    """Versions in numeric order: 0.10.0 after 0.9.1."""
    return tuple(
        (int(part), "") if part.isdigit() else (-1, part)
        for part in name.replace("-", ".").split(".")
    )


class _OpenFiles:
    """Files that containers have mounted read-only, kept open so that no container can lease them.

    Root in a container owns what the agent has made, where no user namespace stands between, and the
    owner of a file may take a lease on it (fcntl(2) F_SETLEASE), also through a read-only mount. Then
    everybody else's open() of it waits, for fs.lease-break-time (45 s) each: at every exec that reads
    /etc/ld.so.preload, in the containers of others. The kernel gives no such lease on a file that
    another process has open. The other kind of lease holds up writers only, and these files have none.
    """

    def __init__(self) -> None:
        # A file that was replaced may still be mounted, so it stays open with the one at its path.
        self._kept: dict[str, dict[tuple[int, int], int]] = {}

    def keep(self, paths: Collection[str]) -> None:
        """From now on the files at exactly these paths, and those that were there, are open.

        One that is leased already is opened by a thread of its own, which waits once: it counts as
        open while it waits, so that the lease is the last.
        """
        for path in self._kept.keys() - paths:
            for descriptor in self._kept.pop(path).values():
                if descriptor >= 0:
                    os.close(descriptor)
        for path in paths:
            with contextlib.suppress(OSError):
                self._open(path)

    def _open(self, path: str) -> None:
        found = os.lstat(path)
        kept, key = self._kept.setdefault(path, {}), (found.st_dev, found.st_ino)
        if key in kept:
            return
        place = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            kept[key] = os.open(f"/proc/self/fd/{place}", _READ_ONLY | os.O_NONBLOCK)
        except BlockingIOError:
            kept[key] = -1
            wait = (place, kept, key)
            threading.Thread(target=_open_leased, args=wait, name="lease", daemon=True).start()
        else:
            os.close(place)


def _open_leased(place: int, kept: dict[tuple[int, int], int], key: tuple[int, int]) -> None:
    try:
        kept[key] = os.open(f"/proc/self/fd/{place}", _READ_ONLY)
    except OSError:
        kept.pop(key, None)
    finally:
        os.close(place)
