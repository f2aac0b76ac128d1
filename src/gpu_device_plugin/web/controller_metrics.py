"""What Prometheus reads from a controller."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpu_device_plugin.domain.schemes.aliyun.room import Room

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_MIB = 1024 * 1024
_CARD = ["node", "card"]
_R_580 = ["NodeName", "gpu", "UUID", "modelName"]
_NOT_HELD, _SHARED = 0, 2
"""ACK's values of an allocation mode that a card of ours can have (1 is a whole card)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the gauges show, at one moment.

    Attributes:
        nodes: Name, mode and cards of each node whose mode gives slices.
        reserved: Pods that are being bound.
        is_ready: Whether /readyz answers 200.
        is_current: Whether kube-scheduler is answered: the ledger is loaded and not stale.
        leads: Whether this replica serves kube-scheduler.
        certificate_ends: When its certificate ends, seconds since 1970; None without TLS.
    """

    nodes: Sequence[tuple[str, str, Sequence[Room]]]
    reserved: int = 0
    is_ready: bool = False
    is_current: bool = False
    leads: bool = False
    certificate_ends: float | None = None


class ControllerMetrics:
    """Latencies as they come; the cards' figures are made when somebody reads them."""

    def __init__(self, facts: Callable[[], Facts]) -> None:
        self._facts = facts
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._latency = Histogram(
            "gpu_controller_call_duration_seconds",
            "Time to answer kube-scheduler or the API server, without reading the body.",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._bindings = Counter(
            "gpu_controller_bindings",
            "Bindings by how they ended: bound, conflict (no room or another pod by then), failed.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in ("bound", "conflict", "failed"):
            self._bindings.labels(outcome)
        self._calls = Counter(
            "gpu_controller_calls",
            "Calls of kube-scheduler and the API server, by the HTTP status of the answer.",
            ["verb", "code"],
            registry=self._registry,
        )
        self._calls.labels("mutate", "200")
        self._admitted = Counter(
            "gpu_controller_webhook_pods",
            "Pods that the webhook judged: admitted, changed or not, or refused.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in ("admitted", "refused"):
            self._admitted.labels(outcome)

    def took(self, verb: str, seconds: float) -> None:
        """A call was answered."""
        self._latency.labels(verb).observe(seconds)

    def answered(self, verb: str, status: int) -> None:
        """A call ended with this HTTP status."""
        self._calls.labels(verb, str(status)).inc()

    def admitted(self, outcome: str) -> None:
        """The webhook judged a pod: `admitted` or `refused`."""
        self._admitted.labels(outcome).inc()

    def bound(self, outcome: str) -> None:
        """A binding ended."""
        self._bindings.labels(outcome).inc()

    async def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, by the Accept header.

        Written beside the event loop: tens of thousands of cards take a second.
        """
        encoder, content_type = choose_encoder(accept)
        facts = self._facts()
        return await asyncio.to_thread(self._written, encoder, facts), content_type

    def _written(self, encoder: Callable[[Collector], bytes], facts: Facts) -> bytes:
        return encoder(_Page(self._registry, _Gauges(facts)))


class _Page(Collector):
    """What counts all the time and what is of this moment, as one page: its end is marked."""

    def __init__(self, *parts: Collector) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus_client."""
        for part in self._parts:
            yield from part.collect()


class _Gauges(Collector):
    """Every gauge of one moment."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        facts = self._facts
        yield _one("gpu_controller_ready", "Whether /readyz answers 200.", facts.is_ready)
        yield _one(
            "gpu_controller_current", "Whether its ledger is loaded and current.", facts.is_current
        )
        yield _one(
            "gpu_controller_leader", "Whether this replica serves kube-scheduler.", facts.leads
        )
        yield _one("gpu_controller_reserved_pods", "Pods that are being bound.", facts.reserved)
        if facts.certificate_ends is not None:
            yield _one(
                "gpu_controller_certificate_expiry_timestamp_seconds",
                "When the certificate of --address ends.",
                facts.certificate_ends,
            )
        yield from self._cards()
        yield from self._published()
        yield from self._modes()

    def _cards(self) -> Iterator[Metric]:
        total = GaugeMetricFamily(
            "gpu_cluster_card_memory_units", "Memory units of a card.", labels=_CARD
        )
        free = GaugeMetricFamily(
            "gpu_cluster_card_free_memory_units",
            "Memory units of a card that no pod holds.",
            labels=_CARD,
        )
        core = GaugeMetricFamily(
            "gpu_cluster_card_free_core_percent",
            "Compute of a card that no pod holds, where the node gives it out.",
            labels=_CARD,
        )
        for node, _, rooms in self._facts.nodes:
            for room in rooms:
                labels = [node, str(room.card.index)]
                total.add_metric(labels, room.card.capacity(room.unit))
                free.add_metric(labels, room.free_mem)
                if room.least_core:
                    core.add_metric(labels, room.free_core)
        yield from (total, free, core)

    def _published(self) -> Iterator[Metric]:
        """R-580, by the names and labels of ACK's exporter."""
        mode = GaugeMetricFamily(
            "DCGM_CUSTOM_ALLOCATE_MODE", "0: nobody holds the card; 2: it is shared.", labels=_R_580
        )
        total = GaugeMetricFamily(
            "DCGM_CUSTOM_DEV_FB_TOTAL", "Memory of the card in MiB.", labels=_R_580
        )
        held = GaugeMetricFamily(
            "DCGM_CUSTOM_DEV_FB_ALLOCATED", "Share of its memory that is held.", labels=_R_580
        )
        for node, _, rooms in self._facts.nodes:
            for room in rooms:
                card, units = room.card, room.card.capacity(room.unit)
                labels = [node, str(card.index), card.uuid, card.model]
                mode.add_metric(labels, _SHARED if room.pods else _NOT_HELD)
                total.add_metric(labels, card.memory_mib)
                held.add_metric(labels, 1 - room.free_mem / units if units else 0)
        yield from (mode, total, held)

    def _modes(self) -> Iterator[Metric]:
        """Of all nodes of a mode together: what still fits, and how broken up the rest is."""
        largest = GaugeMetricFamily(
            "gpu_cluster_largest_slice_bytes",
            "The most memory that one container could get on one card now.",
            labels=["mode"],
        )
        broken = GaugeMetricFamily(
            "gpu_cluster_fragmentation_ratio",
            "Share of the free memory that lies on cards which are held in part.",
            labels=["mode"],
        )
        by_mode: dict[str, list[Room]] = {}
        for _, mode, rooms in self._facts.nodes:
            by_mode.setdefault(mode, []).extend(room for room in rooms if room.is_healthy)
        for mode, rooms in sorted(by_mode.items()):
            sizes = [room.free_mem * room.unit.mib * _MIB for room in rooms]
            usable = [
                size
                for room, size in zip(rooms, sizes, strict=True)
                if room.free_core >= room.least_core and not room.is_full_of_pods
            ]
            partly = [
                size
                for room, size in zip(rooms, sizes, strict=True)
                if room.free_mem < room.card.capacity(room.unit)
            ]
            largest.add_metric([mode], max(usable, default=0))
            broken.add_metric([mode], sum(partly) / sum(sizes) if any(sizes) else 0)
        yield from (largest, broken)


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
