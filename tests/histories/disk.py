"""A disk that is full, slow, or loses what was not flushed."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Disk:
    """The faults of the files below `root`.

    Attributes:
        is_full: Whether there is no room for one more byte.
        flush_seconds: How long a flush takes.
        durable: Directory whose files survive a loss of power, as far as they were flushed.
    """

    def __init__(
        self, root: Path, chance: random.Random, loop_waits: Callable[[str], None]
    ) -> None:
        self.durable = f"{root}/state/"
        self.is_full = False
        self.flush_seconds = 0.0
        self._chance = chance
        self._loop_waits = loop_waits
        self._dirty: set[str] = set()
        self._write, self._fdatasync = os.write, os.fdatasync

    def edge(self) -> list[tuple[Any, str, Any]]:
        """What stands in for the operating system's calls."""
        return [(os, "write", self.write), (os, "fdatasync", self.fdatasync)]

    def write(self, descriptor: int, content: Any) -> int:
        """`os.write`."""
        path = _path(descriptor)
        if not path.startswith(self.durable):
            return self._write(descriptor, content)
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._dirty.add(path)
        return self._write(descriptor, content)

    def fdatasync(self, descriptor: int) -> None:
        """`os.fdatasync`; how long the writer waits for it, the loop knows."""
        path = _path(descriptor)
        self._dirty.discard(path)
        self._loop_waits(path)

    def lose_power(self) -> None:
        """What was written and not flushed is there in part, or as something else."""
        for path in sorted(self._dirty):
            try:
                content = bytearray(Path(path).read_bytes())
            except OSError:
                continue
            kept = self._chance.randrange(len(content) + 1)
            content[kept:] = b"" if self._chance.random() < 0.5 else bytes(len(content) - kept)
            Path(path).write_bytes(content)
        self._dirty.clear()


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a text, and often
