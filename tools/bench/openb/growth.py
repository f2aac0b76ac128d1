"""Pods of the trace that ask for half and grow while they are busy, by the agent's rules, in virtual time."""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tools.bench.openb.ranking import Choice, Chooser, Ranking
from tools.bench.openb.workload import Shape, fitting_cards, has_room

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.fractions.fraction import Fraction, with_amounts
from gpu_device_plugin.domain.fractions.fragmentation import WHOLE_CARD_MILLI, NodeRoom
from gpu_device_plugin.domain.fractions.placement import scores_by_fullness
from gpu_device_plugin.domain.fractions.resize import (
    ResizedSlice,
    check_growth,
    growth_room,
    sizes_of,
    with_sizes,
)
from gpu_device_plugin.domain.fractions.room import rooms
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Share, UnitsAndPercent
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import DoesNotFitError

_UNITS = 100  # of a card
_MILLI = WHOLE_CARD_MILLI // _UNITS


@dataclass(eq=False)
class Wish:
    """A time in which a pod wants its peak, in hours; `had_from` is its end where it never had it."""

    begin: float
    end: float
    had_from: float


@dataclass(eq=False)
class GrowingPod:
    """A pod that runs; units are hundredths of a card, `busy` is when it will want its peak."""

    name: str
    node: int
    asked: int
    peak: int
    busy: Iterator[tuple[float, float]]
    wishes: list[Wish] = field(default_factory=list)


def spread(room: NodeRoom, shape: Shape) -> Choice | None:
    """The placement `spread`."""
    if not has_room(room, shape):
        return None
    card = max(fitting_cards(room, shape), key=lambda n: (room.cards[n], -n))
    left = (room.cards[card] - shape.card_milli) / WHOLE_CARD_MILLI
    return Choice(scores_by_fullness(left)[PlacementPolicy.SPREAD], (card,))


class _Slices:
    """A node's slices, and who waits."""

    def __init__(self, room: NodeRoom) -> None:
        mib, names = MiB(_UNITS * MemoryUnit.GIB.mib), range(len(room.cards))
        cards = tuple(Card(f"GPU-{n}", CardNumber(n), CardIndex(n), n, "", mib) for n in names)
        self._state, self._ledger = NodeState("n", NodeMode.CGPU, cards=cards), Ledger()
        self._cpu_milli = room.cpu_milli
        self.waiting: list[GrowingPod] = []

    def room(self) -> NodeRoom:
        """What is free."""
        state = self._state
        found = rooms(state.cards, state.healthy, self._ledger, state.terms, PodRef("", ""))
        return NodeRoom(self._cpu_milli, tuple(room.free_milli for room in found))

    def admit(self, pod: GrowingPod, card: int, cpu_milli: int) -> None:
        """Grant what it asks."""
        own, units = self._state.cards[card], Units(pod.asked)
        free = sorted({*unit_ids(Resource.MEM, own.number, _UNITS)} - self._taken())
        holder = Holder(PodRef("openb", pod.name, pod.name), "main", ContainerKind.APP, 0)
        held: dict[str, tuple[str, ...]] = {Resource.MEM: tuple(free[:units])}
        grant = Grant(pod.name, holder, units=held, shares=(Share(own.uuid, None),))
        sized = with_amounts(grant, Fraction(units, units, mode=NodeMode.CGPU), 0)
        self._ledger, self._cpu_milli = self._ledger.hold(sized), self._cpu_milli - cpu_milli

    def look(self, now: float) -> None:
        """Let all grow that wait and can, in the order in which they asked."""
        for pod in tuple(self.waiting):
            if self.resize(pod, pod.peak):
                self.waiting.remove(pod)
                pod.wishes[-1].had_from = now

    def resize(self, pod: GrowingPod, units: int) -> bool:
        """Whether it has so many now; otherwise it has to wait."""
        grant, target = self._ledger.grants[pod.name], UnitsAndPercent(Units(units))
        free, holders = growth_room(grant, self._ledger, self._state, ())
        of = ResizedSlice(pod.name, sizes_of(grant))
        try:
            check_growth(of, target, target, UnitsAndPercent(), free, holders)
        except DoesNotFitError:
            return False
        cards = [card for card in self._state.cards if card.uuid in grant.devices]
        while (following := sizes_of(grant).towards(target, Units(0))) != sizes_of(grant):
            sized = with_sizes(grant, following, cards, self._taken())
            assert sized is not None
            grant = sized
        self._ledger = self._ledger.hold(grant)
        return True

    def _taken(self) -> frozenset[str]:
        return self._ledger.ids() | self._ledger.extra_ids()


class GrowingCluster:
    """Nodes with pods of one card each; `part` of its peak is what a pod asks for."""

    def __init__(self, nodes: Sequence[NodeRoom], policy: Chooser, part: float) -> None:
        self._nodes, self._ranking, self._part = (
            [*map(_Slices, nodes)],
            Ranking(policy, nodes),
            part,
        )
        self._turns: list[tuple[float, int, GrowingPod, float]] = []
        self._order = itertools.count()
        self.pods: list[GrowingPod] = []

    def arrive(self, now: float, shape: Shape, busy: Iterator[tuple[float, float]]) -> None:
        """A pod comes that has `busy` times; it runs, or is dropped where no card has what it asks for."""
        self.run(now)
        peak = -(-shape.card_milli // _MILLI)
        asked = -int(-peak * self._part // 1)
        asking = Shape(shape.cpu_milli, 1, asked * _MILLI)
        scores = self._ranking.scores(asking)
        node = scores.index(max(scores))
        if cards := self._ranking.cards(asking, node):
            pod = GrowingPod(str(len(self.pods)), node, asked, peak, busy)
            self.pods.append(pod)
            self._nodes[node].admit(pod, cards[0], shape.cpu_milli)
            self._next(pod)
            self._ranking.put(node, self._nodes[node].room())

    def run(self, until: float) -> None:
        """All that happens before."""
        while self._turns and self._turns[0][0] <= until:
            now, _, pod, end = heapq.heappop(self._turns)
            node = self._nodes[pod.node]
            if end:  # its busy time begins
                pod.wishes.append(Wish(now, end, end))
                node.waiting.append(pod)
                heapq.heappush(self._turns, (end, next(self._order), pod, 0.0))
            else:
                node.waiting = [each for each in node.waiting if each is not pod]
                node.resize(pod, pod.asked)
                self._next(pod)
            node.look(now)
            self._ranking.put(pod.node, node.room())

    def _next(self, pod: GrowingPod) -> None:
        begin, end = next(pod.busy, (0.0, 0.0))
        if end:
            heapq.heappush(self._turns, (begin, next(self._order), pod, end))
