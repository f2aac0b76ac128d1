"""The connections of a listener: a bound on their number, on handshakes and on what callers leave unread."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler

_HANDSHAKE_SECONDS = 5.0
_GONE = 499  # as nginx says it; nobody reads it
MOST_CONNECTIONS = 256
MOST_UNSENT_BYTES = 32 << 20


class Connections:
    """At most `most` connections: one more closes the oldest, one without a request first.

    A connection costs up to 700 KiB (TLS, headers that never end), so they have to be counted from the
    moment that they are accepted, before the TLS handshake.
    """

    def __init__(
        self, runner: web.AppRunner, tls: ssl.SSLContext | None, most: int = MOST_CONNECTIONS
    ) -> None:
        self._runner, self._tls, self._most = runner, tls, most
        self._open: dict[asyncio.Transport, web.RequestHandler | None] = {}
        self._busy: set[web.RequestHandler] = set()
        self._paths: dict[web.RequestHandler, str] = {}  # what each asked for last
        self._shaking: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        self._open = {t: handler for t, handler in self._open.items() if not t.is_closing()}
        here = set(self._open.values())
        self._paths = {handler: path for handler, path in self._paths.items() if handler in here}
        return len(self._open)

    @property
    def unsent_bytes(self) -> int:
        """What is kept of answers that callers have not read yet."""
        return sum(transport.get_write_buffer_size() for transport in self._open)

    def _bound_unsent(self) -> None:
        """Before one answer more: who leaves most unread is cut off."""
        while self.unsent_bytes > MOST_UNSENT_BYTES:
            max(self._open, key=lambda each: each.get_write_buffer_size()).abort()

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: the request's connection is in use meanwhile."""
        self._busy.add(request.protocol)
        self._paths[request.protocol] = request.path
        try:
            return await handler(request)
        except ConnectionError:  # the caller has gone, which is no error here
            return web.Response(status=_GONE)
        finally:
            self._busy.discard(request.protocol)
            self._bound_unsent()

    def end(self, prefix: str) -> None:
        """Close the connections that asked for such a path last; one in use after its answer."""
        for handler in [each for each, path in self._paths.items() if path.startswith(prefix)]:
            if handler in self._busy:
                handler.close()
            elif handler.transport is not None:
                handler.transport.close()

    def __call__(self) -> asyncio.Protocol:
        """What a server gives each connection that it accepts."""
        return _Accepted(self._take)

    def close(self) -> None:
        for task in self._shaking:
            task.cancel()

    def _take(self, transport: asyncio.Transport, accepted: "_Accepted") -> None:
        while self.open >= self._most:
            idle = (t for t, handler in self._open.items() if handler not in self._busy)
            next(idle, next(iter(self._open))).abort()
        self._open[transport] = None
        if self._tls is None:
            self._serve(transport, transport)
            return
        transport.pause_reading()  # `start_tls` reads on
        task = asyncio.ensure_future(self._shake(transport, accepted, self._tls))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _shake(
        self, transport: asyncio.Transport, accepted: "_Accepted", tls: ssl.SSLContext
    ) -> None:
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport, accepted, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )
        except OSError:  # anyone who calls without TLS, or goes away
            secure = None
        if secure is None or secure.is_closing():
            transport.abort()
            return
        self._serve(transport, secure, bytes(accepted.early))

    def _serve(
        self, transport: asyncio.Transport, spoken: asyncio.Transport, early: bytes = b""
    ) -> None:
        server = self._runner.server
        if server is None:  # it is being closed
            transport.abort()
            return
        handler = self._open[transport] = server()
        spoken.set_protocol(handler)
        handler.connection_made(spoken)
        if early:
            handler.data_received(early)


class _Accepted(asyncio.Protocol):
    """A connection until it talks HTTP."""

    def __init__(self, take: Callable[[asyncio.Transport, "_Accepted"], None]) -> None:
        self._take = take
        self.early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._take(cast("asyncio.Transport", transport), self)

    def data_received(self, data: bytes) -> None:
        self.early += data
