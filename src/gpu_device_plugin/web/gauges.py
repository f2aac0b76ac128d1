"""The agent's gauges: its cards and slices of one moment."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_device_plugin.domain.pools import UnitCount

PREFIX = "gpu_device_plugin"


@dataclass(frozen=True, slots=True)
class CardSample:
    """One card now; `index` as in `SliceSample.card`, `fault` why the card itself is out, or "".

    `unexplained_bytes` is memory in use that no slice accounts for; None where that is not known.
    `door` is by what requests reach it (docs/dra.md).
    """

    index: int | str
    uuid: str
    is_healthy: bool
    units: tuple[UnitCount, ...] = ()
    fault: str = ""
    unexplained_bytes: int | None = None
    door: str = ""


@dataclass(frozen=True, slots=True)
class SliceSample:
    """One container's slice of one card.

    Attributes:
        namespace: Of the pod.
        pod: Its name.
        container: The container's name.
        card: NVML's index of the card, or its UUID where NVML does not show it.
        memory_limit_bytes: What it may use.
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the gauges show, as one immutable value.

    Attributes:
        cards: The node's cards.
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


class Gauges(Collector):
    """Builds the gauges for each scrape, so that nothing that is gone leaves a series."""

    def __init__(self, version: str) -> None:
        self.snapshot = Snapshot()
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """The families, in the order of the page."""
        snapshot = self.snapshot
        yield _gauge(
            "build_info", "Version of the running agent.", ("version",), [((self._version,), 1)]
        )
        yield from _card_gauges(snapshot.cards)
        yield _gauge(
            "node_fault",
            "What keeps the whole node from serving.",
            ("reason",),
            [((reason,), 1) for reason in snapshot.faults],
        )
        yield from _slice_gauges(snapshot.slices)
        yield from _slice_usage(snapshot.slices)
        yield _gauge(
            "reconcile_drift",
            "Differences from the kubelet that the last reconcile found.",
            (),
            [((), snapshot.drift)],
        )
        if snapshot.is_api_reachable is not None:
            yield _gauge(
                "api_reachable",
                "Whether the API server answers.",
                (),
                [((), int(snapshot.is_api_reachable))],
            )


def _card_gauges(cards: Iterable[CardSample]) -> Iterator[GaugeMetricFamily]:
    cards = tuple(cards)
    yield _gauge(
        "card_healthy",
        "Whether the card is in service.",
        ("card", "uuid"),
        [((str(card.index), card.uuid), int(card.is_healthy)) for card in cards],
    )
    yield _gauge(
        "card_fault",
        "Why a card is out of service.",
        ("card", "uuid", "reason"),
        [((str(card.index), card.uuid, card.fault), 1) for card in cards if card.fault],
    )
    yield _gauge(
        "card_memory_unexplained_bytes",
        "Memory of a card in use that no slice on it accounts for.",
        ("card", "uuid"),
        [
            ((str(c.index), c.uuid), c.unexplained_bytes)
            for c in cards
            if c.unexplained_bytes is not None
        ],
    )
    yield from _card_uses(cards)


def _card_uses(cards: Sequence[CardSample]) -> Iterator[GaugeMetricFamily]:
    yield _gauge(
        "card_door",
        "API by which pods ask for the card.",
        ("card", "uuid", "door"),
        [((str(card.index), card.uuid, card.door), 1) for card in cards if card.door],
    )
    yield _gauge(
        "units",
        "Units of a resource on a card.",
        ("resource", "card", "uuid", "state"),
        [
            ((count.resource, str(card.index), card.uuid, state), amount)
            for card in cards
            for count in card.units
            for state, amount in (("free", count.free), ("held", count.held))
        ],
    )


def _slice_gauges(slices: Iterable[SliceSample]) -> Iterator[GaugeMetricFamily]:
    labels = ("namespace", "pod", "container", "card")
    rows = [((s.namespace, s.pod, s.container, str(s.card)), s) for s in slices]
    yield _gauge(
        "slice_memory_limit_bytes",
        "Memory of a card that a container may use.",
        labels,
        [(values, s.memory_limit_bytes) for values, s in rows],
    )
    yield _gauge(
        "slice_core_percent",
        "Percent of a card's compute that a container may use; 0 is no cap.",
        labels,
        [(values, s.core_percent) for values, s in rows],
    )
    yield _gauge(
        "slice_claim",
        "The claim (DRA) that holds a slice.",
        (*labels, "claim"),
        [((*values, s.claim), 1) for values, s in rows if s.claim],
    )


def _slice_usage(slices: Iterable[SliceSample]) -> Iterator[Metric]:
    """What containers use, according to their regions; no series for one that says nothing."""
    labels = ("namespace", "pod", "container", "card")
    rows = [((s.namespace, s.pod, s.container, str(s.card)), s) for s in slices]
    yield _gauge(
        "slice_memory_used_bytes",
        "Memory of a card that a container uses, contexts included.",
        labels,
        [(row, s.memory_used_bytes) for row, s in rows if s.memory_used_bytes is not None],
    )
    yield _gauge(
        "slice_core_used_ratio",
        "Share of a card's time that a container with a compute cap used recently, 0 to 1.",
        labels,
        [(row, s.core_used_ratio) for row, s in rows if s.core_used_ratio is not None],
    )
    refused = CounterMetricFamily(
        f"{PREFIX}_slice_refused",
        "Allocations refused because the container's slice was full.",
        labels=labels,
    )
    for row, sample in rows:
        if sample.refused_total is not None:
            refused.add_metric(row, sample.refused_total)
    yield refused


def _gauge(
    name: str,
    text: str,
    labels: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], float]],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for values, amount in rows:
        family.add_metric(values, amount)
    return family
