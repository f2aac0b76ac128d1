"""File events of one directory, read by the event loop without polling and without a thread."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from asyncinotify import Inotify, Mask

_OF_FILES, _OF_ITSELF = Mask.CREATE | Mask.DELETE | Mask.MOVE, Mask.DELETE_SELF | Mask.MOVE_SELF
_WANTED = _OF_FILES | _OF_ITSELF | Mask.ONLYDIR


class FileEvents:
    """Calls `on_event` in the event loop when a file in `directory` is created or removed."""

    def __init__(self, directory: Path, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._inotify = Inotify()
        try:
            self._inotify.add_watch(directory, _WANTED)
        except OSError:
            self._inotify.close()
            raise
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        self._listening.cancel()
        # The reader must be removed first: the next watch may get the same descriptor.
        await asyncio.wait({self._listening})
        self._inotify.close()

    async def _listen(self) -> None:
        # Which event it was does not matter: the callback checks the directory itself.
        async for _ in self._inotify:
            self._on_event()
