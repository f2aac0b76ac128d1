"""What nodes offer and pods hold by their annotations, and the wish for a pod's cards.

Amounts only: unit ids are the node's own.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.domain.annotations import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CORE_ALLOCATION,
    V1_ASSIGNED,
    V1_INDEX,
)
from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.modes import (
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
    parse_mode,
    parse_policy,
)
from gpu_device_plugin.domain.pods import ContainerKind, PodRef, PodRequest
from gpu_device_plugin.domain.requests import Demand, NodeTerms
from gpu_device_plugin.domain.units import MemoryUnit, Resource
from gpu_device_plugin.errors import StateError

V1_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
MAX_PODS_LABEL = "ack.node.gpu.max-pod"


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
        return NodeTerms(self.name, self.mode, self.unit)


Share = tuple[int, int]
"""Memory units and percent of compute on one card."""


@dataclass(frozen=True, slots=True)
class PodHold:
    """What one pod holds of a node's cards, or is about to.

    Attributes:
        pod: Whose it is.
        by_container: Index in `spec.containers` -> card index -> share.
        unplaced: Demands that have no card yet: the node will choose one for each.
    """

    pod: PodRef
    by_container: Mapping[int, Mapping[int, Share]] = field(default_factory=dict)
    unplaced: tuple[Demand, ...] = ()

    def by_card(self) -> dict[int, Share]:
        """What it holds of each card, over all containers."""
        found: dict[int, Share] = {}
        for shares in self.by_container.values():
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
    label = labels.get(MAX_PODS_LABEL, "")
    return NodeOffer(
        name=name,
        mode=mode,
        unit=unit,
        cards=tuple(sorted(cards, key=lambda card: card.index)),
        healthy=frozenset(healthy),
        policy=parse_policy(labels.get(PLACEMENT_LABEL, "")),
        max_pods=int(label) if label.isascii() and label.isdecimal() else None,
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

    What has no card in the annotations (neither granted by the agent nor wished by a scheduler)
    stays unplaced. The annotations name app containers only; what a sidecar holds is unplaced too.
    """
    memory, compute = _shares(annotations, ALLOCATION), _shares(annotations, CORE_ALLOCATION)
    placed = {
        container: {
            card: (units, compute.get(container, {}).get(card, 0)) for card, units in cards.items()
        }
        for container, cards in memory.items()
    }
    unplaced = tuple(
        Demand(c.amount(Resource.MEM), c.amount(Resource.CORE))
        for c in pod.containers
        if c.asks
        and (
            c.kind is ContainerKind.SIDECAR
            or (c.kind is ContainerKind.APP and c.index not in placed)
        )
    )
    return PodHold(pod.ref, placed, unplaced)


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
    except (StateError, ValueError, TypeError):
        return {}


def _object(text: str, what: str) -> Mapping[str, object]:
    try:
        plain: object = json.loads(text)
    except ValueError as error:
        raise StateError(f"{what} is no JSON: {error}") from error
    if not isinstance(plain, dict):
        raise StateError(f"{what} is {type(plain).__name__}, wanted an object")
    return plain
