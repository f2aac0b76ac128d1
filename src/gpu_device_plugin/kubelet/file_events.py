"""The kernel's events of one directory, taken in by the event loop: nothing polls, no thread waits.

asyncio has no inotify, and the libraries that have it wake several times a second, in a thread
of their own, to look whether they shall end: on an idle node that was a quarter of the agent's
wakings (docs/adr/0011).
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLY_DIRECTORY = 0x400, 0x800, 0x0100_0000
_WANTED = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENTS_BYTES = 64 * 1024


class FileEvents:
    """Calls `on_event` in the event loop when a file comes to `directory` or goes, until closed.

    Raises:
        OSError: The directory is not there, or there are no watches left.
    """

    def __init__(self, directory: Path, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._descriptor = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), directory)
        try:
            name, wanted = os.fsencode(directory), _WANTED | _ONLY_DIRECTORY
            _checked(_LIBC.inotify_add_watch(self._descriptor, name, wanted), directory)
        except OSError:
            os.close(self._descriptor)
            raise
        self._loop.add_reader(self._descriptor, self._read)

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        # Which event it was does not matter: whoever hears of one looks at what there is.
        with suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)
        self._on_event()


def _checked(result: int, directory: Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))
    return result
