"""Placement by fragmentation: put a pod where it spoils the least room for the pods that come.

The measure is the one of "Beware of Fragmentation" (Weng, Yang et al., USENIX ATC 2023): of a
node's free card time, how much cannot serve a pod drawn from the usual mix. A placement is as good
as it lets that figure grow little. Amounts are thousandths of a card (milli) and of a processor
core, so that every model of card and every memory unit compare.

Three things differ from the paper's score. Every shape of the mix counts, rare ones too: a pod of
eight cards is rare, and without it in the mix no node stays whole for it. Free card time that has
no processor left beside it counts as lost at once. And the score's step is finer, because with
small pods most placements differ by less than the paper's step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.fractions.processors import PLENTY_CPU_MILLI

WHOLE_CARD_MILLI = 1000
SCORE_STEPS = 100
SCORE_SCALE_MILLI = 300.0
STRANDED_STEP_MILLI = 50
TENTHS = 10
CPU_PER_CARD = 11
"""The pods that are taken to come, because nobody knows: as many of each tenth of a card, with 11 processor
cores a card, which is what pods with cards ask for on the openb trace. More are better under one scheduler,
and worse where always the first of equal nodes is taken (docs/benchmarks.md)."""
CPU_LEVEL_MILLI = CPU_PER_CARD * WHOLE_CARD_MILLI // TENTHS
"""Processor with each of which one more of these pods runs."""
LOST_OF_FREE = [
    [free * (TENTHS - min(free * TENTHS // WHOLE_CARD_MILLI, level)) for free in range(1001)]
    for level in range(TENTHS + 1)
]
"""For each number of pods that the processor lets run: what is lost of a card, by what is free of it,
added up over all `TENTHS` pods. Whole numbers: the order of a sum must not decide between equal cards."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node has left."""

    cpu_milli: int
    cards: tuple[int, ...]

    @property
    def fragmentation(self) -> float:
        """Card time that is free and serves none of the pods that come, in milli, on average."""
        lost = LOST_OF_FREE[min(max(0, self.cpu_milli // CPU_LEVEL_MILLI), TENTHS)]
        return sum([lost[free] for free in self.cards]) / TENTHS

    @property
    def stranded(self) -> float:
        """Free card time, in milli, beside which those pods would find no processor."""
        return max(0.0, sum(self.cards) - self.cpu_milli / CPU_PER_CARD)


def grade_placement(before: NodeRoom, after: NodeRoom) -> float:
    """How little a placement spoils a node, about 0 to 100; comparable between nodes."""
    gain = before.fragmentation - after.fragmentation
    steps = SCORE_STEPS / (1.0 + math.exp(-gain / SCORE_SCALE_MILLI))
    more_stranded = after.stranded - before.stranded
    # The change, not what is left: a whole node must not win over one that is used already.
    broken = before.cards.count(WHOLE_CARD_MILLI) - after.cards.count(WHOLE_CARD_MILLI)
    return math.floor(steps) - round(more_stranded / STRANDED_STEP_MILLI) - broken / 1000


def unusable_share(cards: Sequence[int]) -> float:
    """Free time of a node's cards, in milli, that serves none of the pods that come.

    By the cards alone: a node's agent knows of no processors, and the controller must choose the
    card that it would.
    """
    return NodeRoom(PLENTY_CPU_MILLI, tuple(cards)).fragmentation
