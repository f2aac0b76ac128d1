"""The cards of a whole cluster: what is free of each, and on which node a pod fits.

Amounts only: unit ids are the node's own. What a node offers comes from its annotation of cards,
what a pod holds from the pod's annotations, or from its spec while it has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.fragmentation import PLENTY_CPU_MILLI
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.pods import ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import NodeOffer, PodHold
from gpu_device_plugin.domain.schemes.aliyun.node_score import Score, scored
from gpu_device_plugin.domain.schemes.aliyun.placement import NoRoom, Placement, place
from gpu_device_plugin.domain.schemes.aliyun.pod_take import (
    NOTHING,
    PodTake,
    Share,
    Shares,
    one_copy,
)
from gpu_device_plugin.domain.schemes.aliyun.requests import (
    demands,
    demands_ahead,
    policy_of,
    wants_whole_card,
)
from gpu_device_plugin.domain.schemes.aliyun.room import Room
from gpu_device_plugin.domain.schemes.aliyun.second_try import cards_for_all
from gpu_device_plugin.domain.schemes.aliyun.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.domain.shares import Demand
from gpu_device_plugin.errors import RequestError

NOT_MATCHED_TEXT = "node(s) owns gpu resources are not matched that pod requests"
NOT_ENOUGH_TEXT = "node(s) didn't have enough device resources to allocate"
OTHER_DOOR_TEXT = "node(s) give their cards through claims only (docs/dra.md)"
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
    """A pod fits a node.

    Attributes:
        score: How good the node is for it.
        shares: What the app containers would hold: container -> card index -> share.
        extra: Card index -> what sidecars and init containers would hold beside that.
        inits: Sidecars and init containers alone: container -> card index -> share.
        is_exclusive: Whether no other pod may be on its cards.
    """

    score: Score
    shares: Mapping[int, Shares]
    extra: Shares = field(default_factory=dict)
    inits: Mapping[int, Shares] = field(default_factory=dict)
    is_exclusive: bool = False

    def beside(self, free_cpu_milli: int, pod_cpu_milli: int) -> "Fit":
        """The same where the node has this much processor free, and the pod takes that of it."""
        return replace(self, score=self.score.beside(free_cpu_milli, pod_cpu_milli))

    def hold(self, pod: PodRef) -> PodHold:
        """What the pod will hold there."""
        alone = self.is_exclusive
        return PodHold(pod, self.shares, self.extra, inits=self.inits, is_exclusive=alone)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pod does not fit a node.

    Attributes:
        text: Why, as the scheduler shows it.
        is_final: Whether no pod that leaves can change it.
    """

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

    Args:
        offer: The node.
        rooms: What its cards have left.
        pod: Who asks.
        default: How cards and nodes are chosen, where neither the pod nor the node says.
        free_cpu_milli: Processor of the node that no other pod requests, in thousandths of a core;
            it counts for how good the node is by `fgd`, and never for whether the pod fits.
    """
    asking = checked(offer, pod, default)
    found = asking if isinstance(asking, Misfit) else tried(offer, rooms, asking)
    return found if isinstance(found, Misfit) else found.beside(free_cpu_milli, pod.cpu_milli)


@dataclass(frozen=True, slots=True)
class Checked:
    """A pod that breaks no rule of the nodes of one mode, unit, bound and policy."""

    pod: PodRequest
    policy: PlacementPolicy
    default: PlacementPolicy
    asking: Sequence[_Ask]


def checked(offer: NodeOffer, pod: PodRequest, default: PlacementPolicy) -> Checked | Misfit:
    """The first half of `fit`: what does not depend on what the node's cards have left."""
    if not offer.has_slices:
        names = ", ".join(sorted(_asked(pod)))
        return Misfit(_NO_RESOURCE_TEXT.format(names=names), is_final=True)
    try:
        policy = policy_of(pod, offer.policy or default)
        needs = demands(pod, offer.terms)
    except RequestError as error:
        is_mode = error.reason in OTHER_MODE
        text = NOT_MATCHED_TEXT if is_mode else f"{_NEVER_TEXT}{error.reason}"
        return Misfit(text, is_final=True)
    ahead = demands_ahead(needs)
    asking = [_Ask(*need, later) for need, later in zip(needs, ahead, strict=True)]
    return Checked(pod, policy, default, asking)


def tried(offer: NodeOffer, rooms: Sequence[Room], asked: Checked) -> Fit | Misfit:
    """The other half of `fit`, on a node with plenty of processor.

    Whichever card has which number: nodes whose cards have the same left get the same score.
    """
    pod, policies = asked.pod, (asked.policy, asked.default)
    rooms = sorted(rooms, key=lambda room: room.amounts)
    trial = _placed(offer, rooms, asked)
    if isinstance(trial, Misfit):
        return trial
    score = scored(rooms, trial.rooms, frozenset(trial.uuids), policies)
    alone = wants_whole_card(pod)
    shares, inits = one_copy(trial.take.apps), one_copy(trial.take.inits)
    extra = one_copy({0: trial.take.extra()})[0]
    return Fit(score, shares, extra, inits, is_exclusive=alone)


def _placed(offer: NodeOffer, rooms: Sequence[Room], asked: Checked) -> "_Trial | Misfit":
    """All containers placed: one after the other, as the node does it, else by a search."""
    trial, asking = _Trial(tuple(rooms)), asked.asking
    for ask in asking:
        found = trial.place(ask, asked.policy)
        if isinstance(found, NoRoom):
            break
        trial.take_on(ask, found.cards)
    else:
        return trial
    if rooms and all(room.is_behind_other_door for room in rooms):
        return Misfit(OTHER_DOOR_TEXT, is_final=True)
    refused = Misfit(NOT_ENOUGH_TEXT, is_final=_is_too_much(offer, asked.pod, ask.needed))
    if refused.is_final or len(asking) == 1:
        return refused
    chosen = cards_for_all(rooms, [(a.container.kind, a.needed) for a in asking], asked.policy)
    if chosen is None:
        return refused
    trial = _Trial(tuple(rooms))
    for ask, on in zip(asking, chosen, strict=True):
        trial.take_on(ask, [room.card for room in on])
    return trial


def _is_too_much(offer: NodeOffer, pod: PodRequest, needed: Demand) -> bool:
    """Whether the empty node could not serve it: this container, or all app containers by their sums."""
    sizes = [card.capacity(offer.unit) for card in offer.cards if card.index in offer.healthy]
    return (
        offer.max_pods == 0
        or sum(size >= needed.units_per_card for size in sizes) < needed.cards
        or pod.app_amount(Resource.MEM) > sum(sizes)
        or pod.app_amount(Resource.CORE) > CORE_UNITS_PER_CARD * len(sizes)
    )


@dataclass(slots=True)
class _Trial:
    """A pod's containers placed so far; it grows with each of them.

    Attributes:
        rooms: What the cards have left.
        take: What the containers have taken.
        uuids: The cards in the order of their first use.
    """

    rooms: tuple[Room, ...]
    take: PodTake = field(default_factory=PodTake)
    uuids: tuple[str, ...] = ()

    def place(self, ask: _Ask, policy: PlacementPolicy) -> Placement | NoRoom:
        """The cards of the next container, as the node would choose them."""
        # The kubelet hands init containers' units on before it takes others: those cards come first.
        kept = [room.card for room in self.rooms if any(self._kept(room))]
        must = frozenset(card.number for card in kept)
        rooms = self._seen() if must else self.rooms
        return place(rooms, ask.needed, policy, ahead=ask.ahead, prefer=self.uuids, must=must)

    def _seen(self) -> tuple[Room, ...]:
        """The rooms as the next container finds them: what init containers hold is the pod's."""
        return tuple(
            replace(room, free_mem=room.free_mem + kept[0], free_core=room.free_core + kept[1])
            if any(kept := self._kept(room))
            else room
            for room in self.rooms
        )

    def _kept(self, room: Room) -> Share:
        """What init containers hand on of a card."""
        return self.take.kept.get(room.card.index, NOTHING)

    def take_on(self, ask: _Ask, cards: Sequence[Card]) -> None:
        """One container more."""
        share = (ask.needed.units_per_card, ask.needed.core_percent)
        shares = dict.fromkeys((card.index for card in cards), share)
        self.rooms = tuple(
            self._with(room, share) if room.card.index in shares else room for room in self.rooms
        )
        self.uuids = tuple(dict.fromkeys((*self.uuids, *(card.uuid for card in cards))))
        self.take.add(ask.container, shares)

    def _with(self, room: Room, share: Share) -> Room:
        """A room with this share of it taken, less what an init container hands on."""
        new = self.take.fresh(room.card.index, share)
        return replace(
            room,
            free_mem=room.free_mem - new[0],
            free_core=room.free_core - new[1],
            pods=room.pods if room.holds_pod else room.pods + 1,
            holds_pod=True,
        )


def _asked(pod: PodRequest) -> set[str]:
    return {str(r) for c in pod.containers for r in Resource if c.amount(r)}
