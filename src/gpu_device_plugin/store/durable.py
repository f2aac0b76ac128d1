"""Files that survive a crash, and say so when they did not.

A sealed file is one header line and a payload. The header holds kind, format version,
length, CRC-32 and the boot id of the node when it was written, so a truncated, altered or
foreign file is always recognised (performance.md 4.3), and a reboot is seen as one.
"""

import contextlib
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.errors import StateError, StorageError
from gpu_device_plugin.store.failpoints import failpoint

_MAGIC = "gpu-device-plugin"
_HEADER_FIELDS = 6


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

    The old file stays whole until the new one is: temporary file, fsync, rename, fsync of the
    directory.

    Raises:
        StorageError: The file system refused; the old content is untouched.
    """
    temporary = path.with_name(path.name + ".new")
    failpoint("durable.before-write")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, b"".join(content))
            failpoint("durable.before-fsync")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        failpoint("durable.before-rename")
        temporary.rename(path)
        failpoint("durable.after-rename")
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error


def seal(kind: str, version: int, boot_id: str, payload: Iterable[bytes]) -> list[bytes]:
    """Header and payload of a sealed file, ready for `write_durably`."""
    parts = list(payload)
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    length = sum(map(len, parts))
    header = f"{_MAGIC} {kind} {version} {length} {crc:08x} {boot_id or '-'}\n"
    return [header.encode(), *parts]


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
    header, newline, payload = content.partition(b"\n")
    fields = header.decode("utf-8", "replace").split(" ")
    if not newline or len(fields) != _HEADER_FIELDS or fields[0] != _MAGIC:
        raise StateError(f"{path}: not a file of ours, or its first line is damaged")
    if fields[1] != kind or fields[2] != str(version):
        raise StateError(f"{path}: is {fields[1]} format {fields[2]}, wanted {kind} {version}")
    if fields[3] != str(len(payload)):
        raise StateError(f"{path}: {len(payload)} bytes of content, its header says {fields[3]}")
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


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
