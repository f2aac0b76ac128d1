"""The life of the page: follow the cluster, draw, answer browsers, end."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import structlog

from gpu_device_plugin.errors import AccessError, ClusterError, ConfigError
from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.objects.prometheus import query_path
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.overview.live_cluster import LiveCluster, pods_path
from gpu_device_plugin.page.access import Access
from gpu_device_plugin.page.drawing import Drawing, Drawings
from gpu_device_plugin.page.uses import Uses
from gpu_device_plugin.web.html.page_server import Content, Html, PageServer
from gpu_device_plugin.web.http_server import ReadyState, parse_address
from gpu_device_plugin.web.tls import ServingTls

_CERTIFICATE_SECONDS = 30.0
_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class PageSettings:
    """What the page is started with; without `certificate` (a PEM file) it serves plain HTTP."""

    address: str
    cluster: str = ""
    prometheus: str = ""
    grafana: str = ""
    team_label: str = ""
    namespace: str = ""  # whose pods are shown; "" for all
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        """ConfigError: one of them is malformed."""
        parse_address(self.address, "--address")
        if self.prometheus:
            query_path(self.prometheus)
        if self.grafana and not re.match(r"https?://[^/]", self.grafana):
            raise ConfigError(
                f"--grafana: {self.grafana!r} does not begin with http:// or https://"
            )


@dataclass(frozen=True, slots=True)
class PageTimes:
    """How long the page waits: between questions to Prometheus, for a looked-up token, between events of an idle reader."""

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
        html = Html(settings.grafana, settings.cluster)
        self._live = LiveCluster(api, settings.namespace)
        self._uses = Uses(Survey(api), settings.prometheus, times.use_seconds)
        self._drawings = Drawings(
            self._live,
            lambda scope: Drawing(
                *(api, self._live, self._uses, html),
                beat_seconds=times.beat_seconds,
                scope=scope or settings.namespace,
                team_label=settings.team_label,
            ),
        )
        scope = Access(api, times.kept_seconds).scope
        content = Content(self._drawings.of, scope, self.readiness)
        self.server = PageServer(settings.address, content, html, self._tls)

    def readiness(self) -> ReadyState:
        """Whether there is something to show, and in words why not."""
        return self._drawings.all.readiness()

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        self._use_certificate()
        await self.server.start()
        try:
            on_ready()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._live.run())
                group.create_task(self._drawings.run())
                group.create_task(self._uses.run(self._drawings.use_changed))
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


_NODES_CURE = (
    "an administrator lets you with `kubectl create clusterrole gpu-page --verb=list,watch "
    "--resource=nodes` and `kubectl create clusterrolebinding gpu-page --clusterrole=gpu-page "
    "--user=USER`"
)
_PODS_CURE = "name a namespace whose pods you may list and watch, with `--namespace`"


async def _check(api: ApiServer, namespace: str) -> None:
    """AccessError: what the page follows may not be listed, and what would help."""
    lacking = []
    for path, cure in (("/api/v1/nodes", _NODES_CURE), (pods_path(namespace), _PODS_CURE)):
        try:
            answer = await api.call(Request("GET", path, {"limit": "1"}))
        except AccessError:
            raise
        except ClusterError:
            return  # the page says so
        if answer.status == HTTPStatus.FORBIDDEN:
            lacking.append(f"GET {path}: {answer.text}: {cure}")
    if lacking:
        raise AccessError("; ".join(lacking))


async def run_page(
    settings: PageSettings, api: ApiServer, on_ready: Callable[[int], None] = lambda _: None
) -> None:
    """Serve the page from this process until cancelled; `on_ready` gets the port.

    Raises EdgeError (the address) and AccessError (name of the server unknown, its certificate not
    trusted, nodes or pods may not be listed); any other trouble is shown on the page.
    """
    try:
        await _check(api, settings.namespace)
        page = Page(settings, api)
        await page.run(lambda: on_ready(page.server.port))
    finally:
        await api.close()
