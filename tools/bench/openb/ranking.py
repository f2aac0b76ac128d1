"""The nodes of the replayed cluster, ranked for a pod by any policy."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tools.bench.openb.workload import Shape

from gpu_device_plugin.domain.fractions.fragmentation import NodeRoom


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a pod would go on one node.

    Attributes:
        score: More is better; comparable between nodes.
        cards: The cards, by index.
    """

    score: float
    cards: tuple[int, ...]


Chooser = Callable[[NodeRoom, Shape], Choice | None]


def candidates(room: NodeRoom, shape: Shape) -> Iterable[tuple[int, ...]]:
    """Sets of cards, by index, that differ in what is left of them; for a node that fits."""
    if not shape.cards:
        return ((),)
    fitting = [index for index, free in enumerate(room.cards) if free >= shape.card_milli]
    if shape.cards == 1:
        first: dict[int, int] = {}
        for index in fitting:
            first.setdefault(room.cards[index], index)
        return [(index,) for index in first.values()]
    # Several cards of one pod: the fullest that fit, so that whole ones stay whole.
    fitting.sort(key=lambda index: (room.cards[index], index))
    return (tuple(sorted(fitting[: shape.cards])),)


class Ranking:
    """The nodes of a cluster, scored for each shape; only what has changed is scored again."""

    def __init__(self, choose: Chooser, rooms: Sequence[NodeRoom]) -> None:
        self._choose = choose
        self._rooms = list(rooms)
        self._choices: dict[Shape, list[Choice | None]] = {}
        self._scores: dict[Shape, list[float]] = {}
        self._log: list[int] = []
        self._read: dict[Shape, int] = {}

    def room(self, node: int) -> NodeRoom:
        """What a node has left."""
        return self._rooms[node]

    def put(self, node: int, room: NodeRoom) -> None:
        """A node's room has changed."""
        self._rooms[node] = room
        self._log.append(node)

    def scores(self, shape: Shape) -> list[float]:
        """A score for each node; minus infinity where the shape does not fit. Do not change it."""
        if shape not in self._scores:
            self._scores[shape] = [0.0] * len(self._rooms)
            self._choices[shape] = [None] * len(self._rooms)
            changed: Iterable[int] = range(len(self._rooms))
        else:
            changed = set(self._log[self._read[shape] :])
        scores, choices = self._scores[shape], self._choices[shape]
        known: dict[NodeRoom, Choice | None] = {}
        for node in changed:
            room = self._rooms[node]
            if room not in known:
                known[room] = self._choose(room, shape)
            choice = choices[node] = known[room]
            scores[node] = -math.inf if choice is None else choice.score
        self._read[shape] = len(self._log)
        return scores

    def cards(self, shape: Shape, node: int) -> tuple[int, ...]:
        """The cards that the last `scores` of this shape chose; none where it does not fit."""
        choice = self._choices[shape][node]
        return () if choice is None else choice.cards
