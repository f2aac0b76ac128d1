"""The life of the page: follow the cluster, draw, answer browsers, end."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_device_plugin.apps.overview.live_cluster import LiveCluster
from gpu_device_plugin.apps.page.access import Access
from gpu_device_plugin.apps.page.drawing import Drawing
from gpu_device_plugin.apps.page.uses import Uses
from gpu_device_plugin.cluster.api import ApiServer, Request
from gpu_device_plugin.cluster.prometheus import query_path
from gpu_device_plugin.cluster.survey import Survey
from gpu_device_plugin.errors import ClusterError, ConfigError, WrongServerError
from gpu_device_plugin.web.page.html import Html
from gpu_device_plugin.web.page.server import Content, PageServer
from gpu_device_plugin.web.tls import ServingTls

_CERTIFICATE_SECONDS = 30.0
_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class PageSettings:
    """What the page is started with.

    Attributes:
        address: Where to listen.
        cluster: The cluster's name, for the heading; may be empty.
        prometheus: As `instant_query` takes it; empty for none.
        certificate: File of a PEM certificate, or None for plain HTTP.
        key: File of its private key.
    """

    address: str
    cluster: str = ""
    prometheus: str = ""
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class PageTimes:
    """How long the page waits.

    Attributes:
        use_seconds: Between two questions to Prometheus.
        kept_seconds: Until who shows a token is looked up again.
        beat_seconds: Between two events of a reader to whom nothing else is to be told.
    """

    use_seconds: float = 15.0
    kept_seconds: float = 10.0
    beat_seconds: float = 5.0


class Page:
    """One server of the page."""

    def __init__(
        self, settings: PageSettings, api: ApiServer, times: PageTimes | None = None
    ) -> None:
        times = times or PageTimes()
        self._settings, self._api = settings, api
        self._tls = ServingTls() if settings.certificate else None
        html = Html()
        self._live = LiveCluster(api)
        self._uses = Uses(Survey(api), settings.prometheus, times.use_seconds)
        self._drawing = Drawing(api, self._live, self._uses, html, times.beat_seconds)
        drawing = self._drawing
        content = Content(
            page=lambda: {**drawing.page(), "cluster": settings.cluster},
            events=drawing.events,
            pod=drawing.pod,
            refusal=Access(api, times.kept_seconds).refusal,
            readiness=drawing.readiness,
        )
        self.server = PageServer(settings.address, content, html, self._tls)

    def readiness(self) -> tuple[bool, str]:
        """Whether there is something to show, and in words why not."""
        return self._drawing.readiness()

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled.

        Args:
            on_ready: Called once the address is listened on.

        Raises:
            ConfigError: The certificate cannot be used.
            EdgeError: The address cannot be listened on.
        """
        self._use_certificate()
        await self.server.start()
        try:
            on_ready()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._live.run())
                group.create_task(self._drawing.run())
                group.create_task(self._uses.run(self._drawing.use_changed))
                group.create_task(self._renew())
        finally:
            await self.server.stop()
            await self._api.close()

    async def _renew(self) -> None:
        """Take up a certificate that was renewed, until cancelled."""
        while self._tls is not None:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            try:
                self._use_certificate()
            except ConfigError as error:
                _log.warning("the previous certificate stays in use", error=str(error))

    def _use_certificate(self) -> None:
        certificate, key = self._settings.certificate, self._settings.key
        if self._tls is None or certificate is None or key is None:
            return
        try:
            self._tls.use(certificate.read_bytes(), key.read_bytes(), b"")
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from error


async def _find(api: ApiServer) -> None:
    try:
        await api.call(Request("GET", "/version"))
    except WrongServerError:
        raise
    except ClusterError as error:
        _log.warning("the API server does not answer properly yet", error=str(error))


async def run_page(
    settings: PageSettings, api: ApiServer, on_ready: Callable[[int], None] = lambda _: None
) -> None:
    """Serve the page from this process until SIGTERM or SIGINT.

    Args:
        settings: What it is started with.
        api: The cluster.
        on_ready: Called with the port once it is listened on.

    Raises:
        ConfigError: The certificate cannot be used, or Prometheus's address is none.
        EdgeError: The address cannot be listened on.
        WrongServerError: The API server's name is unknown, or its certificate not trusted. Any other
            trouble is shown on the page.
    """
    try:
        if settings.prometheus:
            query_path(settings.prometheus)
        await _find(api)
        page = Page(settings, api)
        work = asyncio.ensure_future(page.run(lambda: on_ready(page.server.port)))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        await work
    except asyncio.CancelledError:
        _log.info("ended")
    finally:
        await api.close()
