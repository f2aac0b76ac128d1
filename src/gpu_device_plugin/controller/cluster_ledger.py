"""What every node's cards have left, kept from the watches and from what is being bound.

What pods were answered, kept for those that ask alike.

Pods come in many copies, and few nodes change between two of them; and of thousands of nodes many
have the same left.
"""

import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from gpu_device_plugin.domain.fractions.cluster_view import (
    NodeOffer,
    PodHold,
    hold_of,
    parse_offer,
    told_hold,
)
from gpu_device_plugin.domain.fractions.fragmentation import Processors
from gpu_device_plugin.domain.fractions.node_fit import (
    CheckedRequest,
    Fit,
    Misfit,
    Score,
    check_request,
    node_rooms,
    try_rooms,
)
from gpu_device_plugin.domain.fractions.pod_annotations import believed_holds
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.rules import MOST_CONTAINERS
from gpu_device_plugin.domain.grants.holdings import Holding, parse_holdings
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.errors import StateError
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod

Answer = Score | Misfit
_MOST_SHAPES = 64
_MOST_ANSWERS = 100_000
_MOST_KINDS = 1_000
_Asked = tuple[object, str | None, str | None, str | None, int | None]


@dataclass(slots=True)
class Answers:
    """What pods of one shape were answered.

    Attributes:
        by_node: The answer for a node, until it changes.
        by_kind: For nodes with the same left, and plenty of processor.
        by_free: The same with so much processor.
        by_rules: For nodes of one mode, unit, bound and policy, whatever they have left.
    """

    pod: PodRequest
    default: PlacementPolicy
    counts_processors: bool
    by_node: dict[str, Answer] = field(default_factory=dict)
    by_kind: dict[int, Answer] = field(default_factory=dict)
    by_free: dict[tuple[int, int], Score] = field(default_factory=dict)
    by_rules: dict[object, CheckedRequest | Misfit] = field(default_factory=dict)

    def of_kind(
        self, kind: int, offer: NodeOffer, rooms: Sequence[Room], free_milli: int | None
    ) -> Answer:
        """The answer for a node; `kind` is the same for nodes with the same left.

        `free_milli` is its free processor, or None where that does not count.
        """
        found = self.by_kind.get(kind)
        if found is None:
            found = self.by_kind[kind] = self._tried(offer, rooms)
        if isinstance(found, Misfit) or free_milli is None:
            return found
        at = kind, free_milli
        if at not in self.by_free:
            self.by_free[at] = found.beside(free_milli, self.pod.cpu_milli)
        return self.by_free[at]

    def checked(self, offer: NodeOffer) -> CheckedRequest | Misfit:
        """The pod by the rules of nodes as this one, once for all of them."""
        rules = offer.mode, offer.unit, offer.max_pods, offer.policy
        if rules not in self.by_rules:
            self.by_rules[rules] = check_request(offer, self.pod, self.default)
        return self.by_rules[rules]

    def _tried(self, offer: NodeOffer, rooms: Sequence[Room]) -> Answer:
        """The answer for a node with plenty of processor."""
        asked = self.checked(offer)
        found = asked if isinstance(asked, Misfit) else try_rooms(offer, rooms, asked)
        return found if isinstance(found, Misfit) else found.score

    def trim(self) -> None:
        """Bound what is kept beside the answers for nodes."""
        for kept in (self.by_kind, self.by_free, self.by_rules):
            if len(kept) > _MOST_KINDS:
                kept.clear()


class KeptAnswers:
    """The answers of as many shapes as are asked for lately: what was asked longest ago goes."""

    def __init__(self, default: PlacementPolicy) -> None:
        self._default = default
        self._shapes: OrderedDict[_Asked, Answers] = OrderedDict()

    def __len__(self) -> int:
        """How many there are for nodes."""
        return sum(len(answers.by_node) for answers in self._shapes.values())

    def to(self, pod: PodRequest, *, counts_processors: bool) -> Answers:
        """What pods were answered that ask as this one does."""
        # Of a pod with any number of containers so many are kept as tell that they are too many.
        asking = pod.asking[: MOST_CONTAINERS + 1]
        pod = replace(pod, containers=asking, wish=(), init_wish=())
        cpu = pod.cpu_milli if counts_processors else None
        asked = _shape(pod), pod.card_count_label, pod.placement, pod.card_label, cpu
        answers = self._shapes.get(asked)
        if answers is None:
            answers = self._shapes[asked] = Answers(pod, self._default, counts_processors)
        self._shapes.move_to_end(asked)
        answers.trim()
        while len(self._shapes) > 1 and (
            len(self._shapes) > _MOST_SHAPES or len(self) > _MOST_ANSWERS
        ):
            self._shapes.popitem(last=False)
        return answers

    def forget(self, node: str) -> None:
        """A node has changed."""
        for answers in self._shapes.values():
            answers.by_node.pop(node, None)


def _shape(pod: PodRequest) -> object:
    """What an answer depends on of a pod's containers."""
    return tuple((c.kind, c.index, frozenset(c.amounts.items())) for c in pod.containers)


_KEPT_KINDS = 1_000
_NO_CARDS = Misfit("node(s) have no cards of ours", is_final=True)
_LEFT_OUT = Misfit("node(s) have an annotation of cards that is none of an agent", is_final=True)
_log = structlog.get_logger("ledger")


class ClusterLedger:
    """One writer, the watches and bind; what a node has left is counted when it is asked for.

    Attributes:
        offers: What each node offers.
        left_out: Why a node counts as one without cards, though its annotation names some.
        kept_answers: Those for pods that ask alike.
    """

    def __init__(self, default_policy: PlacementPolicy) -> None:
        self._default_policy = default_policy
        self.processors = Processors(self._processor_changed)
        self._told: dict[str, NodeOffer] = {}
        self.left_out: dict[str, str] = {}
        self._taken_out: dict[str, frozenset[int]] = {}
        self.offers: dict[str, NodeOffer] = {}
        self._bound: dict[str, dict[PodRef, PodHold]] = {}
        self._reserved: dict[str, dict[PodRef, PodHold]] = {}
        self._node_of: dict[PodRef, str] = {}
        self._reserved_on: dict[PodRef, str] = {}
        self._reserved_milli: dict[PodRef, int] = {}
        # Nodes whose own policy asks for their processors.
        self._by_fgd: set[str] = set()
        self._pods: dict[PodRef, ClusterPod] = {}
        # What each node's agent says: by pod uid.
        self._holdings: dict[str, Mapping[str, Holding]] = {}
        # Pods whose annotations were found not to agree with their specs: each is told once.
        self._disputed: set[PodRef] = set()
        self._rooms: dict[str, tuple[Room, ...]] = {}
        # Nodes with the same left have the same number, so that few are compared in full.
        self._kinds: dict[object, int] = {}
        self._kind_of: dict[str, int] = {}
        self._numbers = itertools.count()
        self.kept_answers = KeptAnswers(default_policy)

    def node_changed(self, name: str, node: ClusterNode | None) -> None:
        """A node with cards is there, has changed, or (None) is gone or has none any more."""
        told, why_before = None, self.left_out.pop(name, None)
        self._holdings_changed(name, parse_holdings(node.holdings) if node else {})
        try:
            if node is not None:
                told = parse_offer(name, node.cards, node.labels)
        except StateError as error:
            self.left_out[name] = why = f"node {name} is left out: {error}"
            if why != why_before:  # A node is told again and again.
                _log.warning("node left out", node=name, error=str(error))
        before = self._told.pop(name, None)
        if told is not None:
            self._told[name] = told
        if told != before:
            self._offer(name)

    def _holdings_changed(self, name: str, told: Mapping[str, Holding]) -> None:
        """The agent says what its pods hold; of one that it names no more, the last word stays."""
        before, bound = self._holdings.pop(name, {}), self._bound.get(name, {})
        if told:
            self._holdings[name] = told
        for ref in bound:
            if ref.uid in told and told[ref.uid] != before.get(ref.uid):
                bound[ref] = told_hold(ref, told[ref.uid])
                self._changed(name)

    def taken_out(self, name: str, cards: frozenset[int]) -> None:
        """An operator takes these cards of a node out, and no others (R-542)."""
        self._taken_out.pop(name, None)
        if cards:
            self._taken_out[name] = cards
        self._offer(name)

    def sick(self, name: str) -> frozenset[int] | None:
        """Cards of a node that its agent found unhealthy; None where it says nothing."""
        offer = self._told.get(name)
        if offer is None:
            return None
        return frozenset(card.index for card in offer.cards) - offer.healthy

    def _offer(self, name: str) -> None:
        self._changed(name)
        self.offers.pop(name, None)
        self._by_fgd.discard(name)
        offer = self._told.get(name)
        if offer is None:
            return
        out = self._taken_out.get(name)
        self.offers[name] = replace(offer, healthy=offer.healthy - out) if out else offer
        if offer.policy is PlacementPolicy.FGD:
            self._by_fgd.add(name)

    def pod_changed(self, ref: PodRef, pod: ClusterPod | None) -> None:
        """A pod with a slice appeared, changed, or (None) ended."""
        hold = self._hold(pod) if pod and pod.node else None
        if pod and hold and self._bound.get(pod.node, {}).get(ref) == hold:
            return  # Its status has changed, or a list has it once more.
        before = self._node_of.pop(ref, None)
        if before is not None:
            _drop(self._bound, before, ref)
            self._changed(before)
        if pod is None:
            self._pods.pop(ref, None)
            self._disputed.discard(ref)
            self.release(ref)
            return
        if hold is None:
            self._pods[ref] = pod
            return
        # What agent and annotations say takes precedence over what was reserved.
        self._pods.pop(ref, None)
        self.release(ref)
        self._node_of[ref] = pod.node
        self._bound.setdefault(pod.node, {})[ref] = hold
        self._changed(pod.node)

    def _hold(self, pod: ClusterPod) -> PodHold:
        ref = pod.request.ref
        told = self._holdings.get(pod.node, {}).get(ref.uid)
        if ref not in self._disputed and not believed_holds(pod.request, pod.annotations)[1]:
            self._disputed.add(ref)
            _log.warning(
                "annotations that do not agree with the pod spec do not count",
                pod=str(ref),
                node=pod.node,
                counts="what the agent says" if told else "what the spec says",
            )
        return hold_of(pod.request, pod.annotations, told)

    def pod(self, ref: PodRef) -> ClusterPod | None:
        """A pod that waits to be bound, as the watch last told it."""
        return self._pods.get(ref)

    def reserve(self, node: str, hold: PodHold, cpu_milli: int) -> None:
        """Count what a pod will hold from now on, until `release` or until it is bound."""
        self.release(hold.pod)
        self._reserved_milli[hold.pod] = cpu_milli
        self._reserved.setdefault(node, {})[hold.pod] = hold
        self._reserved_on[hold.pod] = node
        self._changed(node)

    def release(self, ref: PodRef) -> None:
        """Give a reservation back; none is no error."""
        node = self._reserved_on.pop(ref, None)
        if node is not None:
            _drop(self._reserved, node, ref)
            del self._reserved_milli[ref]
            self._changed(node)

    def rooms(self, node: str) -> tuple[Room, ...]:
        """What the cards of a node have left."""
        if node not in self._rooms:
            offer = self.offers[node]
            rooms = self._rooms[node] = node_rooms(
                offer, self.holds(node), AllocationApi.DEVICE_PLUGIN
            )
            if len(self._kinds) > _KEPT_KINDS:
                self._kinds.clear()
            left = tuple(sorted(room.amounts for room in rooms))
            kind = offer.mode, offer.unit, offer.max_pods, offer.policy, left
            self._kind_of[node] = self._kinds.setdefault(kind, next(self._numbers))
        return self._rooms[node]

    def node_rooms(self) -> Mapping[str, tuple[Room, ...]]:
        """What the cards of every node have left."""
        return {name: self.rooms(name) for name in sorted(self.offers)}

    def card_units(self) -> Collection[int]:
        """The different numbers of memory units that cards of nodes with slices have."""
        offers = [offer for offer in self.offers.values() if offer.has_slices]
        return {card.capacity(offer.unit) for offer in offers for card in offer.cards}

    def holds(self, node: str) -> Sequence[PodHold]:
        """What is held on a node, and what is reserved."""
        bound, reserved = self._bound.get(node, {}), self._reserved.get(node, {})
        return [*bound.values(), *reserved.values()]

    @property
    def reserved(self) -> int:
        """Pods that are being bound."""
        return len(self._reserved_on)

    def judged(self, names: Iterable[str], pod: PodRequest) -> Iterator[tuple[str, Answer]]:
        """Whether and how well a pod fits each of these nodes.

        One at a time: the ledger may change between two, and bind asks again. Many have one answer.
        """
        answers = self.kept_answers.to(pod, counts_processors=self._counts_processors(pod))
        by_node, own = answers.by_node, self._reserved_on.get(pod.ref)
        for name in names:
            answer = by_node.get(name)
            if answer is None or name == own:
                answer = self._answer(name, pod, answers)
            yield name, answer

    def fit(self, node: str, pod: PodRequest) -> Fit | Misfit:
        """What a pod would hold of a node; its own reservation does not stand in its way."""
        if node not in self.offers:
            return _NO_CARDS
        return self._beside(node, [hold for hold in self.holds(node) if hold.pod != pod.ref], pod)

    def _answer(self, name: str, pod: PodRequest, answers: Answers) -> Answer:
        if name not in self.offers:
            return _LEFT_OUT if name in self.left_out else _NO_CARDS
        if name == self._reserved_on.get(pod.ref):
            found = self.fit(name, pod)
            return found if isinstance(found, Misfit) else found.score
        rooms = self.rooms(name)
        free = self._free_milli(name) if answers.counts_processors else None
        answer = answers.of_kind(self._kind_of[name], self.offers[name], rooms, free)
        answers.by_node[name] = answer
        return answer

    def _counts_processors(self, pod: PodRequest) -> bool:
        """Whether any node is scored by the processor that it has free."""
        named = pod.placement or self._default_policy
        return named == PlacementPolicy.FGD or bool(self._by_fgd)

    def _free_milli(self, node: str, but: PodRef | None = None) -> int:
        """Processor that is free of a node, without what is reserved for others than `but`."""
        reserved = self._reserved.get(node, {})
        return self.processors.free(node) - sum(
            self._reserved_milli[ref] for ref in reserved if ref != but
        )

    def fits_without(self, name: str, pod: PodRequest, gone: Collection[str]) -> bool:
        """Whether a pod would fit a node if the pods with these uids were not there."""
        if name not in self.offers:
            return False
        left = [h for h in self.holds(name) if h.pod.uid not in gone and h.pod != pod.ref]
        return isinstance(self._beside(name, left, pod), Fit)

    def _beside(self, node: str, holds: Iterable[PodHold], pod: PodRequest) -> Fit | Misfit:
        """The answer for a node with cards where nothing but this is held."""
        offer, free = self.offers[node], self._free_milli(node, pod.ref)
        answers = self.kept_answers.to(pod, counts_processors=self._counts_processors(pod))
        asked = answers.checked(offer)
        if isinstance(asked, Misfit):
            return asked
        found = try_rooms(offer, node_rooms(offer, holds, AllocationApi.DEVICE_PLUGIN), asked)
        return found if isinstance(found, Misfit) else found.beside(free, pod.cpu_milli)

    def _changed(self, node: str) -> None:
        """Forget what was counted of a node."""
        self._rooms.pop(node, None)
        self._processor_changed(node)

    def _processor_changed(self, node: str) -> None:
        """Forget what was answered of a node; its cards are as they were."""
        self.kept_answers.forget(node)


def _drop(held: dict[str, dict[PodRef, PodHold]], node: str, ref: PodRef) -> None:
    """Without this pod; nodes come and go, and one that holds nothing is forgotten."""
    held[node].pop(ref, None)
    if not held[node]:
        del held[node]
