"""The life of a controller: follow the cluster, answer kube-scheduler, end."""

import asyncio
import ctypes
import gc
import socket
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gpu_device_plugin import __version__
from gpu_device_plugin.controller.binder import MOST_BINDINGS, Binder, View
from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.controller.disruption_budgets import DisruptionBudgets
from gpu_device_plugin.controller.leader import Duties, Leader, Leadership
from gpu_device_plugin.controller.lease_pace import LeasePace
from gpu_device_plugin.controller.model_rules import Models
from gpu_device_plugin.controller.scheduler_extender import Extender
from gpu_device_plugin.controller.unhealthy_cards import UnhealthyCards
from gpu_device_plugin.controller.waiting_claims import WaitingClaims
from gpu_device_plugin.controller.webhook import Webhook
from gpu_device_plugin.controller.webhook_certificates import Certificates
from gpu_device_plugin.controller.webhook_trust import WebhookTrust
from gpu_device_plugin.domain.fractions.foreign_resource_names import HAMI, KOORDINATOR
from gpu_device_plugin.domain.fractions.units import resources_of
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.api_availability import RetryPace
from gpu_device_plugin.kubernetes.client.credentials import load_credentials
from gpu_device_plugin.kubernetes.client.turns import Turns
from gpu_device_plugin.kubernetes.objects.admission_review import name_scheduler, read_review
from gpu_device_plugin.kubernetes.objects.cluster_watch import (
    Changes,
    ClusterNode,
    ClusterWatch,
    unbound_pods,
)
from gpu_device_plugin.kubernetes.objects.leader_label import LeaderLabel
from gpu_device_plugin.kubernetes.objects.lease import Lease, LeaseName
from gpu_device_plugin.settings.controller_settings import ControllerSettings, UnhealthyConfigMaps
from gpu_device_plugin.web.extender_server import Callers, ExtenderServer, Handlers
from gpu_device_plugin.web.http_server import Page, ReadyState, WebServer
from gpu_device_plugin.web.metrics.controller_metrics import (
    ControllerMetrics,
    ControllerSnapshot,
    NodeRooms,
)

LEASE = "gpu-device-plugin-controller"
_MIB = 1024 * 1024
# Above the arrays of a question about 5,000 nodes: the system would give and take each of them page by page.
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 1 * _MIB
_M_TRIM_THRESHOLD, _KEPT_BYTES = -1, 8 * _MIB
_log = structlog.get_logger("controller")


@dataclass(frozen=True, slots=True)
class Times:
    """How long a controller waits."""

    lease: LeasePace = field(default_factory=LeasePace)
    stale_seconds: float = 60.0  # until a view that nothing renews counts as no view
    ending_seconds: float = 5.0  # for which the webhook is served after the lead was given back
    api: RetryPace = field(default_factory=RetryPace)


class Controller:
    """One controller."""

    def __init__(self, settings: ControllerSettings, times: Times | None = None) -> None:
        self._times = times or Times()
        kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
        self._api = ApiServer.at(kubeconfig, pace=self._times.api)
        # A slow API server fills a pool: neither the Lease nor a binding may wait there for others.
        self._lead_api, self._bind_api = (
            ApiServer.at(kubeconfig, connections=number) for number in (2, MOST_BINDINGS)
        )
        self._is_ending = False
        self.ledger = ClusterLedger(settings.placement)
        self._metrics = ControllerMetrics()
        identity = settings.pod_name or f"{socket.gethostname()}_{uuid.uuid4()}"
        name = LeaseName(settings.namespace, LEASE, identity)
        pace = self._times.lease
        self.leadership = Leadership(Lease(self._lead_api, name, pace.lease_seconds), pace)
        leads = self.leadership.leads
        self.models = Models(self._api, identity, self._cards, leads, is_served=settings.models)
        self._unhealthy = UnhealthyCards(self._api, self.ledger, leads)
        self._keeps_unhealthy = settings.unhealthy_configmaps is UnhealthyConfigMaps.WRITE
        self._waiting_claims = WaitingClaims(
            self._api, self.ledger, self.models.post, self.leadership
        )
        self.budgets = DisruptionBudgets(self._api)
        self._watch = ClusterWatch(
            self._api, Changes(self._node_changed, self.ledger.pod_changed), self.ledger.processors
        )
        self._binder = Binder(self.ledger, self._bind_api, self._view())
        label = LeaderLabel(self._lead_api, settings.namespace, settings.pod_name)
        self._leader = Leader(self.leadership, label, self._duties())
        self._webhook_configuration = settings.webhook_configuration
        self.certificates = None if settings.plain_http else Certificates(settings, self._api)
        self.server = ExtenderServer(
            settings.address,
            self._handlers(settings),
            settings.max_body * _MIB,
            self.certificates.tls if self.certificates else None,
            Callers(settings.client_name, settings.webhook_client_name),
        )
        self.pages = WebServer(settings.metrics_address, self._page, self._readiness)

    def _duties(self) -> Duties:
        return Duties(
            self._catch_up,
            self._binder.wait_idle,
            lambda: self.server.end_scheduler_connections(),
            partial(self._metrics.count, "lease_renewals"),
        )

    def _view(self) -> View:
        return View(
            partial(self._watch.read, self._bind_api),
            partial(unbound_pods, self._api),
            self.leadership.standby,
            self.leadership.left_seconds,
            partial(self._metrics.count, "bindings"),
        )

    def _handlers(self, settings: ControllerSettings) -> Handlers:
        extender = Extender(self.ledger, self.budgets.of, settings.filter_keeps)
        dialects = {KOORDINATOR: settings.koordinator.unit, HAMI: settings.hami.unit}
        rules = self.models.rules
        webhook = Webhook(
            rules,
            {dialect: unit for dialect, unit in dialects.items() if unit},
            self.ledger.card_units,
            partial(self._metrics.count, "webhook_pods"),
            needs_model=not settings.model_optional,
        )
        return Handlers(
            filter=extender.filter,
            prioritize=extender.prioritize,
            preempt=extender.preempt,
            bind=self._binder.bind,
            inspect=extender.inspect,
            mutate=webhook.mutate if settings.models else None,
            name_scheduler=self._namer(settings.name_scheduler),
            trouble=self._trouble,
            mutate_trouble=lambda: rules.trouble,
            standby=self._standby,
            took=self._metrics.took,
            answered=partial(self._metrics.count, "calls"),
        )

    @staticmethod
    def _namer(name: str) -> Callable[[bytes], bytes] | None:
        """The webhook's conditions choose the pods: the API server asks about no other."""
        return (lambda body: name_scheduler(read_review(body), name)) if name else None

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        await self.pages.start()
        loops = [self._unhealthy.run] if self._keeps_unhealthy else []
        loops += [
            self._watch.run_nodes,
            self._watch.run_pods,
            self.budgets.reflection.run,
            self._leader.run,
            self.models.run,
            self._waiting_claims.run,
            self._binder.settle,
        ]
        try:
            if (certificates := self.certificates) is not None:
                await certificates.start()
                loops.append(certificates.run)
                if name := self._webhook_configuration:
                    trust = WebhookTrust(self._api, name, lambda: certificates.authority)
                    loops.append(trust.run)
            await self.server.start()
            on_ready()
            await self._work(loops)
        finally:
            await self.server.stop()
            await self.pages.stop()
            for api in (self._api, self._lead_api, self._bind_api):
                await api.close()

    async def _work(self, loops: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run these until cancelled; then serve the webhook until its callers know of the end."""
        try:
            # Waits for all of them at the end: the leader has something to give up.
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop())
                try:
                    await asyncio.Event().wait()
                finally:
                    self._is_ending = True
        except asyncio.CancelledError:
            await asyncio.sleep(self._times.ending_seconds)
            raise

    def _standby(self) -> str:
        """Why this replica does not serve kube-scheduler, or ""."""
        return "this replica is ending" if self._is_ending else self.leadership.standby()

    def _not_loaded(self) -> str:
        """Why the ledger is not whole yet, or ""."""
        if not self._watch.is_synced:
            return self._watch.trouble or "the ledger is not loaded"
        return ""

    def _trouble(self) -> str:
        """Before the ledger is whole, and when it is stale, an answer would be a guess."""
        if not_loaded := self._not_loaded():
            return not_loaded
        if self._watch.trouble_seconds > self._times.stale_seconds:
            return f"the ledger is not current: {self._watch.trouble}"
        return ""

    def _node_changed(self, name: str, node: ClusterNode | None) -> None:
        self.ledger.node_changed(name, node)
        self.models.labels.node_changed(name, node)
        self._unhealthy.node_changed(name)

    def _cards(self, name: str) -> list[str] | None:
        offer = self.ledger.offers.get(name)
        return None if offer is None else [card.model for card in offer.cards]

    async def _catch_up(self) -> None:
        await self._watch.catch_up()
        # Once for all nodes, before the first call: afterwards only what changes is counted.
        await Turns().finish(self.ledger.count())
        self.models.labels.all_changed()
        for node in self.ledger.offers:
            self._unhealthy.node_changed(node)
        self._waiting_claims.begin()
        # What is loaded stays: no garbage collection should walk it while kube-scheduler waits.
        gc.freeze()

    def _readiness(self) -> ReadyState:
        """A replica with a stale ledger stays ready: it serves the webhook with what it knows."""
        if self._is_ending:
            return ReadyState(is_ready=False, text=self._standby())
        if not_loaded := self._not_loaded() or self.models.trouble:
            return ReadyState(is_ready=False, text=not_loaded)
        role = self._trouble() or self.leadership.standby() or "leads"
        text = f"ready: {len(self.ledger.offers)} nodes with cards; {role}"
        text += f"; the watch has been silent for {self._watch.news_seconds:.0f} s"
        for followed in (self.budgets.reflection, self._unhealthy.reflection):
            text += f"; {followed.trouble}" if followed.trouble else ""
        return ReadyState(is_ready=True, text=text)

    async def _page(self, accept: str) -> Page:
        return await self._metrics.page(accept, self._snapshot())

    def _snapshot(self) -> ControllerSnapshot:
        ends = self.certificates.ends if self.certificates else None
        is_ready, _ = self._readiness()
        return ControllerSnapshot(
            nodes=tuple(
                NodeRooms(offer.name, offer.mode.value, self.ledger.rooms(offer.name))
                for offer in self.ledger.offers.values()
                if resources_of(offer.mode)
            ),
            reserved=self.ledger.reserved,
            is_ready=is_ready,
            is_current=not self._trouble(),
            leads=self.leadership.leads(),
            silent_seconds=self._watch.news_seconds if self._watch.is_synced else None,
            certificate_ends=ends.timestamp() if ends else None,
        )


async def run_controller(settings: ControllerSettings) -> None:
    """Run a controller in this process until cancelled.

    AccessError: There is no usable kubeconfig and no service account, so nothing to wait for.
    """
    await load_credentials([Path(settings.kubeconfig)] if settings.kubeconfig else [])
    _log.info("starting", version=__version__, placement=settings.placement.value)
    _give_large_blocks_back()
    await Controller(settings).run()


def _give_large_blocks_back() -> None:
    """Let memory of long lists and bodies return to the system as soon as it is free.

    glibc raises its threshold to the longest block that was freed, and then keeps such blocks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
