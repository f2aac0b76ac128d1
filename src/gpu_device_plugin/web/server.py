"""How TCP is listened on, and the pages /metrics, /healthz and /readyz."""

import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from gpu_device_plugin.errors import ConfigError, EdgeError

_SHUTDOWN_SECONDS = 1.0


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


class Listener:
    """One address that an application listens on, between `start` and `stop`."""

    def __init__(self, name: str, address: str, tls: ssl.SSLContext | None = None) -> None:
        """Remember where to listen.

        Args:
            name: What the address is, for errors.
            address: Where, as `parse_address` reads it.
            tls: Certificate and key, or None for plain HTTP.

        Raises:
            ConfigError: `address` has another form.
        """
        self._name, self._address, self._tls = name, address, tls
        self._host, self._port = parse_address(address, name.replace(" ", "_"))
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port listened on, if the address says 0."""
        addresses = self._runner.addresses if self._runner else []
        return int(addresses[0][1]) if addresses else self._port

    async def start(self, app: web.Application) -> None:
        """Listen.

        Raises:
            EdgeError: It cannot listen on the address; the text names it.
        """
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host or None, self._port, ssl_context=self._tls)
            await site.start()
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            why = _reason(error)
            raise EdgeError(f"cannot listen on {self._name} {self._address}: {why}") from error
        self._runner = runner

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


class WebServer:
    """Serves `pages` on `address` between `start` and `stop`."""

    def __init__(self, address: str, pages: Pages) -> None:
        self._listener = Listener("metrics address", address)
        self._pages = pages

    @property
    def port(self) -> int:
        """The port listened on, if the address says 0."""
        return self._listener.port

    async def start(self) -> None:
        """Listen.

        Raises:
            EdgeError: It cannot listen on the address; the text names it.
        """
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        await self._listener.start(app)

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        await self._listener.stop()

    async def _metrics(self, request: web.Request) -> web.Response:
        page, content_type = await self._pages.metrics(request.headers.get("Accept", ""))
        return web.Response(body=page, headers={"Content-Type": content_type})

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
