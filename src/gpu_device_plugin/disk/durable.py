"""Files that survive a crash, and whose damage is recognised if they did not.

A value is kept in two files that take turns: `<name>` and `<name>.other`. A write overwrites the
older of the two, with one flush and no rename, and is complete when that flush is; until then the
newer one is untouched (docs/adr/0010). Each file is one header line, a payload, and zeros up to a
whole block. The header has kind, format version, length, CRC-32 of the rest and of the header
itself, the node's boot id, and the number of the write. So a truncated, altered or foreign file is
always recognised, a reboot is noticed, and it is known which of two whole files is newer.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.errors import StateError, StorageError, storage_errors

_MAGIC = "gpu-device-plugin"
_HEADER_FIELDS = 7
_BLOCK_BYTES = 4096


def fdatasync(descriptor: int) -> None:
    """Flush a descriptor's data to the disk, with the metadata needed to read it, as its size."""
    os.fdatasync(descriptor)


@dataclass(frozen=True, slots=True)
class Sealed:
    """The content of a sealed file, the boot id of its write, and the write's number, from 1."""

    payload: bytes
    boot_id: str
    number: int


@dataclass(frozen=True, slots=True)
class StoredContent:
    """What is found at the start."""

    sealed: Sealed | None  # the last write that is whole, or None
    bad: str = ""  # why one of the two files, or both, are damaged; "" if neither is
    aside: Path | None = None  # where such a file was put, or None


class SealedFile:
    """One value on disk, `path`; only one process may write it."""

    def __init__(
        self, path: Path, kind: str, version: int, flush: Callable[[int], None] = fdatasync
    ) -> None:
        self._kind = kind
        self._version = version
        self._flush = flush
        self._pair = (path, path.with_name(path.name + ".other"))
        self._newest: Path | None = None
        self._number = 0  # of the last write

    def read(self) -> Sealed | None:
        """The last whole write, None if there was none; StateError if both files are damaged."""
        found, bad = self._look()
        if not found and bad:
            raise StateError("; ".join(bad.values()))
        return found[self._remember(found)] if found else None

    def load(self, now_seconds: float) -> StoredContent:
        """The same for the writer, at its start: damaged files are set aside.

        The result is flushed to the disk, even if the process that wrote it died before that.
        """
        found, bad = self._look()
        aside = self.set_aside(now_seconds, bad)
        sealed = found[self._remember(found)] if found else None
        if self._newest is not None:
            _flush(self._newest)
            sync_directory(self._newest.parent)
        return StoredContent(sealed, "; ".join(bad.values()), aside)

    def set_aside(self, now_seconds: float, paths: Iterable[Path] | None = None) -> Path | None:
        """Move damaged files (None: both) away, for a person to inspect; returns where, or None."""
        aside = None
        for path in self._pair if paths is None else paths:
            if path.exists():
                aside = self._fresh_name(now_seconds)
                with storage_errors("set aside", path):
                    path.rename(aside)
        return aside

    def _fresh_name(self, now_seconds: float) -> Path:
        name = f"{self._pair[0].name}.bad-{int(now_seconds)}"
        endings = chain([""], (f"-{number}" for number in count(1)))
        asides = (self._pair[0].with_name(name + end) for end in endings)
        return next(path for path in asides if not path.exists())

    def is_there(self) -> bool:
        return self._newest is not None and self._newest.exists()

    def write(self, payload: Iterable[bytes], boot_id: str) -> None:
        """Write `payload`: durable on return. After a StorageError the write before is untouched."""
        path = self._pair[1] if self._newest == self._pair[0] else self._pair[0]
        content = self._seal(b"".join(payload), boot_id)
        failpoint("durable.before-write")
        try:
            is_new = _overwrite(path, content, self._flush)
            if is_new:
                sync_directory(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
        failpoint("durable.after-fsync")
        self._newest, self._number = path, self._number + 1

    def _look(self) -> tuple[dict[Path, Sealed], dict[Path, str]]:
        """Those of the two files that are whole, and why others are not."""
        found, bad = {}, {}
        for path in self._pair:
            try:
                sealed = _read(path, self._kind, self._version)
            except StateError as error:
                bad[path] = str(error)
            else:
                if sealed is not None:
                    found[path] = sealed
        return found, bad

    def _remember(self, found: dict[Path, Sealed]) -> Path:
        self._newest = max(found, key=lambda path: found[path].number)
        self._number = found[self._newest].number
        return self._newest

    def _seal(self, payload: bytes, boot_id: str) -> bytes:
        said = f"{self._kind} {self._version} {len(payload)} {boot_id or '-'} {self._number + 1}"
        crc = zlib.crc32(payload, zlib.crc32(said.encode()))
        header = f"{_MAGIC} {said} {crc:08x}\n".encode()
        # Whole blocks, so that the size seldom changes between writes.
        return header + payload + _padding(len(header) + len(payload))


def check_room(path: Path, size: int) -> None:
    """Write a file of `size` bytes there, flush it, and remove it again."""
    try:
        with storage_errors("written", path), path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), bytes(size))
            os.fdatasync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _read(path: Path, kind: str, version: int) -> Sealed | None:
    """The content of one sealed file, None where there is none.

    StateError: it is truncated, altered, of another kind or of another format version.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise StateError(f"{path}: is a directory, not a state file") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    header, newline, rest = content.partition(b"\n")
    fields = header.decode("utf-8", "replace").split(" ")
    if not newline or len(fields) != _HEADER_FIELDS or fields[0] != _MAGIC:
        raise StateError(f"{path}: not a state file, or its first line is damaged")
    if fields[1] != kind or fields[2] != str(version):
        raise StateError(f"{path}: is {fields[1]} format {fields[2]}, wanted {kind} {version}")
    length = int(fields[3]) if fields[3].isdecimal() else -1
    payload, padding = rest[:length], rest[length:]
    if length < 0 or padding != _padding(len(header) + 1 + length):
        raise StateError(f"{path}: {len(rest)} bytes of content, its header says {fields[3]}")
    said = " ".join(fields[1:-1]).encode()
    if fields[6] != f"{zlib.crc32(payload, zlib.crc32(said)):08x}":
        raise StateError(f"{path}: the content does not match its checksum {fields[6]}")
    return Sealed(payload, "" if fields[4] == "-" else fields[4], int(fields[5]))


def _overwrite(path: Path, content: bytes, flush: Callable[[int], None]) -> bool:
    """Replace the file's content and flush it; returns whether the file is new.

    If the content fits into the existing blocks, the flush has no metadata to write.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size_before = os.fstat(descriptor).st_size
        _write_all(descriptor, content)
        if size_before > len(content):
            os.ftruncate(descriptor, len(content))
        failpoint("durable.before-fsync")
        flush(descriptor)
    finally:
        os.close(descriptor)
    return size_before == 0


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK_BYTES)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make what was created or renamed in it durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
