"""Bodies of requests, bounded in size, number and time while they are read and answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How much the callers of a route may make us keep.

    Attributes:
        each_bytes: A longer body is answered 413.
        together_bytes: All bodies at a time; of more the longest unfinished one is answered 503.
        number: Bodies at a time; of more the oldest unfinished one is answered 503.
        seconds: One that has not arrived by then is answered 408.
    """

    each_bytes: int
    together_bytes: int
    number: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Body:
    """A body that is being read, or (without `reading`) one that is being answered."""

    reading: asyncio.Timeout | None
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    gave_way: bool = False

    def take(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)

    def give_way(self) -> None:
        """Keep nothing of it any more; anyone who reads it is told soon."""
        self.gave_way, self.size = True, 0
        self.chunks.clear()
        if self.reading is not None and not self.reading.expired():
            self.reading.reschedule(0)


class Bodies:
    """The bodies of a route's callers.

    Whom nobody knows can open as many requests as he likes. So what is unfinished gives way, and not
    the newest: a caller that sends its body at once is answered beside others that never end theirs.
    """

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._held: list[_Body] = []

    @property
    def kept_bytes(self) -> int:
        return sum(body.size for body in self._held)

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body, kept until the block ends; HTTPException 413, 408 or 503, see `BodyLimits`."""
        limits, length = self._limits, request.content_length or 0
        if length > limits.each_bytes:  # unread: it must not be paid for
            raise web.HTTPRequestEntityTooLarge(limits.each_bytes, length)
        body = _Body(reading := asyncio.timeout(limits.seconds))
        try:
            content = await self._content(request, body, reading)
            yield content
        finally:
            if body in self._held:
                self._held.remove(body)

    async def _content(self, request: web.Request, body: _Body, reading: asyncio.Timeout) -> bytes:
        limits = self._limits
        try:
            async with reading:
                self._held.append(body)
                while chunk := await self._chunk(request, body):
                    body.take(chunk)
                    self._make_room()
        except TimeoutError:
            if body.gave_way:
                raise web.HTTPServiceUnavailable(
                    text=f"{request.path}: too many large requests at once\n"
                ) from None
            raise web.HTTPRequestTimeout(
                text=f"{request.path}: the body has not arrived in {limits.seconds:g} s\n"
            ) from None
        body.reading = None
        content = b"".join(body.chunks)
        body.chunks.clear()
        return content

    async def _chunk(self, request: web.Request, body: _Body) -> bytes:
        """The next bytes; empty at the end."""
        self._make_room()
        if body.gave_way:
            raise TimeoutError
        chunk = await request.content.readany()
        if body.size + len(chunk) > self._limits.each_bytes:
            raise web.HTTPRequestEntityTooLarge(self._limits.each_bytes, body.size + len(chunk))
        return chunk

    def _make_room(self) -> None:
        kept = [body for body in self._held if not body.gave_way]
        unfinished = [body for body in kept if body.reading is not None]
        if len(kept) > self._limits.number:
            unfinished[0].give_way()
        elif sum(body.size for body in kept) > self._limits.together_bytes:
            max(unfinished, key=lambda body: body.size).give_way()
