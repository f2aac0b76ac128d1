"""What Prometheus reads from a controller."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.web.http_server import Page
from gpu_device_plugin.web.metrics.metric_families import Family, Gauges, Rows, plain

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_MIB = 1024 * 1024
_CARD = ("node", "card")


class NodeRooms(NamedTuple):
    """What the cards of a node have left."""

    name: str
    mode: str
    rooms: Sequence[Room]


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """What the gauges show, at one moment.

    Attributes:
        nodes: Each node whose mode gives slices.
        is_ready: Whether /readyz answers 200.
        is_current: Whether kube-scheduler is answered: the ledger is loaded and not stale.
        silent_seconds: How long ago the last event or bookmark came; None before the first list.
        certificate_ends: When its certificate ends, seconds since 1970; None without TLS.
    """

    nodes: Sequence[NodeRooms]
    reserved: int = 0
    is_ready: bool = False
    is_current: bool = False
    leads: bool = False
    silent_seconds: float | None = None
    certificate_ends: float | None = None


def _card(
    name: str, text: str, value: Callable[[Room], float | None]
) -> Family[ControllerSnapshot]:
    def rows(now: ControllerSnapshot) -> Rows:
        for node, _, rooms in now.nodes:
            for room in rooms:
                yield (node, str(room.card.index)), value(room)

    return Family(name, text, _CARD, rows)


def _mode(
    name: str, text: str, value: Callable[[Sequence[Room]], float]
) -> Family[ControllerSnapshot]:
    def rows(now: ControllerSnapshot) -> Rows:
        by_mode: dict[str, list[Room]] = {}
        for _, mode, rooms in now.nodes:
            by_mode.setdefault(mode, []).extend(room for room in rooms if room.is_healthy)
        return [((mode,), value(rooms)) for mode, rooms in sorted(by_mode.items())]

    return Family(name, text, ("mode",), rows)


def _free_bytes(room: Room) -> int:
    return room.free_mem * room.unit.mib * _MIB


def _largest(rooms: Sequence[Room]) -> float:
    usable = (r for r in rooms if r.free_core >= r.least_core and not r.is_full_of_pods)
    return max(map(_free_bytes, usable), default=0)


def _broken(rooms: Sequence[Room]) -> float:
    partly = [room for room in rooms if room.free_mem < room.card.capacity(room.unit)]
    free = sum(map(_free_bytes, rooms))
    return sum(map(_free_bytes, partly)) / free if free else 0


_TABLE: Sequence[Family[ControllerSnapshot]] = (
    plain("gpu_controller_ready", "Whether /readyz answers 200.", lambda now: now.is_ready),
    plain(
        "gpu_controller_current",
        "Whether its ledger is loaded and current.",
        lambda now: now.is_current,
    ),
    plain(
        "gpu_controller_leader",
        "Whether this replica serves kube-scheduler.",
        lambda now: now.leads,
    ),
    plain("gpu_controller_reserved_pods", "Pods that are being bound.", lambda now: now.reserved),
    plain(
        "gpu_controller_watch_silent_seconds",
        "How long ago the last event or bookmark of nodes or pods came.",
        lambda now: now.silent_seconds,
    ),
    plain(
        "gpu_controller_certificate_expiry_timestamp_seconds",
        "When the certificate of --address ends.",
        lambda now: now.certificate_ends,
    ),
    _card(
        "gpu_cluster_card_memory_units",
        "Memory units of a card.",
        lambda room: room.card.capacity(room.unit),
    ),
    _card(
        "gpu_cluster_card_free_memory_units",
        "Memory units of a card that no pod holds.",
        lambda room: room.free_mem,
    ),
    _card(
        "gpu_cluster_card_free_core_percent",
        "Compute of a card that no pod holds, where the node gives it out.",
        lambda room: room.free_core if room.least_core else None,
    ),
    _mode(
        "gpu_cluster_largest_slice_bytes",
        "The most memory that one container could get on one card now.",
        _largest,
    ),
    _mode(
        "gpu_cluster_fragmentation_ratio",
        "Share of the free memory that lies on cards which are held in part.",
        _broken,
    ),
)


# Text, labels, and labels of series that are there from the start.
_COUNTERS: Mapping[str, tuple[str, Sequence[str], Sequence[Sequence[str]]]] = {
    "bindings": (
        "Bindings by how they ended: bound, conflict (no room or another pod by then), refused "
        "(nothing was sent, or the API server did not begin), failed.",
        ("outcome",),
        (("bound",), ("conflict",), ("refused",), ("failed",)),
    ),
    "lease_renewals": (
        "Times that the leader renewed its Lease: in time, or late, with less than half of its time left.",
        ("outcome",),
        (("in time",), ("late",)),
    ),
    "calls": (
        "Calls of kube-scheduler and the API server, by the HTTP status of the answer.",
        ("verb", "code"),
        (("mutate", "200"),),
    ),
    "webhook_pods": (
        "Pods that the webhook judged: admitted, changed or not, or refused.",
        ("outcome",),
        (("admitted",), ("refused",)),
    ),
}


class ControllerMetrics:
    """Latencies as they come; the cards' figures are made when somebody reads them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._latency = Histogram(
            "gpu_controller_call_duration_seconds",
            "Time to answer kube-scheduler or the API server, without reading the body.",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._counters: dict[str, Counter] = {}
        for name, (text, labels, known) in _COUNTERS.items():
            counter = Counter(f"gpu_controller_{name}", text, labels, registry=self._registry)
            self._counters[name] = counter
            for values in known:
                counter.labels(*values)
        self._gauges = Gauges(_TABLE, ControllerSnapshot(()))
        self._registry.register(self._gauges)

    def took(self, verb: str, seconds: float) -> None:
        self._latency.labels(verb).observe(seconds)

    def count(self, counter: str, *labels: str) -> None:
        self._counters[counter].labels(*labels).inc()

    async def page(self, accept: str, now: ControllerSnapshot) -> Page:
        """The page and its content type, by the Accept header.

        Written beside the event loop: tens of thousands of cards take a second.
        """
        encoder, content_type = choose_encoder(accept)
        self._gauges.moment = now
        return await asyncio.to_thread(encoder, self._registry), content_type
