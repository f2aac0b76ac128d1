"""Files that survive a crash, and say so when they did not.

A sealed file is one header line, a payload, and zeros up to a whole block. The header holds
kind, format version, length, CRC-32 and the boot id of the node when it was written, so a
truncated, altered or foreign file is always recognised (performance.md 4.3), and a reboot is
seen as one.
"""

import contextlib
import ctypes
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.errors import StateError, StorageError
from gpu_device_plugin.store.failpoints import failpoint

_MAGIC = "gpu-device-plugin"
_HEADER_FIELDS = 6
_BLOCK_BYTES = 4096
_LIBC = ctypes.CDLL(None)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a sealed file held.

    Attributes:
        payload: The bytes that were sealed.
        boot_id: The node's boot id when they were.
    """

    payload: bytes
    boot_id: str


def write_durably(path: Path, content: Iterable[bytes]) -> None:
    """Put `content` at `path`; on return it is on the disk, or an error says that it is not.

    The old file stays whole until the new one is: second file, fsync, swap of the two names,
    fsync of the directory. The second file stays, for the next write: where content fits into
    blocks that are there already, the first fsync has no metadata to write, which makes the
    whole a third cheaper than with a fresh file each time.

    Raises:
        StorageError: The file system refused; the old content is untouched.
    """
    second = path.with_name(path.name + ".new")
    failpoint("durable.before-write")
    try:
        descriptor = os.open(second, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = _write_all(descriptor, b"".join(content))
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            failpoint("durable.before-fsync")
            os.fdatasync(descriptor)  # with what is needed to read the data back, as its size
        finally:
            os.close(descriptor)
        failpoint("durable.before-rename")
        if not _swapped(second, path):
            second.rename(path)
        failpoint("durable.after-rename")
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            second.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error


def check_room(path: Path, size: int) -> None:
    """Put a file of `size` bytes there, on the disk, and take it away again.

    Raises:
        StorageError: The file system refused.
    """
    try:
        with path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), bytes(size))
            os.fdatasync(file.fileno())
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def seal(kind: str, version: int, boot_id: str, payload: Iterable[bytes]) -> list[bytes]:
    """Header and payload of a sealed file, ready for `write_durably`."""
    parts = list(payload)
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    length = sum(map(len, parts))
    header = f"{_MAGIC} {kind} {version} {length} {crc:08x} {boot_id or '-'}\n".encode()
    # Whole blocks: from one write to the next the size seldom changes.
    return [header, *parts, _padding(len(header) + length)]


def read_sealed(path: Path, kind: str, version: int) -> Sealed | None:
    """The content of a sealed file, or None where there is none.

    Raises:
        StateError: It is truncated, altered, of another kind or of another format version.
        StorageError: The file system refused.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise StateError(f"{path}: is a directory, not a file of ours") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    header, newline, rest = content.partition(b"\n")
    fields = header.decode("utf-8", "replace").split(" ")
    if not newline or len(fields) != _HEADER_FIELDS or fields[0] != _MAGIC:
        raise StateError(f"{path}: not a file of ours, or its first line is damaged")
    if fields[1] != kind or fields[2] != str(version):
        raise StateError(f"{path}: is {fields[1]} format {fields[2]}, wanted {kind} {version}")
    length = int(fields[3]) if fields[3].isdecimal() else -1
    payload, padding = rest[:length], rest[length:]
    if length < 0 or padding != _padding(len(header) + 1 + length):
        raise StateError(f"{path}: {len(rest)} bytes of content, its header says {fields[3]}")
    if fields[4] != f"{zlib.crc32(payload):08x}":
        raise StateError(f"{path}: the content does not match its checksum {fields[4]}")
    return Sealed(payload, "" if fields[5] == "-" else fields[5])


def set_aside(path: Path, now_seconds: float) -> Path:
    """Move a file that cannot be trusted out of the way, keeping it for a person to look at."""
    aside = path.with_name(f"{path.name}.bad-{int(now_seconds)}")
    attempt = 0
    while aside.exists():
        attempt += 1
        aside = path.with_name(f"{path.name}.bad-{int(now_seconds)}-{attempt}")
    try:
        path.rename(aside)
    except OSError as error:
        raise StorageError(f"{path}: cannot be set aside: {error.strerror}") from error
    return aside


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK_BYTES)


def _write_all(descriptor: int, content: bytes) -> int:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(content)


def _swapped(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where one is missing, or nobody here can do that."""
    renameat2 = getattr(_LIBC, "renameat2", None)
    if renameat2 is None:
        return False
    names = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    return bool(renameat2(*names, _RENAME_EXCHANGE) == 0)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
