"""kube-scheduler's calls: which nodes fit, how well, and whom to evict."""

import heapq
import json
from collections.abc import Sequence

from gpu_device_plugin.apps.controller.ledger import ClusterLedger
from gpu_device_plugin.cluster.extender_wire import (
    Question,
    filter_answer,
    filter_error,
    preemption_answer,
    priorities,
    read_preemption,
    read_question,
)
from gpu_device_plugin.domain.schemes.aliyun.node_fit import Misfit
from gpu_device_plugin.domain.schemes.aliyun.node_score import Score, comparable
from gpu_device_plugin.errors import ClusterError

MOST_NODES = 8
"""Extender scores are coarse and kube-scheduler breaks ties at random: more would not be ours."""
_MOST_SCORE = 10


class Extender:
    """Answers filter, prioritize, preempt and inspect from the ledger, and waits for nobody."""

    def __init__(self, ledger: ClusterLedger) -> None:
        self._ledger = ledger

    def filter(self, body: bytes) -> bytes:
        """Keep the nodes that fit best, with a reason for each of the others."""
        try:
            question = read_question(body)
        except ClusterError as error:
            return filter_error(str(error))
        if not question.pod.asks_units:
            return filter_answer(question, question.names, {}, {})
        fits, misfits = self._judged(question)
        best = max((score for score, _ in fits), default=0.0)
        equal = {name for score, names in fits if score == best for name in names}
        kept = heapq.nsmallest(MOST_NODES, equal)
        failed: dict[str, str] = {}
        final: dict[str, str] = {}
        for why, names in misfits:
            (final if why.is_final else failed).update(dict.fromkeys(names, why.text))
        for score, names in fits:
            order = "comes first" if score == best else "fits better"
            failed.update(dict.fromkeys(names, f"fits, but {kept[0]} {order}"))
        for name in kept:
            failed.pop(name, None)
        return filter_answer(question, kept, failed, final)

    def prioritize(self, body: bytes) -> bytes:
        """A score of 0 to 10 for each node; a pod that asks for nothing of ours scores alike.

        Raises:
            ClusterError: The body is none of kube-scheduler's.
        """
        question = read_question(body)
        points = dict.fromkeys(question.names, 0)
        fits, _ = self._judged(question) if question.pod.asks_units else ((), ())
        for score, names in fits:
            points.update(dict.fromkeys(names, _points(score)))
        return priorities(points)

    def preempt(self, body: bytes) -> bytes:
        """Keep the nodes on which evicting the proposed victims makes room on one card.

        kube-scheduler proposes by a node's sums: elsewhere pods would be evicted for nothing.

        Raises:
            ClusterError: The body is none of kube-scheduler's.
        """
        asked = read_preemption(body)
        return preemption_answer(
            {
                name: victims
                for name, victims in asked.victims.items()
                if not asked.pod.asks_units
                or self._ledger.fits_without(name, asked.pod, victims.uids)
            }
        )

    def _judged(
        self, question: Question
    ) -> tuple[Sequence[tuple[float, list[str]]], Sequence[tuple[Misfit, list[str]]]]:
        """Nodes that fit, with their scores; the others, with why."""
        fits: list[tuple[Score, list[str]]] = []
        misfits: list[tuple[Misfit, list[str]]] = []
        for answer, names in self._ledger.judged(question.names, question.pod):
            if isinstance(answer, Misfit):
                misfits.append((answer, names))
            else:
                fits.append((answer, names))
        scores = comparable([score for score, _ in fits])
        return [(score, names) for score, (_, names) in zip(scores, fits, strict=True)], misfits

    def inspect(self, node: str | None) -> tuple[int, bytes]:
        """The ledger as JSON, and the HTTP status."""
        known = sorted(n for n, offer in self._ledger.offers.items() if offer.has_slices)
        names = known if node is None else [node]
        if node is not None and node not in known:
            return 404, json.dumps({"error": f"no node {node} with slices"}).encode()
        return 200, json.dumps({"nodes": [self._inspected(name) for name in names]}).encode()

    def _inspected(self, name: str) -> dict[str, object]:
        offer, rooms = self._ledger.offers[name], self._ledger.rooms(name)
        holds = [(hold.pod, hold.by_card()) for hold in self._ledger.holds(name)]
        devices = [
            {
                "id": room.card.index,
                "totalGPU": room.card.capacity(offer.unit),
                "usedGPU": room.card.capacity(offer.unit) - room.free_mem,
                "pods": [
                    {
                        "name": pod.name,
                        "namespace": pod.namespace,
                        "usedGPU": shares[room.card.index][0],
                    }
                    for pod, shares in holds
                    if room.card.index in shares
                ],
            }
            for room in rooms
        ]
        total = sum(room.card.capacity(offer.unit) for room in rooms)
        free = sum(room.free_mem for room in rooms)
        return {"name": name, "totalGPU": total, "usedGPU": total - free, "devs": devices}


def _points(score: float) -> int:
    return max(0, min(_MOST_SCORE, round(_MOST_SCORE * score)))
