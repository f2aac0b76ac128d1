"""The cards of a whole cluster: what is free of each, and on which node a pod fits.

Amounts only: unit ids are the node's own. What a node offers comes from its annotation of cards,
what a pod holds from the pod's annotations, or from its spec while it has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.fragmentation import EVEN_MIX, PLENTY_CPU_MILLI, NodeRoom, graded
from gpu_device_plugin.domain.ledger import Use, used
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import NodeOffer, PodHold, Share
from gpu_device_plugin.domain.schemes.aliyun.modes import resources_of
from gpu_device_plugin.domain.schemes.aliyun.placement import NoRoom, place
from gpu_device_plugin.domain.schemes.aliyun.requests import demand, policy_of, wants_whole_card
from gpu_device_plugin.domain.schemes.aliyun.room import Room, room_of
from gpu_device_plugin.domain.schemes.aliyun.units import Resource
from gpu_device_plugin.domain.shares import Demand, Hold
from gpu_device_plugin.domain.shares import Share as DeviceShare
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
        shares: What the app containers would hold: container -> card index -> share.
        extra: Card index -> what sidecars and init containers would hold beside that.
        is_exclusive: Whether no other pod may be on its cards.
    """

    score: float
    shares: Mapping[int, Mapping[int, Share]]
    extra: Mapping[int, Share] = field(default_factory=dict)
    is_exclusive: bool = False

    def hold(self, pod: PodRef) -> PodHold:
        """What the pod will hold there."""
        return PodHold(pod, self.shares, self.extra, is_exclusive=self.is_exclusive)


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

    Unplaced demands are put where the node's own policy would put them, the first pod first; where
    none has room, on the emptiest cards: somebody holds them, whatever we know.
    """
    by_index = {card.index: card for card in offer.cards}
    taken: list[Hold] = []
    waiting: list[tuple[PodHold, Demand]] = []

    def take(hold: PodHold, card: Card, share: Share) -> None:
        units, percent = share
        mib = units * offer.unit.mib
        held = DeviceShare(card.uuid, None, percent, hold.is_exclusive, mib)
        taken.append(Hold(hold.pod, held))

    for hold in holds:
        for index, share in hold.by_card().items():
            if index in by_index:
                take(hold, by_index[index], share)
            else:
                waiting.append((hold, Demand(*share)))
        waiting += [(hold, needed) for needed in hold.unplaced]
    found = _rooms(offer, taken)
    for hold, needed in waiting:
        for card in _guessed(found, replace(needed, is_exclusive=hold.is_exclusive), offer):
            take(hold, card, (needed.units_per_card, needed.core_percent))
        found = _rooms(offer, taken)
    return found


def _rooms(offer: NodeOffer, holds: Iterable[Hold]) -> tuple[Room, ...]:
    use, blank = used(holds), Use()
    return tuple(
        room_of(
            card,
            use.get(card.uuid, blank),
            offer.terms,
            is_healthy=card.index in offer.healthy,
        )
        for card in offer.cards
    )


def _guessed(rooms: Sequence[Room], needed: Demand, offer: NodeOffer) -> Sequence[Card]:
    placed = place(rooms, needed, offer.policy or PlacementPolicy.BINPACK)
    if not isinstance(placed, NoRoom):
        return placed.cards
    emptiest = sorted(rooms, key=lambda room: (-room.free_mem, room.card.index))
    return [room.card for room in emptiest[: needed.cards]]


def fit(
    offer: NodeOffer, rooms: Sequence[Room], pod: PodRequest, default: PlacementPolicy
) -> Fit | Misfit:
    """Whether and how well a pod fits a node.

    Every container gets one card (with the label, as many as it says); the pod's containers may
    lie on different cards. What ordinary init containers hold is handed on to those after them.

    Args:
        offer: The node.
        rooms: What its cards have left.
        pod: Who asks.
        default: How cards and nodes are chosen, where neither the pod nor the node says.
    """
    if not resources_of(offer.mode):
        names = ", ".join(sorted(_asked(pod)))
        return Misfit(_NO_RESOURCE_TEXT.format(names=names), is_final=True)
    try:
        policy = policy_of(pod, offer.policy or default)
    except RequestError as error:
        return Misfit(f"{_NEVER_TEXT}{error.reason}", is_final=True)
    trial = _Trial(tuple(rooms))
    for container in (c for c in pod.containers if c.asks):
        found = _placed(offer, trial, pod, container, policy)
        if isinstance(found, Misfit):
            return found
        trial = trial.after(container, *found)
    extra = trial.extra()
    score = _score(rooms, trial, policy)
    return Fit(score, trial.shares, extra, is_exclusive=wants_whole_card(pod))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A pod's containers placed so far.

    Attributes:
        rooms: What the cards have left.
        kept: Card index -> what init containers hold there, for the containers after them.
        shares: App container -> card index -> share.
        uuids: The cards in the order of their first use.
        taken: Card index -> everything that was taken of it.
    """

    rooms: tuple[Room, ...]
    kept: Mapping[int, Share] = field(default_factory=dict)
    shares: Mapping[int, Mapping[int, Share]] = field(default_factory=dict)
    uuids: tuple[str, ...] = ()
    taken: Mapping[int, Share] = field(default_factory=dict)

    def seen(self) -> tuple[Room, ...]:
        """The rooms as the next container finds them: what init containers hold is the pod's."""
        return tuple(
            replace(
                room,
                free_mem=room.free_mem + self.kept.get(room.card.index, (0, 0))[0],
                free_core=room.free_core + self.kept.get(room.card.index, (0, 0))[1],
            )
            for room in self.rooms
        )

    def after(self, container: ContainerRequest, needed: Demand, cards: Sequence[Card]) -> "_Trial":
        """With one container more."""
        share = (needed.units_per_card, needed.core_percent)
        kept, taken, rooms = dict(self.kept), dict(self.taken), list(self.rooms)
        for at, room in enumerate(rooms):
            index = room.card.index
            if room.card not in cards:
                continue
            pool = kept.get(index, (0, 0))
            new = (max(0, share[0] - pool[0]), max(0, share[1] - pool[1]))
            rooms[at] = replace(
                room,
                free_mem=room.free_mem - new[0],
                free_core=room.free_core - new[1],
                pods=room.pods if room.holds_pod else room.pods + 1,
                holds_pod=True,
            )
            before = taken.get(index, (0, 0))
            taken[index] = (before[0] + new[0], before[1] + new[1])
            if container.kind is ContainerKind.INIT:
                kept[index] = (max(pool[0], share[0]), max(pool[1], share[1]))
            else:
                kept[index] = (max(0, pool[0] - share[0]), max(0, pool[1] - share[1]))
        shares = dict(self.shares)
        if container.kind is ContainerKind.APP:
            shares[container.index] = {card.index: share for card in cards}
        uuids = tuple(dict.fromkeys((*self.uuids, *(card.uuid for card in cards))))
        return _Trial(tuple(rooms), kept, shares, uuids, taken)

    def extra(self) -> dict[int, Share]:
        """What was taken beyond the app containers' shares."""
        found = dict(self.taken)
        for shares in self.shares.values():
            for card, (units, percent) in shares.items():
                before = found.get(card, (0, 0))
                found[card] = (before[0] - units, before[1] - percent)
        positive = {c: (max(0, u), max(0, p)) for c, (u, p) in found.items()}
        return {card: share for card, share in positive.items() if any(share)}


def _placed(
    offer: NodeOffer,
    trial: _Trial,
    pod: PodRequest,
    container: ContainerRequest,
    policy: PlacementPolicy,
) -> tuple[Demand, tuple[Card, ...]] | Misfit:
    try:
        needed = demand(pod, container, offer.terms)
    except RequestError as error:
        text = NOT_MATCHED_TEXT if error.reason in _OTHER_MODE else f"{_NEVER_TEXT}{error.reason}"
        return Misfit(text, is_final=True)
    # The kubelet hands init containers' units on before it takes others, so their cards come first.
    must = frozenset(index for index, share in trial.kept.items() if any(share))
    found = place(trial.seen(), needed, policy, prefer=trial.uuids, must=must)
    if isinstance(found, NoRoom):
        whole = [card for card in offer.cards if card.index in offer.healthy]
        could = sum(card.capacity(offer.unit) >= needed.units_per_card for card in whole)
        return Misfit(NOT_ENOUGH_TEXT, is_final=could < needed.cards)
    return needed, found.cards


def _asked(pod: PodRequest) -> set[str]:
    return {str(r) for c in pod.containers for r in Resource if c.amount(r)}


def _score(before: Sequence[Room], trial: _Trial, policy: PlacementPolicy) -> float:
    """How good the node is for the pod, 0 to 1.

    By how full (binpack) or empty (spread) the pod's cards are with it on them, or by how little
    it spoils the node (fgd).
    """
    if policy is PlacementPolicy.FGD:
        return graded(EVEN_MIX, _node_room(before), _node_room(trial.rooms)) / 100
    chosen = frozenset(trial.uuids)
    parts = [
        room.free_mem / max(1, room.card.capacity(room.unit))
        for room in trial.rooms
        if room.card.uuid in chosen
    ]
    free = sum(parts) / max(1, len(parts))
    return free if policy is PlacementPolicy.SPREAD else 1.0 - free


def _node_room(rooms: Iterable[Room]) -> NodeRoom:
    return NodeRoom(PLENTY_CPU_MILLI, tuple(room.free_milli for room in rooms))
