"""The files that containers may write, held to their sizes.

A container can enlarge such a file as far as the node's memory goes. Growing a file is an inotify
event (a write to mapped memory is none), and what has grown is cut back at once. Events say only
that something was written: one look at all files follows, a few times a second at most, however
fast a container writes.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

_log = structlog.get_logger(__name__)

LOOKS_PER_SECOND = 5
EVENTS_PER_LOOK = 256


class _Kept:
    """An open file: a container that is root may take our rights to its file, not what is open."""

    def __init__(self, path: str, name: str, size: int) -> None:
        self.path, self.name, self.size = path, name, size
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags)

    def close(self) -> None:
        """No longer needed; at the end of the process the kernel does it."""
        os.close(self._descriptor)

    def cut(self) -> int:
        """Cut it back; returns the size that it had if it had grown, else 0."""
        found = os.fstat(self._descriptor).st_size
        if found <= self.size:
            return 0
        os.ftruncate(self._descriptor, self.size)
        return found


class FileSizes:
    """Knows the files of all slices that containers may write."""

    def __init__(self) -> None:
        self.on_grown: Callable[[str, str, int], None] = lambda *_: None
        """Called with slice, name of the file and the size that was found, in bytes."""
        self._kept: dict[str, dict[str, _Kept]] = {}
        self._inotify: Inotify | None = None
        self.is_watched = False
        """Whether events tell of every file; else others have to look."""

    def keep(self, slice_id: str, path: str, name: str, size: int, *, is_new: bool) -> None:
        """From now on `path`, called `name` to people, is at most `size` bytes long.

        `is_new`: it may be another file than the one that was kept under this path.
        """
        files = self._kept.setdefault(slice_id, {})
        if is_new or path not in files:
            before, files[path] = files.get(path), _Kept(path, name, size)
            if before:
                before.close()
            self._watch(path)

    def forget(self, slice_id: str) -> None:
        for kept in self._kept.pop(slice_id, {}).values():
            kept.close()

    def cut_back_unwatched(self) -> None:
        if not self.is_watched:
            self.cut_back()

    def cut_back(self) -> bool:
        """Cut back every file that has grown; whether there was one."""
        is_any = False
        for slice_id, files in self._kept.items():
            for kept in files.values():
                with contextlib.suppress(OSError):
                    if size := kept.cut():
                        is_any = True
                        self.on_grown(slice_id, kept.name, size)
        return is_any

    async def run(self) -> None:
        """Cut back what grows, until cancelled. Without inotify others have to look."""
        try:
            with Inotify(sync_timeout=0) as inotify:
                self._inotify = inotify
                await self._follow(inotify)
        except (OSError, NotImplementedError) as error:  # an event loop may know no descriptors
            _log.warning("growing files are seen late: no inotify", error=str(error))
            self._inotify, self.is_watched = None, False
            await asyncio.Event().wait()
        finally:
            self._inotify, self.is_watched = None, False

    async def _follow(self, inotify: Inotify) -> None:
        self.is_watched = True
        for files in self._kept.values():
            for path in files:
                self._watch(path)
        self.cut_back()
        while True:
            await inotify.get()
            # One look serves all that came since the last; more of a flood waits in the kernel.
            for _ in islice(inotify, EVENTS_PER_LOOK):
                pass
            self.cut_back()
            await asyncio.sleep(1 / LOOKS_PER_SECOND)

    def _watch(self, path: str) -> None:
        if self._inotify is not None:
            try:
                self._inotify.add_watch(Path(path), Mask.MODIFY)
            except OSError:  # no watch is left
                self.is_watched = False
