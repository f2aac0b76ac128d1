"""The cards of a whole cluster: what is free of each, on which node a pod fits, and how well.

Amounts only: unit ids are the node's own. What a node offers comes from its annotation of cards,
what a pod holds from the pod's annotations, or from its spec while it has none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.cards.card import Card, CardIndex
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.demands import demands, policy_of
from gpu_device_plugin.domain.fractions.fragmentation import NodeRoom, grade_placement
from gpu_device_plugin.domain.fractions.no_room import NoRoom
from gpu_device_plugin.domain.fractions.placement import (
    Placement,
    cards_for_all,
    place,
    scores_by_fullness,
)
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.fractions.processors import PLENTY_CPU_MILLI
from gpu_device_plugin.domain.fractions.room import Room, room_of
from gpu_device_plugin.domain.fractions.units import CORE_UNITS_PER_CARD, Resource, resources_of
from gpu_device_plugin.domain.grants.grant import Demand, UnitsAndPercent
from gpu_device_plugin.domain.grants.init_containers import ContainerSums, demands_ahead
from gpu_device_plugin.domain.grants.ledger import DeviceUse
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import RequestError


@dataclass(slots=True)
class _CountedDown:
    """What a card has left, counted down with each share that is taken."""

    room: Room
    pods: set[PodRef] = field(default_factory=set)

    def take(self, hold: PodHold, share: UnitsAndPercent) -> None:
        is_new = hold.pod not in self.pods
        self.pods.add(hold.pod)
        self.room = self.room.without(*share, int(is_new), is_closed=hold.is_exclusive)


def node_rooms(offer: NodeOffer, holds: Iterable[PodHold]) -> tuple[Room, ...]:
    """What each card of a node has left.

    Unplaced demands are put where the node's own policy would put them, the first pod first; where
    none has room, on the emptiest cards: somebody holds them, whatever we know. They are never on a
    node that gives its cards by claims. What claims hold of those its agent says.
    """
    empty = (
        room_of(card, DeviceUse(), offer.terms, is_healthy=card.index in offer.healthy)
        for card in offer.cards
    )
    counted = {room.card.index: _CountedDown(room) for room in empty}
    for held in offer.claimed:
        room = counted[held.index].room
        counted[held.index].room = room.without(held.units, held.percent, held.pods)
    waiting: list[tuple[PodHold, Demand]] = []
    for hold in holds:
        if hold.is_by_claims:
            continue
        for index, share in hold.by_card().items():
            if index in counted:
                counted[index].take(hold, share)
            else:
                waiting.append((hold, Demand(*share)))
        waiting += [(hold, needed) for needed in hold.unplaced]
    for hold, needed in () if offer.is_by_claims else waiting:
        # Counted down card by card: counting all again for each would take the square of the time.
        rooms = [each.room for each in counted.values()]
        for index in _guess_cards(rooms, replace(needed, is_exclusive=hold.is_exclusive), offer):
            counted[index].take(hold, needed.amounts_per_card)
    return tuple(each.room for each in counted.values())


def _guess_cards(rooms: Sequence[Room], needed: Demand, offer: NodeOffer) -> Sequence[CardIndex]:
    placed = place(rooms, needed, offer.policy or PlacementPolicy.BINPACK)
    if not isinstance(placed, NoRoom):
        return [card.index for card in placed.cards]
    emptiest = sorted(rooms, key=lambda room: (-room.free_mem, room.card.index))
    return [room.card.index for room in emptiest[: needed.cards]]


@dataclass(frozen=True, slots=True)
class Score:
    """How good a node is; more is better, 1 is the best. By `fgd` it can be below 0.

    Attributes:
        policy: By which the node chooses.
        own: By that policy; compares with nodes of the same policy only.
        common: By the default; compares with every node.
    """

    policy: PlacementPolicy
    own: float
    common: float


NOT_MATCHED_TEXT = "node(s) owns gpu resources are not matched that pod requests"
FULL_OF_PODS_TEXT = "The number of pods per gpu device has reached the maximum allowed"
NOT_ENOUGH_TEXT = "node(s) didn't have enough device resources to allocate"
OTHER_API_TEXT = "node(s) give their cards through claims only"
_NO_RESOURCE_TEXT = "none(s) should have at least one resource in [{names}]"
_NEVER_TEXT = "node(s) never serve what the pod asks for: "
OTHER_MODE = frozenset({"WrongMode", "MemoryOnly", "ComputeNotServed"})
"""Reasons of refusals by the node's mode: a node of another mode would take the pod."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """A container that asks: what it needs, alone and with those that reuse its units.

    `ahead` is None where it reuses units itself: it is bound to their card, whatever follows.
    """

    container: ContainerRequest
    needed: Demand
    ahead: Demand | None


@dataclass(frozen=True, slots=True)
class Fit:
    """A pod fits a node, and would hold this there."""

    score: Score
    hold: PodHold


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pod does not fit a node, as the scheduler shows it; `is_final`: no pod that leaves can change it."""

    text: str
    is_final: bool


def fit(
    offer: NodeOffer,
    rooms: Sequence[Room],
    pod: PodRequest,
    default: PlacementPolicy,
    free_cpu_milli: int = PLENTY_CPU_MILLI,
) -> Fit | Misfit:
    """Whether and how well a pod fits a node.

    Every container gets one card (with the label, as many as it says); the pod's containers may
    lie on different cards. What ordinary init containers hold is handed on to those after them.

    `default` is for cards and nodes where neither pod nor node says. `free_cpu_milli`, which no other
    pod requests, counts for how good the node is by `fgd`, and never for whether the pod fits.
    """
    asked = RequestChecks(pod, default).of(offer)
    return asked if isinstance(asked, Misfit) else try_rooms(offer, rooms, asked, free_cpu_milli)


def rules_of(offer: NodeOffer) -> object:
    """What nodes have in common by whose rules a pod is checked once."""
    return offer.mode, offer.policy, offer.allocation_api


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A pod that breaks no rule of the nodes of one mode and policy."""

    pod: PodRequest
    policy: PlacementPolicy
    default: PlacementPolicy
    asking: Sequence[_Ask]


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """The first half of `fit`: what does not depend on what a node's cards have left.

    A pod is checked once for all nodes of one mode, policy and allocation API.
    """

    pod: PodRequest
    default: PlacementPolicy
    _found: dict[object, CheckedRequest | Misfit] = field(default_factory=dict)

    def of(self, offer: NodeOffer) -> CheckedRequest | Misfit:
        """The pod by the rules of nodes as this one."""
        rules = rules_of(offer)
        if rules not in self._found:
            self._found[rules] = self._check(offer)
        return self._found[rules]

    def _check(self, offer: NodeOffer) -> CheckedRequest | Misfit:
        pod, default = self.pod, self.default
        if not resources_of(offer.mode):
            asked = {str(r) for c in pod.containers for r in Resource if c.amount(r)}
            names = ", ".join(sorted(asked))
            return Misfit(_NO_RESOURCE_TEXT.format(names=names), is_final=True)
        try:
            policy = policy_of(pod, offer.policy or default)
            needs = demands(pod, offer.terms)
        except RequestError as error:
            is_mode = error.reason in OTHER_MODE
            # The words of the source without our cure, which is long for thousands of nodes.
            why = error.rule.partition(";")[0] if error.reason == "UnevenShare" else ""
            never = f"{_NEVER_TEXT}{error.reason}{why and ': ' + why}"
            text = NOT_MATCHED_TEXT if is_mode else never
            return Misfit(text, is_final=True)
        if offer.allocation_api is not pod.allocation_api:
            return Misfit(OTHER_API_TEXT, is_final=True)
        ahead = demands_ahead(needs)
        asking = [_Ask(*need, later) for need, later in zip(needs, ahead, strict=True)]
        return CheckedRequest(pod, policy, default, asking)


def try_rooms(
    offer: NodeOffer, rooms: Sequence[Room], asked: CheckedRequest, free_cpu_milli: int
) -> Fit | Misfit:
    """The other half of `fit`.

    Whichever card has which number: nodes whose cards have the same left get the same score.
    """
    rooms = sorted(rooms, key=lambda room: room.amounts)
    trial = _place_all(offer, rooms, asked)
    if isinstance(trial, Misfit):
        return trial
    score = _score(asked, rooms, trial, free_cpu_milli)
    return Fit(score, PodHold.by_sums(asked.pod, trial.sums))


def _score(
    asked: CheckedRequest, before: Sequence[Room], trial: "_Trial", free_cpu_milli: int
) -> Score:
    """The node's score: how full (binpack) or empty (spread) the pod's cards are with it, or how little it spoils (fgd)."""
    chosen = [room for room in trial.rooms if room.card.uuid in trial.uuids]
    free = sum(r.free_mem for r in chosen) / max(1, sum(r.card.capacity(r.unit) for r in chosen))
    by_policy = scores_by_fullness(free)
    if PlacementPolicy.FGD in (asked.policy, asked.default):
        left_cpu_milli = free_cpu_milli - asked.pod.cpu_milli
        as_is = NodeRoom(free_cpu_milli, tuple(room.free_milli for room in before))
        after = NodeRoom(left_cpu_milli, tuple(room.free_milli for room in trial.rooms))
        by_policy[PlacementPolicy.FGD] = grade_placement(as_is, after) / 100
    return Score(asked.policy, by_policy[asked.policy], by_policy[asked.default])


def _place_all(offer: NodeOffer, rooms: Sequence[Room], asked: CheckedRequest) -> "_Trial | Misfit":
    """All containers placed: one after the other, as the node does it, else by a search."""
    trial, asking = _Trial(tuple(rooms)), asked.asking
    for ask in asking:
        placed = trial.place(ask, asked.policy)
        if isinstance(placed, NoRoom):
            break
        trial.take_on(ask, placed.cards)
    else:
        return trial
    text = FULL_OF_PODS_TEXT if _is_full_of_pods(rooms, asked) else NOT_ENOUGH_TEXT
    refused = Misfit(text, is_final=_is_too_much(offer, asked))
    if refused.is_final or len(asking) == 1:
        return refused
    chosen = cards_for_all(rooms, [(a.container.kind, a.needed) for a in asking], asked.policy)
    if chosen is None:
        return refused
    trial = _Trial(tuple(rooms))
    for ask, on in zip(asking, chosen, strict=True):
        trial.take_on(ask, [room.card for room in on])
    return trial


def _is_full_of_pods(rooms: Sequence[Room], asked: CheckedRequest) -> bool:
    """Whether each container would fit if cards took more pods than they do."""
    free = [replace(room, max_pods=None) for room in rooms]
    return any(room.is_full_of_pods for room in rooms) and all(
        sum(room.lack(ask.needed) is None for room in free) >= ask.needed.cards
        for ask in asked.asking
    )


def _is_too_much(offer: NodeOffer, asked: CheckedRequest) -> bool:
    """Whether the empty node could not serve it: a container, or all app containers by their sums."""
    serving = [card for card in offer.cards if card.index in offer.healthy]
    sizes = [size for card in serving if (size := card.capacity(offer.unit))]
    return (
        offer.max_pods == 0
        or any(
            sum(size >= ask.needed.units_per_card for size in sizes) < ask.needed.cards
            for ask in asked.asking
        )
        or asked.pod.app_amount(Resource.MEM) > sum(sizes)
        or asked.pod.app_amount(Resource.CORE) > CORE_UNITS_PER_CARD * len(sizes)
    )


@dataclass(slots=True)
class _Trial:
    """A pod's containers placed so far; it grows with each of them."""

    rooms: tuple[Room, ...]
    sums: ContainerSums = field(default_factory=ContainerSums)
    uuids: tuple[str, ...] = ()

    def place(self, ask: _Ask, policy: PlacementPolicy) -> Placement | NoRoom:
        """The cards of the next container, as the node would choose them: first those that it reuses."""
        reusable = {index: share for index, share in self.sums.reusable.items() if any(share)}
        rooms = [
            replace(
                room,
                free_mem=Units(room.free_mem + mine.units),
                free_core=room.free_core + mine.percent,
            )
            if (mine := reusable.get(room.card.index))
            else room
            for room in self.rooms
        ]
        must = frozenset(room.card.number for room in rooms if room.card.index in reusable)
        return place(rooms, ask.needed, policy, ahead=ask.ahead, prefer=self.uuids, must=must)

    def take_on(self, ask: _Ask, cards: Sequence[Card]) -> None:
        shares = dict.fromkeys((card.index for card in cards), ask.needed.amounts_per_card)
        new = self.sums.add(ask.container, shares)
        self.rooms = tuple(
            replace(room.without(*new[room.card.index], int(not room.holds_pod)), holds_pod=True)
            if room.card.index in new
            else room
            for room in self.rooms
        )
        self.uuids = tuple(dict.fromkeys((*self.uuids, *(card.uuid for card in cards))))
