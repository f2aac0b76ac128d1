"""Placement by fragmentation: put a pod where it spoils the least room for the pods that come.

The measure is the one of "Beware of Fragmentation" (Weng, Yang et al., USENIX ATC 2023): of a
node's free card time, how much cannot serve a pod drawn from the usual mix. A placement is as good
as it lets that figure grow little. Amounts are thousandths of a card (milli) and of a processor
core, so that every model of card and every memory unit compare.

Three things differ from the paper's score. Every shape of the mix counts, rare ones too: a pod of
eight cards is rare, and without it in the mix no node stays whole for it. Free card time that has
no processor left beside it counts as lost at once. And the score's step is finer, because with
small pods most placements differ by less than the paper's step.

Processors: how much of its processor each node has free, by the scheduler's count.

Amounts are thousandths of a core (milli).
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

WHOLE_CARD_MILLI = 1000
SCORE_STEPS = 100
SCORE_SCALE_MILLI = 300.0
STRANDED_STEP_MILLI = 50


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a pod takes of a node."""

    cpu_milli: int
    cards: int
    card_milli: int


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node has left."""

    cpu_milli: int
    cards: tuple[int, ...]

    def fits(self, shape: Shape) -> bool:
        """Whether a pod of this shape can run here."""
        if self.cpu_milli < shape.cpu_milli:
            return False
        return sum(free >= shape.card_milli for free in self.cards) >= shape.cards

    def take(self, shape: Shape, cards: Iterable[int]) -> "NodeRoom":
        """The room that a pod of this shape leaves on these cards (by index)."""
        left = list(self.cards)
        for card in cards:
            left[card] -= shape.card_milli
        return NodeRoom(self.cpu_milli - shape.cpu_milli, tuple(left))


class Workload:
    """The usual mix of pods, prepared so that the fragmentation of a node is a few look-ups.

    Whole numbers throughout: the order of a sum must not decide between equal nodes and cards.

    Attributes:
        pods: Of how many pods the figures below are the sum.
        levels: Processor, in thousandths, with which more of them run; ascending.
        by_free: For each number of levels reached: what is lost of a card, by what is free of it.
        cpu_per_card_milli: What they take of the processor beside a whole card.
    """

    def __init__(self, pods: Mapping[Shape, int], usual_part: float = 1.0) -> None:
        """Prepare.

        `pods`: how often each shape comes; at least one asks for a card. `usual_part` (0 to 1) of all
        pods are the mix; the rarest are left out.
        """
        usual = _usual(pods, usual_part)
        self.pods = sum(pods.values())
        self.levels = sorted({shape.cpu_milli for shape, _ in usual})
        self.cpu_per_card_milli = _cpu_per_card_milli(pods)
        self.by_free: list[list[int]] = []
        # Pods of several cards, by their number.
        self._multi: list[list[tuple[int, int]]] = []
        for level in range(len(self.levels) + 1):
            runs = [(s, n) for s, n in usual if level and s.cpu_milli <= self.levels[level - 1]]
            served = sum(number for shape, number in runs if shape.cards)
            self._prepare(runs, sum(number for _, number in usual) - served)

    def _prepare(self, runs: Sequence[tuple[Shape, int]], lost: int) -> None:
        """One processor level: `runs` are the shapes that the processor lets run, `lost` the others."""
        wanted = [0] * (WHOLE_CARD_MILLI + 2)
        multi: Counter[int] = Counter()
        for shape, number in runs:
            if shape.cards == 1:
                wanted[shape.card_milli] += number
            elif shape.cards > 1:
                multi[shape.cards] += number
        # A card with `free` left cannot serve pods that want more of one card than that.
        above, table = lost, [0] * (WHOLE_CARD_MILLI + 1)
        for free in range(WHOLE_CARD_MILLI, -1, -1):
            above += wanted[free + 1]
            table[free] = free * above
        self.by_free.append(table)
        self._multi.append(sorted(multi.items()))

    def fragmentation(self, room: NodeRoom) -> float:
        """Card time that is free and does not serve a pod of the mix, in milli, on average.

        >>> mix = Workload({Shape(1000, 1, 500): 1})
        >>> mix.fragmentation(NodeRoom(4000, (400, 1000)))
        400.0
        >>> mix.fragmentation(NodeRoom(500, (400, 1000)))
        1400.0
        """
        level = bisect.bisect_right(self.levels, room.cpu_milli)
        table = self.by_free[level]
        lost = sum([table[free] for free in room.cards])
        for cards, number in self._multi[level]:
            total, whole = sum(room.cards), room.cards.count(WHOLE_CARD_MILLI)
            lost += number * (total if whole < cards else total - whole * WHOLE_CARD_MILLI)
        return lost / self.pods

    def stranded(self, room: NodeRoom) -> float:
        """Free card time, in milli, beside which the mix would find no processor."""
        return max(0.0, sum(room.cards) - room.cpu_milli / self.cpu_per_card_milli)


def grade_placement(workload: Workload, before: NodeRoom, after: NodeRoom) -> float:
    """How little a placement spoils a node, about 0 to 100; comparable between nodes."""
    gain = workload.fragmentation(before) - workload.fragmentation(after)
    steps = SCORE_STEPS / (1.0 + math.exp(-gain / SCORE_SCALE_MILLI))
    more_stranded = workload.stranded(after) - workload.stranded(before)
    # The change, not what is left: a whole node must not win over one that is used already.
    broken = before.cards.count(WHOLE_CARD_MILLI) - after.cards.count(WHOLE_CARD_MILLI)
    return math.floor(steps) - round(more_stranded / STRANDED_STEP_MILLI) - broken / 1000


def _usual(pods: Mapping[Shape, int], part: float) -> list[tuple[Shape, int]]:
    """The most frequent shapes, until they make up this part of all pods."""
    found, seen = [], 0
    for shape, number in sorted(pods.items(), key=lambda item: (-item[1], item[0])):
        if seen >= part * sum(pods.values()):
            break
        found.append((shape, number))
        seen += number
    return found


def _cpu_per_card_milli(pods: Mapping[Shape, int]) -> float:
    cpu = sum(shape.cpu_milli * number for shape, number in pods.items())
    card = sum(shape.cards * shape.card_milli * number for shape, number in pods.items())
    return max(cpu, 1) / card


_TENTHS = range(100, WHOLE_CARD_MILLI + 1, 100)
_CPU_PER_CARD_MILLI = 13_000
EVEN_MIX = Workload(
    {Shape(_CPU_PER_CARD_MILLI * part // WHOLE_CARD_MILLI, 1, part): 1 for part in _TENTHS}
)
"""What is taken to come, because nobody knows: as many pods of each tenth of a card, with thirteen
processor cores a card. Tenths and thirteen are the best of a few that were tried on the openb trace:
its pods with cards ask for eleven cores a card, and pods without cards take some beside them."""
PLENTY_CPU_MILLI = 10**9
"""Processor of a node of which nothing is known."""


def unusable_share(cards: Sequence[int]) -> float:
    """Free time of a node's cards, in milli, that does not serve a pod of the even mix.

    By the cards alone: a node's agent knows of no processors, and the controller must choose the
    card that it would.
    """
    return EVEN_MIX.fragmentation(NodeRoom(PLENTY_CPU_MILLI, tuple(cards)))


class Processors:
    """Kept from news of nodes and pods; of a pod only its node and its amount."""

    def __init__(self, on_change: Callable[[str], None] = lambda _: None) -> None:
        """Nothing is known yet; `on_change` gets the name of each node whose free processor changes."""
        self._on_change = on_change
        self._allocatable: dict[str, int] = {}
        self._taken: Counter[str] = Counter()
        self._pods: dict[str, tuple[str, int]] = {}

    def node_changed(self, name: str, allocatable_milli: int | None) -> None:
        """What a node has for pods in all; None where it is gone or does not say."""
        if self._allocatable.get(name) == allocatable_milli:
            return
        self._allocatable.pop(name, None)
        if allocatable_milli is not None:
            self._allocatable[name] = allocatable_milli
        self._on_change(name)

    def put(self, uid: str, node: str, milli: int) -> None:
        """A pod runs on a node, or is bound to it, and requests this much."""
        if self._pods.get(uid) == (node, milli):
            return
        self.drop(uid)
        if node and milli:
            self._pods[uid] = (node, milli)
            self._taken[node] += milli
            self._on_change(node)

    def drop(self, uid: str) -> None:
        """A pod has ended; one that is not known is no error."""
        node, milli = self._pods.pop(uid, ("", 0))
        if not node:
            return
        self._taken[node] -= milli
        if not self._taken[node]:
            del self._taken[node]
        self._on_change(node)

    def keep(self, uids: Collection[str]) -> None:
        """Only these pods are left."""
        for uid in self._pods.keys() - uids:
            self.drop(uid)

    def free(self, name: str) -> int:
        """What no pod requests of a node; plenty where nobody says how much it has."""
        if name not in self._allocatable:
            return PLENTY_CPU_MILLI
        return max(0, self._allocatable[name] - self._taken[name])
