"""kube-scheduler around an extender: which nodes it asks about, its own scores, and how it draws."""

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tools.bench.openb.trace import Filled, Node, Pod

_NO_REQUEST = 100, 200
"""Thousandths of a core and MiB that a pod counts with where it requests none (NonZeroRequested)."""
POINT = 10
"""kube-scheduler's points for each of an extender's, with the weight 1."""


class Extender(Protocol):
    """Rates nodes for a pod and binds it, under a number of its own; nodes by their place in the list."""

    async def rate(self, number: int, pod: Pod, nodes: Sequence[int]) -> Mapping[int, int]:
        """Filter and prioritize: the nodes that stay, with 0 to 10 points each."""

    async def bind(self, number: int, pod: Pod, node: int | None) -> None:
        """The pod's node, or None where it has none and is deleted."""


class Cluster:
    """What kube-scheduler counts of each node: processor, memory and card time, in all and requested."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        rooms = [(each.room.cpu_milli, each.memory_mib, sum(each.room.cards)) for each in nodes]
        self._all = np.array(rooms, dtype=np.int64).T
        self._asked, self._counted = np.zeros_like(self._all), np.zeros_like(self._all[:2])

    def fitting(self, pod: Pod) -> NDArray[np.intp]:
        """The nodes on which the sums leave room (NodeResourcesFit)."""
        return np.nonzero((self._all - self._asked >= _amounts(pod)[:, None]).all(0))[0]

    def own(self, pod: Pod, nodes: Collection[int]) -> NDArray[np.int64]:
        """Its own points: LeastAllocated and BalancedAllocation by processor and memory."""
        at = np.fromiter(nodes, np.intp, len(nodes))
        there = self._all[:2, at]
        part = np.minimum((self._asked[:2, at] + _amounts(pod)[:2, None]) / there, 1.0)
        balanced = ((1 - np.abs(part[0] - part[1]) / 2) * 100).astype(np.int64)
        found: NDArray[np.int64] = self.least(pod, nodes) + balanced
        return found

    def least(self, pod: Pod, nodes: Collection[int]) -> NDArray[np.int64]:
        """The points of LeastAllocated alone."""
        at = np.fromiter(nodes, np.intp, len(nodes))
        there, now = self._all[:2, at], self._counted[:, at] + _counted(pod)[:, None]
        found: NDArray[np.int64] = (np.maximum(there - now, 0) * 100 // there).sum(0) // 2
        return found

    def take(self, pod: Pod, node: int) -> None:
        """The pod is bound there."""
        self._asked[:, node] += _amounts(pod)
        self._counted[:, node] += _counted(pod)


async def schedule(
    nodes: Sequence[Node], arriving: Sequence[Pod], extender: Extender, seed: int
) -> list[float]:
    """Each pod on a node of the most points, drawn at random (`seed`); one without cards is not sent.

    Returns:
        Percent of the cluster's cards that are allocated, by arrived percent from 0 on.
    """
    cluster, drawn = Cluster(nodes), random.Random(seed)  # noqa: S311
    filled = Filled(nodes)
    for number, pod in enumerate(arriving):
        asked = cluster.fitting(pod).tolist()
        points = (
            await extender.rate(number, pod, asked) if pod.shape.cards else dict.fromkeys(asked, 0)
        )
        node = None
        if points:
            whole = cluster.own(pod, points) + POINT * np.array(list(points.values()))
            best = whole.max()
            node = drawn.choice([n for n, each in zip(points, whole, strict=True) if each == best])
            cluster.take(pod, node)
        await extender.bind(number, pod, node)
        filled.add(pod, is_placed=node is not None)
    return filled.curve()


def _amounts(pod: Pod) -> NDArray[np.int64]:
    return np.array([pod.shape.cpu_milli, pod.memory_mib, pod.card_milli], dtype=np.int64)


def _counted(pod: Pod) -> NDArray[np.int64]:
    cpu, memory = _NO_REQUEST
    return np.array([pod.shape.cpu_milli or cpu, pod.memory_mib or memory], dtype=np.int64)
