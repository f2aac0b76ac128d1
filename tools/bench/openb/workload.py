"""The measure of fragmentation for any mix of pods, as the paper defines it.

The controller's `fgd` knows one mix (domain/fractions/fragmentation.py), for which the sums are simple.
"""

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.fractions.fragmentation import WHOLE_CARD_MILLI, NodeRoom


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a pod takes of a node."""

    cpu_milli: int
    cards: int
    card_milli: int


def has_room(room: NodeRoom, shape: Shape) -> bool:
    """Whether a pod of this shape can run there."""
    if room.cpu_milli < shape.cpu_milli:
        return False
    return sum(free >= shape.card_milli for free in room.cards) >= shape.cards


def fitting_cards(room: NodeRoom, shape: Shape) -> list[int]:
    """The cards (by index) that have what a pod of this shape takes of each."""
    return [n for n, free in enumerate(room.cards) if free >= max(shape.card_milli, 1)]


def with_pod(room: NodeRoom, shape: Shape, cards: Iterable[int]) -> NodeRoom:
    """The room that a pod of this shape leaves on these cards (by index)."""
    left = list(room.cards)
    for card in cards:
        left[card] -= shape.card_milli
    return NodeRoom(room.cpu_milli - shape.cpu_milli, tuple(left))


class Workload:
    """The usual mix of pods, prepared so that the fragmentation of a node is a few look-ups.

    Whole numbers throughout: the order of a sum must not decide between equal nodes and cards.

    Attributes:
        pods: Of how many pods the figures below are the sum.
        levels: Processor, in thousandths, with which more of them run; ascending.
        by_free: For each number of levels reached: what is lost of a card, by what is free of it.
    """

    def __init__(self, pods: Mapping[Shape, int], usual_part: float = 1.0) -> None:
        """Prepare.

        `pods`: how often each shape comes; at least one asks for a card. `usual_part` (0 to 1) of all
        pods are the mix; the rarest are left out.
        """
        usual = _usual(pods, usual_part)
        self.pods = sum(pods.values())
        self.levels = sorted({shape.cpu_milli for shape, _ in usual})
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


def _usual(pods: Mapping[Shape, int], part: float) -> list[tuple[Shape, int]]:
    """The most frequent shapes, until they make up this part of all pods."""
    found, seen = [], 0
    for shape, number in sorted(pods.items(), key=lambda item: (-item[1], item[0])):
        if seen >= part * sum(pods.values()):
            break
        found.append((shape, number))
        seen += number
    return found
