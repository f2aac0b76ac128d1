"""Plays the trace: pods arrive in order, are placed or dropped, and never leave."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

from tools.bench.openb.ranking import Choice, Chooser, Ranking, candidates
from tools.bench.openb.trace import Filled, Node, Pod
from tools.bench.openb.workload import Shape, Workload, fitting_cards, has_room, with_pod

from gpu_device_plugin.domain.fractions.fragmentation import NodeRoom

_PAPER_USUAL_PART = 0.95
_RANDOM_CARD_SEED = 7
_BEST_FIT_CPU_MILLI = 128_000
_BEST_FIT_CARD_MILLI = 8_000


def replay(
    nodes: Sequence[Node], arriving: Sequence[Pod], policy: Chooser, seed: int | None
) -> list[float]:
    """Place what arrives, each pod on the node of the best score, the first of equals.

    Args:
        nodes: The cluster.
        arriving: Pods in order.
        policy: Scores a node.
        seed: Of a random node among those of the best score, or None for the first.

    Returns:
        Percent of the cluster's cards that are allocated, by arrived percent from 0 on.
    """
    ranking = Ranking(policy, [node.room for node in nodes])
    memory = [node.memory_mib for node in nodes]
    drawn = None if seed is None else random.Random(seed)  # noqa: S311
    filled = Filled(nodes)
    for pod in arriving:
        node = _best(ranking.scores(pod.shape), memory, pod.memory_mib, drawn)
        if node is not None:
            cards = ranking.cards(pod.shape, node)
            ranking.put(node, with_pod(ranking.room(node), pod.shape, cards))
            memory[node] -= pod.memory_mib
        filled.add(pod, is_placed=node is not None)
    return filled.curve()


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
        return Choice(0.0, tuple(drawn.sample(fitting_cards(room, shape), shape.cards)))

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


def mix(pods: Sequence[Pod]) -> Counter[Shape]:
    """How often each shape comes."""
    return Counter(pod.shape for pod in pods)


def _fullest(room: NodeRoom, shape: Shape) -> tuple[int, ...]:
    """The fullest cards that fit."""
    return tuple(sorted(fitting_cards(room, shape), key=lambda n: room.cards[n])[: shape.cards])
