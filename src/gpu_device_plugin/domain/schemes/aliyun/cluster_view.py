"""What nodes offer and pods hold by their annotations, and the wish for a pod's cards.

Amounts only: unit ids are the node's own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import (
    MAX_PODS_LABEL,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
    parse_max_pods,
    parse_mode,
    parse_policy,
)
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.pods import ContainerKind, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.annotations import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CORE_ALLOCATION,
    V1_ASSIGNED,
    V1_INDEX,
)
from gpu_device_plugin.domain.schemes.aliyun.pod_take import Share
from gpu_device_plugin.domain.schemes.aliyun.requests import wants_whole_card
from gpu_device_plugin.domain.schemes.aliyun.units import Resource
from gpu_device_plugin.domain.shares import Demand
from gpu_device_plugin.errors import StateError

V1_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node offers, by its annotation of cards and its labels.

    Attributes:
        name: The node.
        mode: Its mode.
        unit: Size of one memory unit.
        cards: Its cards, by NVML index; `number` is the index too.
        healthy: Indexes of the cards that may serve.
        policy: Placement policy of its label, or None.
        max_pods: Most pods a card by its label, or None.
    """

    name: str
    mode: NodeMode
    unit: MemoryUnit
    cards: tuple[Card, ...]
    healthy: frozenset[int]
    policy: PlacementPolicy | None = None
    max_pods: int | None = None

    @property
    def terms(self) -> NodeTerms:
        """What a request is checked against."""
        return NodeTerms(self.name, self.mode, self.unit, max_pods=self.max_pods)


@dataclass(frozen=True, slots=True)
class PodHold:
    """What one pod holds of a node's cards, or is about to.

    Attributes:
        pod: Whose it is.
        by_container: Index in `spec.containers` -> card index -> share.
        extra: Card index -> what init containers and sidecars hold beside that.
        unplaced: Demands that have no card yet: the node will choose for each.
        is_exclusive: Whether no other pod may be on its cards.
    """

    pod: PodRef
    by_container: Mapping[int, Mapping[int, Share]] = field(default_factory=dict)
    extra: Mapping[int, Share] = field(default_factory=dict)
    unplaced: tuple[Demand, ...] = ()
    is_exclusive: bool = False

    def by_card(self) -> dict[int, Share]:
        """What it holds of each card, over all containers."""
        found: dict[int, Share] = {}
        for shares in (*self.by_container.values(), self.extra):
            for card, (units, percent) in shares.items():
                before = found.get(card, (0, 0))
                found[card] = (before[0] + units, before[1] + percent)
        return found


def parse_offer(
    name: str, annotation: str, labels: Mapping[str, str], unhealthy: Iterable[int] = ()
) -> NodeOffer:
    """What a node offers.

    Args:
        name: The node.
        annotation: Value of `gpu-device-plugin/cards`.
        labels: The node's labels.
        unhealthy: Indexes of cards that an operator's ConfigMap takes out (R-542).

    Raises:
        StateError: The annotation is none that an agent writes; the text names the key.
    """
    plain = _object(annotation, "annotation of cards")
    mode = parse_mode(str(plain.get("mode", "")))
    unit = next((u for u in MemoryUnit if u.mib == plain.get("unit_mib")), None)
    if mode is None or unit is None:
        raise StateError(f"node {name}: annotation of cards names no known mode and unit")
    entries = plain.get("cards")
    if not isinstance(entries, list):
        raise StateError(f"node {name}: annotation of cards has no list of cards")
    cards, healthy = [], set()
    for entry in entries:
        card, is_healthy = _card(name, entry)
        cards.append(card)
        if is_healthy and card.index not in unhealthy:
            healthy.add(card.index)
    return NodeOffer(
        name=name,
        mode=mode,
        unit=unit,
        cards=tuple(sorted(cards, key=lambda card: card.index)),
        healthy=frozenset(healthy),
        policy=parse_policy(labels.get(PLACEMENT_LABEL, "")),
        max_pods=parse_max_pods(labels.get(MAX_PODS_LABEL, "")),
    )


def _card(node: str, entry: object) -> tuple[Card, bool]:
    if isinstance(entry, dict):
        index, uuid, memory = entry.get("index"), entry.get("uuid"), entry.get("memory_mib")
        if isinstance(index, int) and isinstance(uuid, str) and isinstance(memory, int):
            model = str(entry.get("model", ""))
            return Card(uuid, index, index, -1, model, memory), entry.get("healthy") is True
    raise StateError(f"node {node}: annotation of cards has {entry!r}, which is no card")


def hold_of(pod: PodRequest, annotations: Mapping[str, str]) -> PodHold:
    """What a pod that is bound to a node holds there, or will.

    Annotations count for a container where they add up to what it asks. What has no card in them
    (the agent has not granted it yet, and nobody wished one) stays unplaced. They name app
    containers only: what sidecars and init containers hold is taken to be on the first card.
    """
    memory, compute = _shares(annotations, ALLOCATION), _shares(annotations, CORE_ALLOCATION)
    cards = _card_count(pod)
    placed: dict[int, dict[int, Share]] = {}
    unplaced: list[Demand] = []
    for container in (c for c in pod.containers if c.asks and c.kind is ContainerKind.APP):
        units, percent = container.amount(Resource.MEM), container.amount(Resource.CORE)
        told = memory.get(container.index, {})
        if told and sum(told.values()) == units and min(told.values()) > 0:
            percents = compute.get(container.index, {})
            placed[container.index] = {
                card: (part, percent if card in percents else 0) for card, part in told.items()
            }
        else:
            unplaced.append(Demand(units, percent, cards if units % cards == 0 else 1))
    beside = [
        Demand(c.amount(Resource.MEM), c.amount(Resource.CORE))
        for c in pod.containers
        if c.asks and c.kind is ContainerKind.SIDECAR
    ]
    first = next(iter(placed.values()), {})
    alone = wants_whole_card(pod)
    if not first:
        waiting = (*unplaced, *beside, *_init_demands(pod, unplaced))
        return PodHold(pod.ref, placed, {}, waiting, is_exclusive=alone)
    card = next(iter(first))
    hold = PodHold(pod.ref, placed, {}, tuple(unplaced))
    units, percent = hold.by_card()[card]
    init = _largest_init(pod)
    extra = (
        max(0, init.mem_units - units) + sum(d.mem_units for d in beside),
        max(0, init.core_percent - percent) + sum(d.core_percent for d in beside),
    )
    return replace(hold, extra={card: extra} if any(extra) else {}, is_exclusive=alone)


def _largest_init(pod: PodRequest) -> Demand:
    """What the ordinary init containers hold: the kubelet lets the pod keep it till its end."""
    init = [c for c in pod.containers if c.kind is ContainerKind.INIT]
    return Demand(
        max((c.amount(Resource.MEM) for c in init), default=0),
        max((c.amount(Resource.CORE) for c in init), default=0),
    )


def _init_demands(pod: PodRequest, apps: Sequence[Demand]) -> tuple[Demand, ...]:
    """What init containers hold beyond what the pod's app containers take over."""
    init = _largest_init(pod)
    units = max(0, init.mem_units - sum(d.mem_units for d in apps))
    percent = max(0, init.core_percent - sum(d.core_percent for d in apps))
    return (Demand(units, percent),) if units or percent else ()


def _card_count(pod: PodRequest) -> int:
    text = pod.card_count_label or "1"
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < 4 else 1


def wish_annotations(hold: PodHold, now_ns: int) -> dict[str, str]:
    """The wish for a pod that is about to be bound (R-540): version 2, and 1 where it can say it.

    Args:
        hold: The cards for the pod.
        now_ns: Wall clock.
    """
    values = {
        ALLOCATION: _amounts(hold, 0),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
    }
    by_card = hold.by_card()
    if any(percent for _, percent in by_card.values()):
        values[CORE_ALLOCATION] = _amounts(hold, 1)
    if len(by_card) == len(hold.by_container) == 1:
        values |= {V1_INDEX: str(next(iter(by_card))), V1_ASSIGNED: "false"}
        values[V1_ASSUME_TIME] = str(now_ns)
    return values


def _amounts(hold: PodHold, position: int) -> str:
    plain = {
        str(container): {str(card): share[position] for card, share in shares.items()}
        for container, shares in sorted(hold.by_container.items())
    }
    return json.dumps(plain, separators=(",", ":"))


def _shares(annotations: Mapping[str, str], key: str) -> dict[int, dict[int, int]]:
    """Container -> card -> amount; an annotation that cannot be read says nothing."""
    try:
        plain = _object(annotations.get(key, "{}"), key)
        return {
            int(container): {int(card): int(amount) for card, amount in cards.items()}
            for container, cards in plain.items()
            if isinstance(cards, dict)
        }
    except (StateError, ValueError, TypeError, OverflowError):
        return {}


def _object(text: str, what: str) -> Mapping[str, object]:
    try:
        plain: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{what} is no JSON: {error}") from error
    if not isinstance(plain, dict):
        raise StateError(f"{what} is {type(plain).__name__}, wanted an object")
    return plain
