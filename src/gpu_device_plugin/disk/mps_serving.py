"""What the MPS daemon tells other programs of the node: what it serves while it lives, and what it has to undo."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.disk.locks import is_at
from gpu_device_plugin.domain.node.state import ANY_CARD
from gpu_device_plugin.errors import ConfigError, StorageError, storage_errors

_MODES_NAME = "gpu-device-plugin.serving"
_TRIES = 20
_PAUSE_SECONDS = 0.05
_MOST_BYTES = 1024 * 1024
_WHY = "# "
_MODES = "compute-modes.json"


class ServingLock:
    """Held by the daemon while it runs."""

    def __init__(self, root: Path) -> None:
        self._path = root / _MODES_NAME
        self._descriptor = -1
        self._text = self._why = ""

    def take(self) -> None:
        """Become the node's MPS daemon, which serves nothing yet; ConfigError if another one runs."""
        for attempt in range(_TRIES):
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_there = is_at(self._path, descriptor)
            except BlockingIOError as error:  # a reader has it for a moment, or another daemon
                os.close(descriptor)
                if attempt + 1 == _TRIES:
                    raise ConfigError(f"another MPS daemon holds {self._path}") from error
                time.sleep(_PAUSE_SECONDS)
            else:
                if is_there:
                    self._descriptor = descriptor
                    self.serve("")
                    return
                os.close(descriptor)  # another daemon has written meanwhile
        raise ConfigError(f"another MPS daemon writes {self._path}")

    def _open(self) -> int:
        with storage_errors("opened", self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def serve(self, text: str) -> None:
        """Say what is served from now on; "" is nothing."""
        self._text = text
        self._write()

    def wait(self, why: str) -> None:
        """Say why nothing else is served than now, for people; "" where all is served."""
        if why != self._why:
            self._why = why
            self._write()

    def _write(self) -> None:
        """Another file takes the place of this one, locked before: readers see one or the other."""
        first = f"{_WHY}{' '.join(self._why.split())}\n" if self._why else ""
        temporary = self._path.with_name(f".{_MODES_NAME}.new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = -1
        try:
            descriptor = os.open(temporary, flags, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(descriptor, "wb", closefd=False) as file:
                file.write((first + self._text).encode())
            temporary.rename(self._path)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error
        before, self._descriptor = self._descriptor, descriptor
        os.close(before)


def read_served(root: Path) -> str:
    """What a living MPS daemon serves; "" without one, or while it is not ready."""
    return "".join(line for line in _lines(root) if not line.startswith(_WHY))


def waits_for(root: Path) -> str:
    """What keeps a living MPS daemon from serving, in its words; "" without one."""
    return "".join(
        line.removeprefix(_WHY).strip() for line in _lines(root) if line.startswith(_WHY)
    )


def _lines(root: Path) -> list[str]:
    """The lines of the file while a daemon holds its lock; none without one."""
    for _ in range(_TRIES):
        try:
            descriptor = os.open(root / _MODES_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_at(root / _MODES_NAME, descriptor):
                return []
            # The daemon has written since it was opened.
        except BlockingIOError:
            text = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace")
            return text.splitlines(keepends=True)
        except OSError:
            return []
        finally:
            os.close(descriptor)
    return []


class ModesFile:
    """UUID -> NVML's compute mode, below the MPS daemon's root; gone after a reboot, as they are."""

    def __init__(self, root: Path) -> None:
        self._path = root / _MODES

    def read(self) -> dict[str, int]:
        """Empty without a file. StorageError: it is not known what to undo."""
        try:
            found = json.loads(self._path.read_bytes())
            return {str(uuid): int(mode) for uuid, mode in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise StorageError(
                f"{self._path}: the previous compute modes are not known: {error}; set them with "
                f"`nvidia-smi -c` and remove the file"
            ) from error

    def write(self, modes: Mapping[str, int]) -> None:
        """Replace the file in one step; without modes it is removed."""
        new = self._path.with_suffix(".new")
        try:
            if not modes:
                self._path.unlink(missing_ok=True)
                return
            with new.open("w", encoding="utf-8") as file:
                json.dump(dict(modes), file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


def kept_by_daemon(root: str) -> str:
    """What the MPS daemon of this directory serves, as it says, while it lives.

    Of one that has ended: UUID of each card that it has not given back, line by line; "" if there is
    none, and `ANY_CARD` where its file cannot be read.
    """
    try:
        return read_served(Path(root)) or "\n".join(ModesFile(Path(root)).read()) if root else ""
    except StorageError:
        return ANY_CARD
