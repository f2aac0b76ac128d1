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


class ServingLock:
    """Held by the daemon while it runs.

    Args:
        root: The directory of the MPS daemon.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _NAME
        self._descriptor = -1

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
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


def served(root: Path) -> str:
    """What a living MPS daemon serves; "" without one, or while it is not ready."""
    try:
        descriptor = os.open(root / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace")
    except OSError:
        return ""
    else:
        return ""
    finally:
        os.close(descriptor)
