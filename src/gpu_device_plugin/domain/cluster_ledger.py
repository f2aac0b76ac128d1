"""The cards of a whole cluster: what is free of each, and on which node a pod fits.

Amounts only: unit ids are the node's own. What a node offers comes from its annotation of cards,
what a pod holds from the pod's annotations, or from its spec while it has none.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    MAX_PODS_PER_CARD,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
    is_isolated,
    parse_mode,
    parse_policy,
    resources_of,
)
from gpu_device_plugin.domain.placement import NoRoom, Room, place
from gpu_device_plugin.domain.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.requests import CORE_STEP_PERCENT, Demand, NodeTerms, demand
from gpu_device_plugin.domain.units import CORE_UNITS_PER_CARD, MemoryUnit, Resource
from gpu_device_plugin.errors import RequestError, StateError

NOT_MATCHED_TEXT = "node(s) owns gpu resources are not matched that pod requests"
NOT_ENOUGH_TEXT = "node(s) didn't have enough device resources to allocate"
_NO_RESOURCE_TEXT = "none(s) should have at least one resource in [{names}]"
V1_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
MAX_PODS_LABEL = "ack.node.gpu.max-pod"
_OTHER_MODE = frozenset({"WrongMode", "MemoryOnly", "ComputeNotServed"})


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


@dataclass(frozen=True, slots=True)
class Fit:
    """A pod fits a node.

    Attributes:
        score: 0 to 1, more is better; comparable between nodes.
        hold: What the pod would hold there.
    """

    score: float
    hold: PodHold


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pod does not fit a node.

    Attributes:
        text: Why, as the scheduler shows it.
        is_final: Whether no pod that leaves can change it.
    """

    text: str
    is_final: bool


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

    What has no card in the annotations (the agent has not granted it yet, and nobody wished one)
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
        Demand(c.mem_units, c.core_percent)
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
        hold: The cards that the pod shall have.
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


def node_rooms(offer: NodeOffer, holds: Iterable[PodHold]) -> tuple[Room, ...]:
    """What each card of a node has left.

    Unplaced demands are put where the node's own policy would put them, the first pod first.
    """
    used = {card.index: [0, 0] for card in offer.cards}
    tenants: dict[int, set[PodRef]] = {card.index: set() for card in offer.cards}
    waiting = []
    for hold in holds:
        for index, (units, percent) in hold.by_card().items():
            if index in used:
                used[index][0] += units
                used[index][1] += percent
                tenants[index].add(hold.pod)
        waiting += [(hold.pod, needed) for needed in hold.unplaced]
    rooms = tuple(_room(offer, card, used[card.index], tenants[card.index]) for card in offer.cards)
    for _, needed in waiting:
        found = place(rooms, needed, offer.policy or PlacementPolicy.BINPACK)
        if not isinstance(found, NoRoom):
            rooms = _taken(rooms, found.cards, needed, is_new_pod=True)
    return rooms


def _room(offer: NodeOffer, card: Card, used: Sequence[int], tenants: Iterable[PodRef]) -> Room:
    limits = [MAX_PODS_PER_CARD] if is_isolated(offer.mode) else []
    limits += [offer.max_pods] if offer.max_pods is not None else []
    return Room(
        card=card,
        is_healthy=card.index in offer.healthy,
        free_mem=max(0, card.capacity(offer.unit) - used[0]),
        free_core=max(0, CORE_UNITS_PER_CARD - used[1]),
        pods=len(set(tenants)),
        holds_pod=False,
        unit=offer.unit,
        max_pods=min(limits, default=None),
        least_core=CORE_STEP_PERCENT if Resource.CORE in resources_of(offer.mode) else 0,
    )


def _taken(
    rooms: Iterable[Room], cards: Iterable[Card], needed: Demand, *, is_new_pod: bool
) -> tuple[Room, ...]:
    numbers = {card.number for card in cards}
    return tuple(
        replace(
            room,
            free_mem=max(0, room.free_mem - needed.units_per_card),
            free_core=max(0, room.free_core - needed.core_percent),
            pods=room.pods + is_new_pod,
            holds_pod=not is_new_pod,
        )
        if room.card.number in numbers
        else room
        for room in rooms
    )


def fit(
    offer: NodeOffer, rooms: Sequence[Room], pod: PodRequest, policy: PlacementPolicy
) -> Fit | Misfit:
    """Whether and how well a pod fits a node.

    Every container gets one card (with the label, as many as it says); the pod's containers may
    lie on different cards. What ordinary init containers hold is handed on, so each of them is
    placed beside the sidecars before it only.

    Args:
        offer: The node.
        rooms: What its cards have left.
        pod: Who asks.
        policy: How cards and nodes are chosen.
    """
    if not resources_of(offer.mode):
        names = ", ".join(sorted(_asked(pod)))
        return Misfit(_NO_RESOURCE_TEXT.format(names=names), is_final=True)
    placed: dict[int, dict[int, Share]] = {}
    used: dict[str, None] = {}
    left = tuple(rooms)
    for container in (c for c in pod.containers if c.asks):
        found = _placed(offer, left, pod, container, policy, tuple(used))
        if isinstance(found, Misfit):
            return found
        needed, cards = found
        if container.kind is ContainerKind.INIT:
            continue
        left = _taken(left, cards, needed, is_new_pod=False)
        used.update(dict.fromkeys(card.uuid for card in cards))
        if container.kind is ContainerKind.APP:
            share = (needed.units_per_card, needed.core_percent)
            placed[container.index] = {card.index: share for card in cards}
    return Fit(_score(left, used, policy), PodHold(pod.ref, placed))


def _placed(  # noqa: PLR0913, PLR0917 - a container, its node, and who may say where
    offer: NodeOffer,
    rooms: Sequence[Room],
    pod: PodRequest,
    container: ContainerRequest,
    policy: PlacementPolicy,
    prefer: Sequence[str],
) -> tuple[Demand, tuple[Card, ...]] | Misfit:
    try:
        needed = demand(pod, container, offer.terms)
    except RequestError as error:
        text = NOT_MATCHED_TEXT if error.reason in _OTHER_MODE else str(error)
        return Misfit(text, is_final=True)
    found = place(rooms, needed, policy, prefer=prefer)
    if isinstance(found, NoRoom):
        whole = [card for card in offer.cards if card.index in offer.healthy]
        could = sum(card.capacity(offer.unit) >= needed.units_per_card for card in whole)
        return Misfit(NOT_ENOUGH_TEXT, is_final=could < needed.cards)
    return needed, found.cards


def _asked(pod: PodRequest) -> set[str]:
    return {str(r) for c in pod.containers for r in Resource if c.amount(r)}


def _score(rooms: Iterable[Room], uuids: Iterable[str], policy: PlacementPolicy) -> float:
    """How full (binpack) or empty (spread) the pod's cards are with it on them, 0 to 1."""
    chosen = frozenset(uuids)
    parts = [
        room.free_mem / max(1, room.card.capacity(room.unit))
        for room in rooms
        if room.card.uuid in chosen
    ]
    free = sum(parts) / max(1, len(parts))
    return free if policy is PlacementPolicy.SPREAD else 1.0 - free
