"""A page that costs much and that anybody may ask for: made once for all who ask within a few seconds."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

_KEPT_SECONDS = 2.0
_KEPT_BY_COST = 3.0
_PIECE_BYTES = 32 * 1024
_SENT_SECONDS = 30.0
_OPENMETRICS = "application/openmetrics-text"
PLAIN = "text/plain; version=0.0.4"
OPENMETRICS = f"{_OPENMETRICS}; version=1.0.0"
Page = tuple[bytes, str]
"""A page and its content type."""


class SharedPage:
    """One page, in the two forms that Prometheus asks for.

    It is made by one caller at a time, and kept for 2 s or three times as long as it took: so callers
    can make it take a quarter of our time at most, however many they are.
    """

    def __init__(self, made: Callable[[str], Awaitable[Page]]) -> None:
        """Have none yet.

        Args:
            made: The value of an `Accept` header -> the page.
        """
        self._made = made
        self._one_at_a_time = asyncio.Lock()
        self._kept: dict[str, tuple[Page, float]] = {}

    async def get(self, accept: str) -> Page:
        """The page as the `Accept` header wants it."""
        form = OPENMETRICS if _OPENMETRICS in accept else PLAIN
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            page, until = self._kept.get(form, ((b"", ""), 0.0))
            began = loop.time()
            if began >= until:
                page = await self._made(form)
                cost = loop.time() - began
                self._kept[form] = page, loop.time() + max(_KEPT_SECONDS, _KEPT_BY_COST * cost)
            return page

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send the page in pieces: all callers share its bytes, also those that read slowly.

        One that has not read it after 30 s is cut off.
        """
        page, content_type = await self.get(request.headers.get("Accept", ""))
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.content_length = len(page)
        try:
            async with asyncio.timeout(_SENT_SECONDS):
                await response.prepare(request)
                for start in range(0, len(page), _PIECE_BYTES):
                    await response.write(page[start : start + _PIECE_BYTES])
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response
