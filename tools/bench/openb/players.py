"""The cluster filled by different schedulers around one policy: what is lost by how it is played."""

import math
import random
from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from tools.bench.openb.ranking import Choice, Chooser, Ranking
from tools.bench.openb.scheduler import POINT, Cluster
from tools.bench.openb.trace import Filled, Node, Pod
from tools.bench.openb.workload import Shape, fitting_cards, has_room, with_pod

from gpu_device_plugin.controller.scheduler_extender import MOST_NODES
from gpu_device_plugin.domain.fractions.fragmentation import (
    NodeRoom,
    grade_placement,
    unusable_share,
)


class Player(Enum):
    """Who chooses among the nodes that a policy has scored."""

    FIRST = "best score, first of equals"
    DRAWN = "best score, drawn from equals"
    TODAY = "kube-scheduler"
    LEAST = "best score, without cards by LeastAllocated alone"


def served_fgd() -> Chooser:
    """The controller's `fgd` without the controller."""

    def chooser(room: NodeRoom, shape: Shape) -> Choice | None:
        if not has_room(room, shape):
            return None

        def order(card: int) -> tuple[float, int, int]:
            free = room.cards[card]
            lost = unusable_share((free - shape.card_milli,)) - unusable_share((free,))
            return lost, free, card

        cards = tuple(sorted(sorted(fitting_cards(room, shape), key=order)[: shape.cards]))
        return Choice(grade_placement(room, with_pod(room, shape, cards)), cards)

    return chooser


class _Game:
    """One cluster, one policy for pods with cards, and FGD for those without where the player asks it."""

    def __init__(
        self, nodes: Sequence[Node], policies: tuple[Chooser, Chooser], player: Player, seed: int
    ) -> None:
        rooms = [node.room for node in nodes]
        self._cards, self._rest = (Ranking(policy, rooms) for policy in policies)
        self._player, self._drawn = player, random.Random(seed)  # noqa: S311
        self._cluster = Cluster(nodes)

    def place(self, pod: Pod, *, draws: bool) -> bool:
        """`draws`: whether the policy leaves it to the player which of equal nodes a pod with cards gets."""
        node = self._with_cards(pod, draws=draws) if pod.shape.cards else self._without(pod)
        if node is None:
            return False
        self._cluster.take(pod, node)
        cards = self._cards.cards(pod.shape, node) if pod.shape.cards else ()
        left = with_pod(self._cards.room(node), pod.shape, cards)
        for ranking in (self._cards, self._rest):
            ranking.put(node, left)
        return True

    def _with_cards(self, pod: Pod, *, draws: bool) -> int | None:
        best = self._best(self._cards, pod)
        if self._player is Player.TODAY and not draws:
            best = best[:MOST_NODES]
            own = self._cluster.own(pod, best.tolist())
            own[:1] += 10 * POINT
            return self._draw(best[own == own.max(initial=0)])
        return self._draw(best if draws and self._player is Player.DRAWN else best[:1])

    def _without(self, pod: Pod) -> int | None:
        if self._player in (Player.FIRST, Player.DRAWN):
            best = self._best(self._rest, pod)
            return self._draw(best if self._player is Player.DRAWN else best[:1])
        fitting = self._cluster.fitting(pod)
        points = self._cluster.own if self._player is Player.TODAY else self._cluster.least
        own = points(pod, fitting.tolist())
        return self._draw(fitting[own == own.max(initial=0)])

    def _best(self, ranking: Ranking, pod: Pod) -> NDArray[np.intp]:
        fitting = self._cluster.fitting(pod)
        scores = np.array(ranking.scores(pod.shape), dtype=float)[fitting]
        found: NDArray[np.intp] = fitting[
            (scores == scores.max(initial=-math.inf)) & (scores > -math.inf)
        ]
        return found

    def _draw(self, nodes: NDArray[np.intp]) -> int | None:
        return self._drawn.choice(nodes.tolist()) if len(nodes) else None


def play(
    nodes: Sequence[Node],
    arriving: Sequence[Pod],
    policies: tuple[Chooser, Chooser],
    player: Player,
    seed: int,
    *,
    draws: bool,
) -> list[float]:
    """Percent of the cluster's cards that are allocated, by arrived percent from 0 on.

    `policies`: for pods with cards, and for those without; `draws` as in `_Game.place`.
    """
    game, filled = _Game(nodes, policies, player, seed), Filled(nodes)
    for pod in arriving:
        filled.add(pod, is_placed=game.place(pod, draws=draws))
    return filled.curve()
