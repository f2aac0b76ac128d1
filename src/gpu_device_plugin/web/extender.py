"""The scheduler extender's address: bodies in, bodies out."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from gpu_device_plugin.errors import GpuPluginError
from gpu_device_plugin.web.server import Listener

PREFIX = "/gpushare-scheduler"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Handlers:
    """Who answers.

    Attributes:
        filter: Body of a filter call -> body of the answer.
        prioritize: The same for prioritize.
        bind: The same for bind.
        inspect: A node's name, or None for all -> status and body.
        trouble: Why nothing can be answered now, or "".
        took: Verb and seconds of each call that was answered.
    """

    filter: Callable[[bytes], bytes]
    prioritize: Callable[[bytes], bytes]
    bind: Callable[[bytes], Awaitable[bytes]]
    inspect: Callable[[str | None], tuple[int, bytes]]
    trouble: Callable[[], str]
    took: Callable[[str, float], None] = lambda _verb, _seconds: None


class ExtenderServer:
    """Serves `handlers` between `start` and `stop`."""

    def __init__(
        self,
        address: str,
        handlers: Handlers,
        max_body_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = Listener("address", address, tls)
        self._handlers = handlers
        self._max_body_bytes = max_body_bytes

    @property
    def port(self) -> int:
        """The port listened on; of use where the address says 0."""
        return self._listener.port

    async def start(self) -> None:
        """Listen.

        Raises:
            EdgeError: The address cannot be listened on; the text names it.
        """
        app = web.Application(client_max_size=self._max_body_bytes)
        app.add_routes(
            [
                web.post(f"{PREFIX}/filter", self._filter),
                web.post(f"{PREFIX}/prioritize", self._prioritize),
                web.post(f"{PREFIX}/bind", self._bind),
                web.get(f"{PREFIX}/inspect", self._inspect),
                web.get(f"{PREFIX}/inspect/{{node}}", self._inspect),
            ]
        )
        await self._listener.start(app)

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        await self._listener.stop()

    async def _filter(self, request: web.Request) -> web.Response:
        return await self._answered(request, "filter", self._handlers.filter)

    async def _prioritize(self, request: web.Request) -> web.Response:
        return await self._answered(request, "prioritize", self._handlers.prioritize)

    async def _bind(self, request: web.Request) -> web.Response:
        return await self._answered(request, "bind", self._handlers.bind)

    async def _inspect(self, request: web.Request) -> web.Response:
        if trouble := self._handlers.trouble():
            return _unavailable(trouble)
        status, body = self._handlers.inspect(request.match_info.get("node"))
        return web.Response(body=body, status=status, content_type=_JSON)

    async def _answered(
        self,
        request: web.Request,
        verb: str,
        handler: Callable[[bytes], bytes | Awaitable[bytes]],
    ) -> web.Response:
        if trouble := self._handlers.trouble():
            return _unavailable(trouble)
        if (request.content_length or 0) > self._max_body_bytes:
            # Unread: a body that is too long must not be paid for.
            raise web.HTTPRequestEntityTooLarge(
                max_size=self._max_body_bytes, actual_size=request.content_length or 0
            )
        body = await request.read()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answer = handler(body)
            answer = answer if isinstance(answer, bytes) else await answer
        except GpuPluginError as error:
            return web.Response(text=f"{error}\n", status=400)
        self._handlers.took(verb, loop.time() - began)
        return web.Response(body=answer, content_type=_JSON)


def _unavailable(trouble: str) -> web.Response:
    return web.Response(text=f"{trouble}\n", status=503)
