"""The files of a slice, below the run directory (docs/architecture.md).

    slices/<slice>/config/limits    what the container may use; mounted as a directory, read-only
    slices/<slice>/region           1 MiB of zeros that the container's processes share
    cards/<UUID>/<slice>            activity of the slice on that card, 4 KiB
    driver-limits                   the report of gpu-limit-hook, where it was run
    devices-denied                  where the agent's container has lost its devices

A slice whose memory NVIDIA's driver limits has a CDI file too, `gpu-slice-<slice>.json`, and in its
directory what gpu-limit-hook leaves: `driver-limit` and `driver-revision`.

They lie in memory of the node that others can fill (a tmpfs). A program that touches mapped memory
for which there is no room is killed, so what a slice uses of its files is allocated here, and a
slice for which there is no room is refused.

If a mount source is missing, for instance after a reboot, a container runtime creates an
empty *directory* in its place; such a directory is replaced by the file.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.disk.file_sizes import FileSizes
from gpu_device_plugin.disk.region import REGION_BYTES, tell_revision, used_parts
from gpu_device_plugin.errors import NoRoomError, StorageError, storage_errors

ACTIVITY_BYTES = 4096
_SHARED_MODE = 0o666  # written by the container, whatever user it runs as
_READ_MODE = 0o644
_DIRECTORY_MODE = 0o755
_BLOCK_BYTES = 4096
_LIMITS_BYTES = 65536  # more than the longest limits have
# Never waiting: root in a container owns its files, and may hold up an open() by a lease for 45 s.
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_Parts = tuple[tuple[int, int], ...]  # offsets and lengths


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """The files of one slice."""

    slice_id: str
    limits: str
    cards: tuple[str, ...]
    cdi: str = ""  # content of its CDI file; empty for none
    is_certain: bool = True  # whether the limits are known; if not, existing ones stay
    revision: int = 0  # of the limits: those that lie there and are newer stay


class SliceFiles:
    """Makes, repairs and removes the files of slices."""

    def __init__(self, run_dir: Path, cdi_dir: Path) -> None:
        self.sizes = FileSizes()
        self._report, self._cdi = run_dir / "driver-limits", cdi_dir
        self._slices = run_dir / "slices"
        self._cards = run_dir / "cards"
        # Strings: every check of the node uses five of these files of every slice.
        self._slices_text, self._cards_text = str(self._slices), str(self._cards)

    def make(self, spec: SliceSpec) -> bool:
        """Make a slice's missing files and update its limits; returns whether anything changed.

        Content that containers already share (region, activity) is never changed. NoRoomError: the
        file system is full, also after cutting back what containers enlarged.
        """
        try:
            return self._make_with_room(spec)
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            kind = NoRoomError if is_full else StorageError
            raise kind(
                f"{error.filename or self._slices}: the files of slice {spec.slice_id} "
                f"cannot be made: {error.strerror}"
            ) from error

    def _make_with_room(self, spec: SliceSpec) -> bool:
        try:
            return self._make(spec)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.sizes.cut_back():
                raise
        return self._make(spec)

    def _make(self, spec: SliceSpec) -> bool:
        directory = f"{self._slices_text}/{spec.slice_id}"
        _make_directory(f"{directory}/config")
        failpoint("slices.before-limits")
        changed = False
        if spec.cdi:  # before the limits: who has set those may start a container by it
            self._cdi.mkdir(parents=True, exist_ok=True)
            changed = _write_text(self._cdi_path(spec.slice_id), spec.cdi.encode())
        limits, text = f"{directory}/config/limits", spec.limits.encode()
        is_due = not _has_text(limits, text) and (spec.is_certain or not _is_file(limits))
        if is_due and self.revision(spec.slice_id) <= spec.revision:
            changed |= _write_text(limits, text)
        parts = used_parts(len(spec.cards))
        region = (f"{directory}/region", REGION_BYTES, parts)
        changed |= self._share(spec.slice_id, "region file", *region)
        for uuid in spec.cards:
            card = f"{self._cards_text}/{uuid}"
            _make_directory(card)
            activity = (f"{card}/{spec.slice_id}", ACTIVITY_BYTES, ((0, ACTIVITY_BYTES),))
            changed |= self._share(spec.slice_id, f"activity file of card {uuid}", *activity)
        failpoint("slices.after-files")
        return changed

    def _share(self, slice_id: str, name: str, path: str, size: int, parts: _Parts) -> bool:
        is_new = _make_zeros(path, size, parts)
        self.sizes.keep(slice_id, path, name, size, is_new=is_new)
        return is_new

    def _cdi_path(self, slice_id: str) -> str:
        return f"{self._cdi}/gpu-slice-{slice_id}.json"

    def cdi_text(self, slice_id: str) -> str:
        """The slice's own CDI file, by which the driver limits its memory; "" where it has none."""
        try:
            return Path(self._cdi_path(slice_id)).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def driver_report(self) -> str:
        """What gpu-limit-hook has found of the driver's memory limits, in its words, or ""."""
        try:
            return self._report.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def is_hook_unseen(self) -> bool:
        """Whether the newest mark of gpu-limit-hook is of a repair: the runtime had not run the hook."""
        newest, is_repair = 0.0, False
        for path in self._slices.glob("*/driver-limit"):
            with contextlib.suppress(OSError):
                if (at := path.stat().st_mtime) >= newest:
                    newest, is_repair = at, "by=repair" in path.read_text(errors="replace")
        return is_repair

    def driver_revision(self, slice_id: str) -> int:
        """That of the resized limits which the driver holds, as gpu-limit-hook has left it; 0 for none."""
        with contextlib.suppress(OSError, ValueError):
            return int((self._slices / slice_id / "driver-revision").read_text(encoding="ascii"))
        return 0

    def region(self, slice_id: str) -> str:
        """Path of a slice's region, whether it exists or not."""
        return f"{self._slices_text}/{slice_id}/region"

    def tell(self, slice_id: str, revision: int) -> bool:
        """Tell processes that run of the slice's limits; see `tell_revision`."""
        return tell_revision(self.region(slice_id), revision)

    def revision(self, slice_id: str) -> int:
        """That of the limits which lie there; 0 where they have none or cannot be read."""
        with contextlib.suppress(OSError):
            text = _content(f"{self._slices_text}/{slice_id}/config/limits", _LIMITS_BYTES)
            found = re.search(rb"^revision=([0-9]{1,9})$", text or b"", re.MULTILINE)
            return int(found[1]) if found else 0
        return 0

    def remove(self, slice_id: str) -> None:
        """Remove all files of a slice; missing ones are no error."""
        failpoint("reconcile.before-files")
        with storage_errors("removed"):
            _discard(self._slices / slice_id)
            _discard(Path(self._cdi_path(slice_id)))
            for card in _directories(self._cards):
                _discard(card / slice_id)
            self.sizes.forget(slice_id)

    def present(self) -> frozenset[str]:
        with storage_errors("listed"):
            found = {entry.name for entry in _directories(self._slices)}
            for card in _directories(self._cards):
                with os.scandir(card) as entries:
                    found.update(entry.name for entry in entries)
            return frozenset(found)


def _make_directory(path: str) -> None:
    found = _look(path)
    # Any user of the container must be able to read what is mounted from here.
    if found is None or found.st_mode != stat.S_IFDIR | _DIRECTORY_MODE:
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(_DIRECTORY_MODE)


def _has_text(path: str, text: bytes) -> bool:
    found = _look(path)
    is_as_long = found is not None and stat.S_ISREG(found.st_mode) and found.st_size == len(text)
    return is_as_long and _content(path, len(text)) == text


def _write_text(path: str, text: bytes) -> bool:
    if _has_text(path, text):
        return False
    found = _look(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        shutil.rmtree(path)
    _put(path, text, len(text), ((0, len(text)),), _READ_MODE)
    return True


def _make_zeros(path: str, size: int, parts: _Parts) -> bool:
    found = _look(path)
    if found is not None and stat.S_ISREG(found.st_mode):
        is_short = found.st_size < size
        # The same file: a container could grow one that has lost its name, and nobody would see it.
        if is_short or found.st_blocks * 512 < _backed_bytes(parts):
            descriptor = os.open(path, os.O_WRONLY | _SAFELY)
            try:
                if is_short:
                    os.ftruncate(descriptor, size)
                _back(path, descriptor, parts)
            finally:
                os.close(descriptor)
        return is_short
    if found is not None and stat.S_ISDIR(found.st_mode):
        shutil.rmtree(path)
    _put(path, b"", size, parts, _SHARED_MODE)
    return True


def _put(path: str, content: bytes, size: int, parts: _Parts, mode: int) -> None:
    """A file of `content` and zeros up to `size`; it is there whole, with room for `parts`, or not at all."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFELY, 0o600)
    try:
        _back(path, descriptor, parts)
        os.write(descriptor, content)
        os.ftruncate(descriptor, size)
        os.fchmod(descriptor, mode)
        Path(temporary).rename(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _back(path: str, descriptor: int, parts: _Parts) -> None:
    """Allocate the blocks of `parts`; what lies in them stays."""
    try:
        for offset, length in parts:
            os.posix_fallocate(descriptor, offset, length)
    except OSError as error:  # which does not name its file
        raise OSError(error.errno, error.strerror, path) from error


@cache
def _backed_bytes(parts: _Parts) -> int:
    """Size of the blocks of `parts`; two may share one."""
    blocks = {
        block
        for offset, length in parts
        for block in range(offset // _BLOCK_BYTES, -(-(offset + length) // _BLOCK_BYTES))
    }
    return len(blocks) * _BLOCK_BYTES


def _content(path: str, size: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | _SAFELY)
    except BlockingIOError:  # leased: another file takes its place
        return None
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _look(path: str) -> os.stat_result | None:
    """What is at `path`; one call, since every look at the node asks this of every file."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _is_file(path: str) -> bool:
    found = _look(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def _directories(path: Path) -> list[Path]:
    """Directories in `path`; what somebody else put beside them is left alone."""
    if not path.is_dir():
        return []
    with os.scandir(path) as entries:  # asks nothing more of each
        return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):  # a read-only file system refuses to remove even what is not there
        path.unlink(missing_ok=True)
