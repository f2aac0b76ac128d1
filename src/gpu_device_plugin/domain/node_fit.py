"""The cards of a whole cluster: what is free of each, and on which node a pod fits.

Amounts only: unit ids are the node's own. What a node offers comes from its annotation of cards,
what a pod holds from the pod's annotations, or from its spec while it has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.cluster_view import NodeOffer, PodHold, Share
from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.modes import (
    MAX_PODS_PER_CARD,
    PlacementPolicy,
    is_isolated,
    resources_of,
)
from gpu_device_plugin.domain.placement import NoRoom, Room, place
from gpu_device_plugin.domain.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.requests import CORE_STEP_PERCENT, Demand, demand
from gpu_device_plugin.domain.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.errors import RequestError

NOT_MATCHED_TEXT = "node(s) owns gpu resources are not matched that pod requests"
NOT_ENOUGH_TEXT = "node(s) didn't have enough device resources to allocate"
_NO_RESOURCE_TEXT = "none(s) should have at least one resource in [{names}]"
_NEVER_TEXT = "node(s) never serve what the pod asks for: "
_OTHER_MODE = frozenset({"WrongMode", "MemoryOnly", "ComputeNotServed"})


@dataclass(frozen=True, slots=True)
class Fit:
    """A pod fits a node.

    Attributes:
        score: 0 to 1, more is better; comparable between nodes.
        shares: What the pod would hold there: container -> card index -> share.
    """

    score: float
    shares: Mapping[int, Mapping[int, Share]]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pod does not fit a node.

    Attributes:
        text: Why, as the scheduler shows it.
        is_final: Whether no pod that leaves can change it.
    """

    text: str
    is_final: bool


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
    return Fit(_score(left, used, policy), placed)


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
        text = NOT_MATCHED_TEXT if error.reason in _OTHER_MODE else f"{_NEVER_TEXT}{error.reason}"
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
