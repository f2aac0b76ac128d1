"""Plays the trace: pods arrive in order, are placed or dropped, and never leave."""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.bench.openb.ranking import Choice, Chooser, Ranking, candidates
from tools.bench.openb.trace import Node, Pod
from tools.bench.openb.workload import Shape, Workload, has_room, with_pod

from gpu_device_plugin.domain.fractions.fragmentation import (
    NodeRoom,
    grade_placement,
    unusable_share,
)

_PAPER_USUAL_PART = 0.95
_RANDOM_CARD_SEED = 7
_BEST_FIT_CPU_MILLI = 128_000
_BEST_FIT_CARD_MILLI = 8_000


@dataclass(frozen=True, slots=True)
class Run:
    """One replay.

    Attributes:
        allocated: Percent of the cluster's cards, by arrived percent 0 to 130.
        seconds: Of each decision, in order.
    """

    allocated: list[float]
    seconds: list[float]


def replay(
    nodes: Sequence[Node], arriving: Sequence[Pod], policy: Chooser, seed: int | None
) -> Run:
    """Place what arrives, each pod on the node of the best score, the first of equals.

    Args:
        nodes: The cluster.
        arriving: Pods in order.
        policy: Scores a node.
        seed: Of a random node among those of the best score, or None for the first.
    """
    ranking = Ranking(policy, [node.room for node in nodes])
    memory = [node.memory_mib for node in nodes]
    drawn = None if seed is None else random.Random(seed)  # noqa: S311
    capacity = sum(map(sum, (node.room.cards for node in nodes)))
    arrived = allocated = 0
    sums, counts, seconds = Counter[int](), Counter[int](), []
    for pod in arriving:
        begin = time.perf_counter()
        arrived += pod.card_milli
        node = _best(ranking.scores(pod.shape), memory, pod.memory_mib, drawn)
        if node is not None:
            cards = ranking.cards(pod.shape, node)
            ranking.put(node, with_pod(ranking.room(node), pod.shape, cards))
            memory[node] -= pod.memory_mib
            allocated += pod.card_milli
        seconds.append(time.perf_counter() - begin)
        percent = round(100 * arrived / capacity)
        sums[percent] += allocated
        counts[percent] += 1
    curve = [100 * sums[x] / counts[x] / capacity for x in range(max(counts) + 1) if counts[x]]
    return Run(curve, seconds)


def _best(
    scores: Sequence[float], memory: Sequence[int], needed: int, drawn: random.Random | None
) -> int | None:
    if drawn is None:
        best = max(scores)
        if best == -math.inf:
            return None
        first = scores.index(best)
        if memory[first] >= needed:
            return first
    fitting = [n for n, score in enumerate(scores) if score > -math.inf and memory[n] >= needed]
    if not fitting:
        return None
    best = max(scores[n] for n in fitting)
    equal = [n for n in fitting if scores[n] == best]
    return drawn.choice(equal) if drawn else equal[0]


Policy = Callable[[Sequence[Pod]], tuple[Chooser, bool]]
"""Pods -> how a node is scored for one, and whether equals are drawn at random."""


def at_random(_: Sequence[Pod]) -> tuple[Chooser, bool]:
    """Any node that fits, and any card of it."""
    drawn = random.Random(_RANDOM_CARD_SEED)  # noqa: S311

    def chooser(room: NodeRoom, shape: Shape) -> Choice | None:
        if not has_room(room, shape):
            return None
        fitting = [n for n, free in enumerate(room.cards) if free >= max(shape.card_milli, 1)]
        return Choice(0.0, tuple(drawn.sample(fitting, shape.cards)))

    return chooser, True


def best_fit(_: Sequence[Pod]) -> tuple[Chooser, bool]:
    """The paper's BestFit: least left of processor and cards; parts go to the fullest card."""

    def chooser(room: NodeRoom, shape: Shape) -> Choice | None:
        left_cpu = (room.cpu_milli - shape.cpu_milli) / _BEST_FIT_CPU_MILLI
        left_cards = (sum(room.cards) - shape.cards * shape.card_milli) / _BEST_FIT_CARD_MILLI
        if not has_room(room, shape):
            return None
        score = -math.floor(100 * (0.5 * left_cpu + 0.5 * left_cards))
        return Choice(score, _fullest(room, shape))

    return chooser, False


def paper_fgd(pods: Sequence[Pod]) -> tuple[Chooser, bool]:
    """Fragmentation gradient descent as the paper has it."""
    workload = Workload(mix(pods), _PAPER_USUAL_PART)

    def chooser(room: NodeRoom, shape: Shape) -> Choice | None:
        if not has_room(room, shape):
            return None
        before, found = workload.fragmentation(room), []
        for cards in candidates(room, shape):
            gain = before - workload.fragmentation(with_pod(room, shape, cards))
            found.append(Choice(math.floor(100 / (1 + math.exp(-gain / 1000))), cards))
        return max(found, key=lambda choice: choice.score)

    return chooser, False


def ours(_: Sequence[Pod]) -> tuple[Chooser, bool]:
    """The policy `fgd` as the controller serves it."""
    return served, False


def served(room: NodeRoom, shape: Shape) -> Choice | None:
    """What the controller answers for a node (tests/tools/test_replay.py compares)."""
    if not has_room(room, shape):
        return None

    def order(cards: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
        free = [room.cards[card] for card in cards]
        return unusable_share(with_pod(room, shape, cards).cards), sum(free), cards

    cards = min(candidates(room, shape), key=order)
    return Choice(grade_placement(room, with_pod(room, shape, cards)) / 100, cards)


def mix(pods: Sequence[Pod]) -> Counter[Shape]:
    """How often each shape comes."""
    return Counter(pod.shape for pod in pods)


def _fullest(room: NodeRoom, shape: Shape) -> tuple[int, ...]:
    """The fullest cards that fit."""
    fitting = [n for n, free in enumerate(room.cards) if free >= max(shape.card_milli, 1)]
    return tuple(sorted(fitting, key=lambda n: room.cards[n])[: shape.cards])
