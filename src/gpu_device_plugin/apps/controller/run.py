"""The life of a controller: follow the cluster, answer kube-scheduler, end."""

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_device_plugin.apps.controller.certificates import Certificates
from gpu_device_plugin.apps.controller.extender import Extender
from gpu_device_plugin.apps.controller.ledger import ClusterLedger
from gpu_device_plugin.apps.controller.model_rules import ModelRules
from gpu_device_plugin.apps.controller.series_labels import SeriesLabels
from gpu_device_plugin.apps.controller.webhook import Webhook
from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.cluster_watch import Changes, ClusterNode, ClusterWatch
from gpu_device_plugin.cluster.events import Events
from gpu_device_plugin.config.controller import ControllerSettings
from gpu_device_plugin.domain.models.catalogue import Catalogue
from gpu_device_plugin.web.controller_metrics import ControllerMetrics
from gpu_device_plugin.web.extender import ExtenderServer, Handlers
from gpu_device_plugin.web.server import Pages, WebServer

_MIB = 1024 * 1024
_log = structlog.get_logger("controller")


class Controller:
    """One controller."""

    def __init__(self, settings: ControllerSettings) -> None:
        kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
        self._api = ApiServer.at(kubeconfig)
        self.ledger = ClusterLedger(settings.placement)
        self._events = Events(self._api, socket.gethostname())
        self._labels = SeriesLabels(self._api, self._models, self._catalogue)
        self._rules = ModelRules(self._api, self._events.post, self._labels.all_changed)
        changes = Changes(self._node_changed, self.ledger.pod_changed)
        self._watch = ClusterWatch(self._api, changes)
        self._is_counted = False
        self._extender = Extender(self.ledger, self._api)
        self._metrics = ControllerMetrics(self.ledger.node_rooms)
        self.certificates = None if settings.plain_http else Certificates(settings, self._api)
        self.server = ExtenderServer(
            settings.address,
            Handlers(
                filter=self._extender.filter,
                prioritize=self._extender.prioritize,
                bind=self._extender.bind,
                inspect=self._extender.inspect,
                mutate=Webhook(self._rules).mutate,
                trouble=self._trouble,
                took=self._metrics.took,
            ),
            settings.max_body * _MIB,
            self.certificates.tls if self.certificates else None,
            settings.client_name,
        )
        self.pages = WebServer(
            settings.metrics_address,
            Pages(self._metrics_page, lambda: True, self._readiness),
        )

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled.

        Args:
            on_ready: Called once both addresses are listened on.

        Raises:
            ConfigError: The certificate's files cannot be used.
            EdgeError: An address cannot be listened on.
        """
        await self.pages.start()
        loops = [self._watch.run_nodes, self._watch.run_pods]
        loops += [self._rules.run, self._labels.run, self._events.run]
        try:
            if self.certificates is not None:
                await self.certificates.start()
                loops.append(self.certificates.run)
            await self.server.start()
            on_ready()
            await asyncio.gather(*(loop() for loop in loops))
        finally:
            await self._extender.stop()
            await self.server.stop()
            await self.pages.stop()
            await self._api.close()

    def _trouble(self) -> str:
        """Before the ledger is whole, an answer would be a guess."""
        if not self._watch.is_synced:
            return self._watch.trouble or "the ledger is not loaded"
        if not self._is_counted:
            # Once for all nodes, before the first call: afterwards only what changes is counted.
            self.ledger.node_rooms()
            self._is_counted = True
        return ""

    def _node_changed(self, name: str, node: ClusterNode | None) -> None:
        self.ledger.node_changed(name, node)
        self._labels.node_changed(name, node)

    def _models(self, name: str) -> list[str] | None:
        offer = self.ledger.offers.get(name)
        return None if offer is None else [card.model for card in offer.cards]

    def _catalogue(self) -> Catalogue | None:
        return self._rules.catalogue if self._rules.is_catalogue_loaded else None

    def _readiness(self) -> tuple[bool, str]:
        trouble = self._trouble() or self._rules.trouble
        return not trouble, trouble or f"ready: {len(self.ledger.offers)} nodes with cards"

    async def _metrics_page(self, accept: str) -> tuple[bytes, str]:
        return self._metrics.page(accept)


async def run_controller(settings: ControllerSettings) -> None:
    """Run a controller in this process until SIGTERM or SIGINT.

    Raises:
        ConfigError: The certificate cannot be used.
        EdgeError: An address cannot be listened on.
    """
    work = asyncio.ensure_future(Controller(settings).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        _log.info("ended")
