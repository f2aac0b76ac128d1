"""The agent's metrics page. Names and labels are an interface and do not change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import choose_encoder

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.grant import Enforcers
from gpu_device_plugin.domain.node.state import UnitCount
from gpu_device_plugin.web.http_server import Page
from gpu_device_plugin.web.metrics.metric_families import Family, FamilyOf, Gauges, Rows, plain

PREFIX = "gpu_device_plugin"
_ALLOCATE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# Otherwise each counter has one more series, with the time at which the process started.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class CardSample:
    """One card now; `index` as in `SliceSample.card`, `reason` why the card itself is out, or "".

    `unexplained_bytes` is memory in use that no slice accounts for; None where that is not known.
    `short_bytes` is what slices and that memory have together more than the card.
    `api` is by what requests reach it (docs/dra.md). `mode` is ACK's: 0 nobody holds the card, 1 a
    pod has it for itself, 2 it is shared; None where that is not known. `held_ratio` is of its memory.
    `enforcer` is who holds new slices to their memory; empty where it gives none.
    """

    index: int | str
    uuid: str
    is_healthy: bool
    units: tuple[UnitCount, ...] = ()
    reason: str = ""
    unexplained_bytes: int | None = None
    short_bytes: int = 0
    api: str = ""
    node: str = ""
    model: str = ""
    memory_mib: MiB = MiB(0)
    mode: int | None = None
    held_ratio: float = 0
    enforcer: str = ""


@dataclass(frozen=True, slots=True)
class SliceSample:
    """One container's slice of one card.

    Attributes:
        card: NVML's index of the card, or its UUID where NVML does not show it.
        core_percent: Of the card's time; 0 is no cap.
        memory_used_bytes: What it uses; None while its region says nothing.
        core_used_ratio: Share of the card's time since the last scrape, 0 to 1; None if unknown.
        refused_total: Allocations refused because the slice was full; None as above.
        claim: Name of the claim that holds it; empty for one by units.
    """

    namespace: str
    pod: str
    container: str
    card: int | str
    memory_limit_bytes: int
    core_percent: int
    memory_used_bytes: int | None = None
    core_used_ratio: float | None = None
    refused_total: int | None = None
    claim: str = ""
    enforcers: Enforcers = field(default_factory=Enforcers)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the gauges show, as one immutable value.

    Attributes:
        slices: Slices held, one entry for each container and card.
        drift: Differences between our grants and the kubelet that the last reconcile found.
        is_api_reachable: Whether the API server answers; None where none is used.
        faults: Reasons that keep the whole node from serving.
    """

    cards: tuple[CardSample, ...] = ()
    slices: tuple[SliceSample, ...] = ()
    drift: int = 0
    is_api_reachable: bool | None = None
    faults: tuple[str, ...] = ()
    version: str = ""


_card: FamilyOf[Snapshot, CardSample] = FamilyOf(
    lambda now: now.cards, ("card", "uuid"), lambda card: (str(card.index), card.uuid)
)
_SLICE_LABELS = ("namespace", "pod", "container", "card")


def _slice_labels(each: SliceSample) -> Sequence[str]:
    return each.namespace, each.pod, each.container, str(each.card)


_slice: FamilyOf[Snapshot, SliceSample] = FamilyOf(
    lambda now: now.slices, _SLICE_LABELS, _slice_labels
)


def _units(now: Snapshot) -> Rows:
    for card in now.cards:
        for count in card.units:
            for state, amount in (("free", count.free), ("held", count.held)):
                yield (count.resource, str(card.index), card.uuid, state), amount


_GAUGES: Sequence[Family[Snapshot]] = (
    Family(
        "build_info",
        "Version of the running agent.",
        ("version",),
        lambda now: [((now.version,), 1)],
    ),
    _card("card_healthy", "Whether the card is healthy.", lambda card: card.is_healthy),
    _card.told("card_fault", "Why a card is unhealthy.", "reason"),
    _card(
        "card_memory_unexplained_bytes",
        "Memory of a card in use that no slice on it accounts for.",
        lambda card: card.unexplained_bytes,
    ),
    _card(
        "card_memory_short_bytes",
        "By how much slices and memory that no slice accounts for are more than the card has.",
        lambda card: card.short_bytes,
    ),
    _card.told("card_allocation_api", "API by which pods ask for the card.", "api"),
    _card.told(
        "card_memory_enforcer",
        "Who holds new slices of the card to their memory, how or why.",
        "enforcer",
    ),
    Family(
        "units", "Units of a resource on a card.", ("resource", "card", "uuid", "state"), _units
    ),
    Family(
        "node_fault",
        "What keeps the whole node from serving.",
        ("reason",),
        lambda now: [((reason,), 1) for reason in now.faults],
    ),
    _slice(
        "slice_memory_limit_bytes",
        "Memory of a card that a container may use.",
        lambda each: each.memory_limit_bytes,
    ),
    _slice(
        "slice_core_percent",
        "Percent of a card's compute that a container may use; 0 is no cap.",
        lambda each: each.core_percent,
    ),
    _slice.told("slice_claim", "The claim (DRA) that holds a slice.", "claim"),
    Family(
        "slice_enforcers",
        "Who holds a slice to its memory, and to its share of compute.",
        (*_SLICE_LABELS, *Enforcers._fields),
        lambda now: [((*_slice_labels(each), *each.enforcers), 1) for each in now.slices],
    ),
    _slice(
        "slice_memory_used_bytes",
        "Memory of a card that a container uses, contexts included.",
        lambda each: each.memory_used_bytes,
    ),
    _slice(
        "slice_core_used_ratio",
        "Share of a card's time that a container with a compute cap used recently, 0 to 1.",
        lambda each: each.core_used_ratio,
    ),
    replace(
        _slice(
            "slice_refused",
            "Allocations refused because the container's slice was full.",
            lambda each: each.refused_total,
        ),
        kind=CounterMetricFamily,
    ),
    plain(
        "reconcile_drift",
        "Differences from the kubelet that the last reconcile found.",
        lambda now: now.drift,
    ),
    plain("api_reachable", "Whether the API server answers.", lambda now: now.is_api_reachable),
)


# By name and labels of ACK's exporter, of cards whose mode is known; node pools and sources are
# the cloud's.
_ack: FamilyOf[Snapshot, CardSample] = FamilyOf(
    lambda now: (card for card in now.cards if card.mode is not None),
    ("NodeName", "UUID", "gpu", "device", "modelName", "NodePoolId", "PodSource"),
    lambda card: (card.node, card.uuid, str(card.index), f"nvidia{card.index}", card.model, "", ""),
    is_always=False,
)
_ACK: Sequence[Family[Snapshot]] = (
    _ack(
        "ALLOCATE_MODE",
        "0: nobody holds the card; 1: a pod has it for itself; 2: it is shared.",
        lambda card: card.mode or 0,
    ),
    _ack("DEV_FB_TOTAL", "Memory of the card in MiB.", lambda card: card.memory_mib),
    _ack("DEV_FB_ALLOCATED", "Share of its memory that is held.", lambda card: card.held_ratio),
)
_COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "allocations": (
        "Allocate and GetPreferredAllocation decisions.",
        ("resource", "outcome", "reason"),
    ),
    "registrations": ("Registrations with the kubelet.", ("resource",)),
    "card_changes": ("Changes of a card's health.", ("uuid", "reason")),
    "nvml_restarts": ("Restarts of the NVML child process.", ()),
    "claims": ("Calls to prepare a claim (DRA).", ("outcome", "reason")),
    "slice_repairs": ("Repairs of slices, by what was wrong.", ("reason",)),
    "state_files_set_aside": ("Files of the state directory that could not be trusted.", ()),
    "events_dropped": ("Kubernetes Events that could not be written.", ()),
}


class AgentMetrics:
    """The agent's metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._registry = CollectorRegistry()
        self._gauges = Gauges(_GAUGES, Snapshot(version=version), f"{PREFIX}_")
        self._ack = Gauges(_ACK, self._gauges.moment, "DCGM_CUSTOM_")
        self._registry.register(self._gauges)
        self._registry.register(self._ack)
        ProcessCollector(registry=self._registry)
        self._ready = Gauge(
            f"{PREFIX}_ready", "Whether /readyz answers 200.", registry=self._registry
        )
        self._allocate_seconds = Histogram(
            f"{PREFIX}_allocate_seconds",
            "Time to answer Allocate.",
            buckets=_ALLOCATE_BUCKETS,
            registry=self._registry,
        )
        self._counters = {
            name: Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._nvml_restarts = 0

    def publish(self, snapshot: Snapshot) -> None:
        """Show these cards and slices from now on, and no others."""
        self._gauges.moment = self._ack.moment = replace(snapshot, version=self._version)

    def observe_allocate(self, seconds: float) -> None:
        self._allocate_seconds.observe(seconds)

    def count(self, counter: str, *labels: str) -> None:
        """One more of a counter of the table; a reason at the end may be left out."""
        counted, names = self._counters[counter], _COUNTERS[counter][1]
        missing = ("",) * (len(names) - len(labels))
        (counted.labels(*labels, *missing) if names else counted).inc()

    def show_nvml_restarts(self, total: int) -> None:
        self._counters["nvml_restarts"].inc(total - self._nvml_restarts)
        self._nvml_restarts = total

    def page(self, accept: str, *, is_ready: bool = False) -> Page:
        """The metrics page and its content type, as the `Accept` header wants them."""
        self._ready.set(is_ready)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
