"""kube-scheduler's calls: which nodes fit, how well, and whom to evict."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

from gpu_device_plugin.controller.card_arrays import Judged
from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.controller.preemption import CountBroken, choose_victims
from gpu_device_plugin.domain.fractions.node_fit import NOT_ENOUGH_TEXT, Misfit
from gpu_device_plugin.domain.fractions.units import resources_of
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.turns import TURN_SECONDS, Turns
from gpu_device_plugin.kubernetes.objects.extender_messages import (
    Preemption,
    Question,
    Victims,
    filter_answer,
    filter_error,
    preemption_answer,
    priorities,
    read_preemption,
    read_question,
)
from gpu_device_plugin.settings.controller_settings import FilterKeeps

MOST_NODES = 8
"""Some for a later extender to choose from; `prioritize` names the first of them."""
_MOST_SCORE = 10
_MOST_LOOKED_AT = 100
"""Nodes whose cards are looked at for the words of a reason."""
_SEARCH_SECONDS = 1.0
"""After which no further node is searched for victims where one is found."""


@dataclass(eq=False)
class Extender:
    """Answers filter, prioritize, preempt and inspect from the ledger.

    An answer keeps the loop for `turn_seconds`, but for one node at least. `budgets` tells, of pods that may be
    evicted, how many evictions are not allowed.
    """

    ledger: ClusterLedger
    budgets: Callable[[Collection[PodRef]], Awaitable[CountBroken]]
    keeps: FilterKeeps = FilterKeeps.AUTO
    turn_seconds: float = TURN_SECONDS

    async def filter(self, body: bytes) -> bytes:
        """Keep the nodes that fit, or of these the best, with a reason for each of the others."""
        try:
            question = read_question(body)
        except ClusterError as error:
            return filter_error(str(error))
        if not question.pod.asks_units:
            return filter_answer(question, question.names, ())
        judged = await self._judge(question)
        wants_all = self.keeps is FilterKeeps.AUTO and question.has_preferences
        is_bounded = not wants_all and self.keeps is not FilterKeeps.ALL
        kept = judged.keep(MOST_NODES) if is_bounded else judged.scores()[0].tolist()
        why = [(self._reason(each, names), each.is_final, names) for each, names in judged.misfits]
        return filter_answer(question, kept, why)

    def _reason(self, misfit: Misfit, names: Sequence[str]) -> str:
        """With the card of which the largest part is free, where no card has enough: the sum of a node tells nothing."""
        if misfit.text != NOT_ENOUGH_TEXT or len(names) > _MOST_LOOKED_AT:
            return misfit.text
        rooms = (room for name in names for room in self.ledger.rooms(name))
        best = max(rooms, key=lambda room: (room.free_milli, room.free_mem), default=None)
        if best is None or not best.free_milli:
            return f"{misfit.text}: no card has anything left"
        # kube-scheduler's Event takes the text for a format: "% l" would be a verb.
        compute = f" and {best.free_core} percent" if best.least_core else ""
        return f"{misfit.text}: the emptiest card has {best.free_mem} units{compute} left"

    async def prioritize(self, body: bytes) -> bytes:
        """A score of 0 to 10 for each node; a pod that asks for none of our resources scores alike."""
        question = read_question(body)
        if not question.pod.asks_units:
            return priorities([(0, list(dict.fromkeys(question.names)))])
        judged = await self._judge(question)
        none = [(0, names) for _, names in judged.misfits]
        return priorities([*none, *judged.points(_MOST_SCORE)])

    async def preempt(self, body: bytes) -> bytes:
        """The nodes on which evictions make room on the cards, with whom to evict there."""
        asked = read_preemption(body)
        if not asked.pod.asks_units:
            return preemption_answer(asked.victims)
        turns, kept = Turns(self.turn_seconds), dict[str, Victims]()
        checks = self.ledger.checks(asked.pod)
        asking = cache(lambda: asyncio.ensure_future(self.budgets(self._evictable(asked))))
        enough = time.monotonic() + _SEARCH_SECONDS

        async def budgets() -> CountBroken:
            """The search goes on for as long as the API server has taken."""
            nonlocal enough
            began, found = time.monotonic(), await asking()
            enough += time.monotonic() - began
            return found

        for name, proposed in asked.victims.items():
            if kept and time.monotonic() > enough:
                break  # kube-scheduler needs one node
            found = await choose_victims(self.ledger, name, checks, proposed, budgets)
            if found is not None:
                kept[name] = found
            await turns.give()
        return preemption_answer(kept)

    def _evictable(self, asked: Preemption) -> Collection[PodRef]:
        """Pods of all of these nodes that may have to go."""
        priority = asked.pod.standing.priority
        return {ref for name in asked.victims for ref in self.ledger.evictable(name, priority)}

    async def _judge(self, question: Question) -> Judged:
        """Which nodes fit, with their scores; the others, with why."""
        turns, checks = Turns(self.turn_seconds), self.ledger.checks(question.pod)
        await turns.finish(self.ledger.count())
        found = self.ledger.judge(question.names, checks)
        for alike in found.left:
            for same in self.ledger.still_alike(alike):
                found.decide(same, self.ledger.fit(same[0], checks))
            await turns.give()
        return found

    async def inspect(self, node: str | None) -> tuple[int, bytes]:
        known = sorted(n for n, offer in self.ledger.offers.items() if resources_of(offer.mode))
        if node is not None and node not in known:
            why = self.ledger.left_out.get(node) or f"no node {node} with slices"
            return 404, json.dumps({"error": why}).encode()
        turns, found = Turns(self.turn_seconds), []
        for name in known if node is None else [node]:
            if name in self.ledger.offers:
                found.append(self._inspected(name))
            await turns.give()
        return 200, json.dumps({"nodes": found}).encode()

    def _inspected(self, name: str) -> dict[str, object]:
        offer, rooms = self.ledger.offers[name], self.ledger.rooms(name)
        holds = [(hold.pod, hold.by_card()) for hold in self.ledger.holds(name)]
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
