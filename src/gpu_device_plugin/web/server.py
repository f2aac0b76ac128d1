"""How TCP is listened on, and the pages /metrics, /healthz and /readyz."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from gpu_device_plugin.errors import ConfigError, EdgeError
from gpu_device_plugin.web.connections import MOST_CONNECTIONS, Connections
from gpu_device_plugin.web.shared_page import SharedPage

_SHUTDOWN_SECONDS = 1.0
# Longer than clients of Go keep a connection (90 s), so that none sends into one that we close. It is
# also the time in which the first request's headers have to come.
_IDLE_SECONDS = 100.0
_LINGERING_SECONDS = 2.0
_MOST_HEADERS = 48


@dataclass(frozen=True, slots=True)
class Pages:
    """What the server asks for each page.

    Attributes:
        metrics: The `Accept` header -> the page and its content type.
        is_alive: Whether the program works; if not, the kubelet has to restart it.
        readiness: Whether it serves, and in words why or why not.
    """

    metrics: Callable[[str], Awaitable[tuple[bytes, str]]]
    is_alive: Callable[[], bool]
    readiness: Callable[[], tuple[bool, str]]


class HttpListener:
    """One address that an application listens on, between `listen` and `stop`."""

    def __init__(
        self,
        name: str,
        address: str,
        tls: ssl.SSLContext | None = None,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        """Remember where to listen.

        Args:
            name: What the address is, for errors.
            address: Where, as `parse_address` reads it.
            tls: Certificate and key, or None for plain HTTP.
            most_connections: How many there may be; for more the oldest are closed.

        Raises:
            ConfigError: `address` has another form.
        """
        self._name, self._address, self._tls = name, address, tls
        self._host, self._port = parse_address(address, name.replace(" ", "_"))
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
        """How many connections are open."""
        return self._connections.open if self._connections else 0

    @property
    def unsent_bytes(self) -> int:
        """What is kept of answers that callers have not read yet."""
        return self._connections.unsent_bytes if self._connections else 0

    async def listen(self, app: web.Application) -> None:
        """Listen.

        Raises:
            EdgeError: It cannot listen on the address; the text names it.
        """
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

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        runner, self._runner = self._runner, None
        server, self._server = self._server, None
        if server is not None and runner is not None and self._connections is not None:
            server.close()
            self._connections.close()
            await runner.cleanup()


class WebServer(HttpListener):
    """Serves `pages` on `address` between `start` and `stop`."""

    def __init__(self, address: str, pages: Pages) -> None:
        super().__init__("metrics address", address)
        self._pages = pages
        self._metrics = SharedPage(pages.metrics)

    async def start(self) -> None:
        """Listen.

        Raises:
            EdgeError: It cannot listen on the address; the text names it.
        """
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics.answer),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        await self.listen(app)

    async def _healthz(self, _: web.Request) -> web.Response:
        is_alive = self._pages.is_alive()
        return web.Response(text="ok\n" if is_alive else "stuck\n", status=200 if is_alive else 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        is_ready, text = self._pages.readiness()
        return web.Response(text=text.rstrip("\n") + "\n", status=200 if is_ready else 503)


def parse_address(address: str, key: str) -> tuple[str, int]:
    """Host and port of `:9445`, `127.0.0.1:9445` or `[::1]:9445`; no host is every interface.

    Raises:
        ConfigError: `address` has another form; the text names it by `key`.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not is_bracketed):
        raise ConfigError(f"{key}: {address!r} is not host:port, [ipv6]:port or :port")
    return host.strip("[]"), int(port)


def _reason(error: OSError | OverflowError) -> str:
    """In words, without the number; asyncio puts its own around those of the system."""
    if not isinstance(error, OSError):
        return str(error)
    number = error.errno or 0
    # The resolver's numbers are below 0, and its words are in place.
    return os.strerror(number) if number > 0 else error.strerror or str(error)
