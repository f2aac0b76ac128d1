"""The parts of the page as they were last drawn, and which of them a reader has not seen yet."""

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

_MOST_GONE = 1000
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class _Part:
    html: str
    number: int


class Parts:
    """Parts by their id in the page; one that is gone is empty.

    A reader is told where it is as `start-number`: `start` is of this process, and `number` grows
    with every change.

    Attributes:
        changed: Notified with every change.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self._start = uuid.uuid4().hex[:8]
        self._number = self._floor = 0
        self._parts: dict[str, _Part] = {}

    @property
    def at(self) -> str:
        """Where a reader is that has all of it."""
        return f"{self._start}-{self._number}"

    def html(self, name: str) -> str:
        """A part; empty where there is none."""
        found = self._parts.get(name)
        return found.html if found else ""

    def nodes(self) -> Iterator[str]:
        """The parts of nodes, by name."""
        names = sorted(name for name in self._parts if name.startswith("node-"))
        return (html for name in names if (html := self._parts[name].html))

    def put(self, name: str, html: str) -> bool:
        """Have this part from now on; whether it is another than before."""
        if self.html(name) == html:
            return False
        self._number += 1
        self._parts.pop(name, None)
        self._parts[name] = _Part(html, self._number)
        if not html:
            self._forget_gone()
        return True

    def since(self, at: str) -> Mapping[str, str] | None:
        """What a reader at that place has not seen; None where it has to read all of it again."""
        start, _, number = at.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        seen = int(number) if is_number else -1
        if start != self._start or not self._floor <= seen <= self._number:
            return None
        return {name: part.html for name, part in self._parts.items() if part.number > seen}

    async def tell(self) -> None:
        """Wake every reader that waits."""
        async with self.changed:
            self.changed.notify_all()

    async def wait(self, at: str, seconds: float) -> None:
        """Wait until there is something to see from that place on, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(lambda: self.at != at)

    def _forget_gone(self) -> None:
        """Nodes come and go under new names; who has been away for longer reads all again."""
        gone = [name for name, part in self._parts.items() if not part.html]
        for name in gone[:-_MOST_GONE]:
            self._floor = max(self._floor, self._parts.pop(name).number)
