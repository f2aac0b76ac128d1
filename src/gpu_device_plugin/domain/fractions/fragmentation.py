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

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

WHOLE_CARD_MILLI = 1000
SCORE_STEPS = 100
SCORE_SCALE_MILLI = 300.0
STRANDED_STEP_MILLI = 50
TENTHS = 10
CPU_PER_CARD = 13
"""The pods that are taken to come, because nobody knows: as many of each tenth of a card, with 13 processor
cores a card. Tenths and 13 are the best of a few that were tried on the openb trace, whose pods with cards ask for 11
cores a card: pods without cards take some beside them."""
CPU_LEVEL_MILLI = CPU_PER_CARD * WHOLE_CARD_MILLI // TENTHS
"""Processor with each of which one more of these pods runs."""
LOST_OF_FREE = [
    [free * (TENTHS - min(free * TENTHS // WHOLE_CARD_MILLI, level)) for free in range(1001)]
    for level in range(TENTHS + 1)
]
"""For each number of pods that the processor lets run: what is lost of a card, by what is free of it,
added up over all `TENTHS` pods. Whole numbers: the order of a sum must not decide between equal cards."""
PLENTY_CPU_MILLI = 10**9
"""Processor of a node of which nothing is known."""


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
        for uid in self._pods.keys() - uids:
            self.drop(uid)

    def free(self, name: str) -> int:
        """What no pod requests of a node; plenty where nobody says how much it has."""
        if name not in self._allocatable:
            return PLENTY_CPU_MILLI
        return max(0, self._allocatable[name] - self._taken[name])
