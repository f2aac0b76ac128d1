"""The lock that the MPS daemon holds, and what it serves while it holds it.

The kernel releases the lock with the process, however it ends, so that a text without a lock is
never taken for a server.
"""

import fcntl
import os
import time
from pathlib import Path

from gpu_device_plugin.errors import ConfigError, StorageError

_NAME = "gpu-device-plugin.serving"
_TRIES = 20
_PAUSE_SECONDS = 0.05
_MOST_BYTES = 1024 * 1024
_WHY = "# "


class ServingLock:
    """Held by the daemon while it runs.

    Args:
        root: The directory of the MPS daemon.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _NAME
        self._descriptor = -1
        self._text = self._why = ""

    def take(self) -> None:
        """Become the node's MPS daemon, which serves nothing yet.

        Raises:
            ConfigError: Another one runs.
            StorageError: The file cannot be opened.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be opened: {error.strerror}") from error
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:  # a reader has it for a moment, or another daemon
                if attempt + 1 == _TRIES:
                    raise ConfigError(f"another MPS daemon holds {self._path}") from error
                time.sleep(_PAUSE_SECONDS)
            else:
                self.serve("")
                return

    def serve(self, text: str) -> None:
        """Say what is served from now on; "" is nothing.

        Raises:
            StorageError: It cannot be written.
        """
        self._text = text
        self._write()

    def wait(self, why: str) -> None:
        """Say why nothing else is served than now, for people; "" where all is served.

        Raises:
            StorageError: It cannot be written.
        """
        if why != self._why:
            self._why = why
            self._write()

    def _write(self) -> None:
        first = f"{_WHY}{' '.join(self._why.split())}\n" if self._why else ""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, (first + self._text).encode(), 0)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


def served(root: Path) -> str:
    """What a living MPS daemon serves; "" without one, or while it is not ready."""
    return "".join(line for line in _lines(root) if not line.startswith(_WHY))


def waits_for(root: Path) -> str:
    """What keeps a living MPS daemon from serving, in its words; "" without one."""
    return "".join(
        line.removeprefix(_WHY).strip() for line in _lines(root) if line.startswith(_WHY)
    )


def _lines(root: Path) -> list[str]:
    """Of a lock that is held."""
    try:
        descriptor = os.open(root / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace")
        return text.splitlines(keepends=True)
    except OSError:
        return []
    else:
        return []
    finally:
        os.close(descriptor)
