"""How TCP is listened on, and the pages /metrics, /healthz and /readyz.

A page that costs much and that anybody may ask for: made once for all who ask within a few seconds.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from aiohttp import web

from gpu_device_plugin.errors import ConfigError, EdgeError
from gpu_device_plugin.web.connections import MOST_CONNECTIONS, Connections

_KEPT_SECONDS = 2.0
_KEPT_BY_COST = 3.0
_PIECE_BYTES = 32 * 1024
_SENT_SECONDS = 30.0
_OPENMETRICS = "application/openmetrics-text"
PLAIN = "text/plain; version=0.0.4"
OPENMETRICS = f"{_OPENMETRICS}; version=1.0.0"
Page: TypeAlias = tuple[bytes, str]
"""A page and its content type."""


class ReadyState(NamedTuple):
    """Whether a process serves, and in words why or why not."""

    is_ready: bool
    text: str


class SharedPage:
    """One page, in the two forms that Prometheus asks for.

    It is made by one caller at a time, and kept for 2 s or three times as long as it took: so callers
    can make it take a quarter of our time at most, however many they are.
    """

    def __init__(self, made: Callable[[str], Awaitable[Page]]) -> None:
        self._made = made
        self._one_at_a_time = asyncio.Lock()
        self._kept: dict[str, tuple[Page, float]] = {}

    async def get(self, accept: str) -> Page:
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


_SHUTDOWN_SECONDS = 1.0
# Longer than clients of Go keep a connection (90 s), so that none sends into one that we close. It is
# also the time in which the first request's headers have to come.
_IDLE_SECONDS = 100.0
_LINGERING_SECONDS = 2.0
_MOST_HEADERS = 48


class HttpListener:
    """One address that an application listens on, between `listen` and `stop`."""

    def __init__(
        self,
        name: str,
        address: str,
        tls: ssl.SSLContext | None = None,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._name, self._address, self._tls = name, address, tls
        self._host, self._port = parse_address(address, f"--{name.replace(' ', '-')}")
        self._most_connections = most_connections
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None

    @property
    def port(self) -> int:
        """The port listened on, if the address says 0."""
        sockets = self._server.sockets if self._server else ()
        return int(sockets[0].getsockname()[1]) if sockets else self._port

    @property
    def connections(self) -> int:
        return self._connections.open if self._connections else 0

    @property
    def unsent_bytes(self) -> int:
        """What is kept of answers that callers have not read yet."""
        return self._connections.unsent_bytes if self._connections else 0

    async def listen(self, app: web.Application) -> None:
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGERING_SECONDS,
            max_headers=_MOST_HEADERS,
            auto_decompress=False,  # nobody who calls us compresses; a small body could become large
        )
        connections = Connections(runner, self._tls, self._most_connections)
        app.middlewares.insert(0, connections.note)
        await runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                connections, self._host or None, self._port
            )
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            why = _reason(error)
            raise EdgeError(f"cannot listen on {self._name} {self._address}: {why}") from error
        self._runner, self._connections = runner, connections

    def end_connections(self, prefix: str) -> None:
        """Close the connections that asked for such a path last; one in use after its answer."""
        if self._connections is not None:
            self._connections.end(prefix)

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        server, self._server = self._server, None
        if server is not None and runner is not None and self._connections is not None:
            server.close()
            self._connections.close()
            await runner.cleanup()


class WebServer(HttpListener):
    """Serves metrics, by the `Accept` header, and probes on `address` between `start` and `stop`."""

    def __init__(
        self,
        address: str,
        metrics: Callable[[str], Awaitable[Page]],
        readiness: Callable[[], ReadyState],
    ) -> None:
        super().__init__("metrics address", address)
        self._metrics, self._readiness = SharedPage(metrics), readiness

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics.answer)
        add_probes(app, self._readiness)
        await self.listen(app)


def add_probes(app: web.Application, readiness: Callable[[], ReadyState]) -> None:
    """Serve /healthz, and /readyz with what `readiness` says in words."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        is_ready, text = readiness()
        return web.Response(text=text.rstrip("\n") + "\n", status=200 if is_ready else 503)

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)


def parse_address(address: str, key: str) -> tuple[str, int]:
    """Host and port of `:9445`, `127.0.0.1:9445` or `[::1]:9445`; no host is every interface.

    ConfigError: `address` has another form; the text names it by `key`.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not is_bracketed):
        raise ConfigError(f"{key}: {address!r} is not host:port, [ipv6]:port or :port")
    return host.strip("[]"), int(port)


def _reason(error: OSError | OverflowError) -> str:
    """The error in words, without its number; asyncio puts its own words around those of the system."""
    if not isinstance(error, OSError):
        return str(error)
    number = error.errno or 0
    # The resolver's numbers are below 0, and its words are in place.
    return os.strerror(number) if number > 0 else error.strerror or str(error)
