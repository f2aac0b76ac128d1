"""The files that a slice is made of, below the run directory (design.md 6).

    slices/<slice>/config/limits    what the container may use; mounted as a directory, read-only
    slices/<slice>/region           1 MiB of zeros that the container's processes share
    cards/<UUID>/<slice>            activity of the slice on that card, 4 KiB

A container runtime makes an empty *directory* of a mount source that is missing, for
instance after a reboot; such a directory in a file's place is replaced.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.errors import StorageError
from gpu_device_plugin.store.failpoints import failpoint

REGION_BYTES = 1 << 20
ACTIVITY_BYTES = 4096
_SHARED_MODE = 0o666  # written by the container, whatever user it runs as
_READ_MODE = 0o644
_DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """What must lie on the node for one slice.

    Attributes:
        slice_id: The slice.
        limits: Text of its limits file.
        cards: UUIDs of its cards.
    """

    slice_id: str
    limits: str
    cards: tuple[str, ...]


class SliceFiles:
    """Makes, repairs and removes the files of slices."""

    def __init__(self, run_dir: Path) -> None:
        self._slices = run_dir / "slices"
        self._cards = run_dir / "cards"

    def make(self, spec: SliceSpec) -> bool:
        """Make what is missing of a slice and bring its limits up to date.

        Content that containers already share (region, activity) is never touched.

        Returns:
            Whether anything had to be made or changed.

        Raises:
            StorageError: The file system refused.
        """
        try:
            return self._make(spec)
        except OSError as error:
            raise StorageError(
                f"{error.filename or self._slices}: the files of slice {spec.slice_id} "
                f"cannot be made: {error.strerror}"
            ) from error

    def _make(self, spec: SliceSpec) -> bool:
        directory = self._slices / spec.slice_id
        config = directory / "config"
        _make_directory(config)
        failpoint("slices.before-limits")
        changed = _write_text(config / "limits", spec.limits)
        changed |= _make_zeros(directory / "region", REGION_BYTES)
        for uuid in spec.cards:
            card = self._cards / uuid
            _make_directory(card)
            changed |= _make_zeros(card / spec.slice_id, ACTIVITY_BYTES)
        failpoint("slices.after-files")
        return changed

    def region(self, slice_id: str) -> Path:
        """The region of a slice, whether it is there or not."""
        return self._slices.joinpath(slice_id, "region")

    def remove(self, slice_id: str) -> None:
        """Remove all files of a slice; files that are gone already are no error.

        Raises:
            StorageError: The file system refused.
        """
        failpoint("reconcile.before-files")
        try:
            _discard(self._slices / slice_id)
            for card in _directories(self._cards):
                _discard(card / slice_id)
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be removed: {error.strerror}") from error

    def present(self) -> frozenset[str]:
        """Slices that have files on this node, whoever made them.

        Raises:
            StorageError: The file system refused.
        """
        try:
            found = {entry.name for entry in _directories(self._slices)}
            for card in _directories(self._cards):
                found |= {entry.name for entry in card.iterdir()}
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be listed: {error.strerror}") from error
        return frozenset(found)

    def cut_back(self, slice_ids: Iterable[str]) -> dict[str, int]:
        """Cut region files that a container has grown back to size.

        Returns:
            The slices that were cut, with the size found, in bytes.
        """
        grown: dict[str, int] = {}
        for slice_id in slice_ids:
            region = self.region(slice_id)
            with contextlib.suppress(OSError):
                size = region.stat().st_size
                if size > REGION_BYTES:
                    os.truncate(region, REGION_BYTES)
                    grown[slice_id] = size
        return grown


def _make_directory(path: Path) -> None:
    found = _look(path)
    # The container's user, whoever it is, must be able to read what is mounted from here.
    if found is None or found.st_mode != stat.S_IFDIR | _DIRECTORY_MODE:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_DIRECTORY_MODE)


def _write_text(path: Path, text: str) -> bool:
    found = _look(path)
    if found is not None and stat.S_ISREG(found.st_mode):
        if found.st_size == len(text) and path.read_bytes() == text.encode():
            return False
    elif found is not None and stat.S_ISDIR(found.st_mode):
        shutil.rmtree(path)
    temporary = path.with_name(".limits.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(_READ_MODE)
    temporary.rename(path)
    return True


def _make_zeros(path: Path, size: int) -> bool:
    found = _look(path)
    if found is not None and stat.S_ISREG(found.st_mode) and found.st_size >= size:
        return False
    if found is not None and stat.S_ISDIR(found.st_mode):
        shutil.rmtree(path)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.truncate(size)
    temporary.chmod(_SHARED_MODE)
    temporary.rename(path)
    return True


def _look(path: Path) -> os.stat_result | None:
    """What is at `path`; one call, since every look at the node asks this of every file."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _directories(path: Path) -> list[Path]:
    """Directories in `path`; what somebody else put beside them is left alone."""
    if not path.is_dir():
        return []
    return [entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink()]


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
