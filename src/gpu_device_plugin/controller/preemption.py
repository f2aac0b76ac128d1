"""Whom to evict from a node so that a pod gets its cards: the cheapest pods of a lower priority.

kube-scheduler proposes victims by a node's sums: they may free no card, and before 1.38 it proposes
nobody where the sums fit. The order is that of its own choice between nodes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, islice
from operator import itemgetter

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.fractions.node_fit import Fit, RequestChecks
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.node.pods import PodRef, Standing
from gpu_device_plugin.kubernetes.objects.extender_messages import Victims

CountBroken = Callable[[Iterable[PodRef]], int]
"""How many of these evictions a PodDisruptionBudget does not allow."""
_MOST_SETS = 128
"""All sets of seven pods, or of 15 those of one and two. Each may take most of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Search:
    """One node: which pods may be evicted, and whether the asking pod fits without some of them."""

    fits: Callable[[Collection[str]], bool]
    evictable: Mapping[PodRef, tuple[PodHold, Standing]]
    count_broken: CountBroken

    def cheapest(self) -> list[PodRef]:
        """The cheapest of many small sets, else what sparing leaves; none where no eviction helps."""
        everybody = sorted(self.evictable, key=str)
        by_card: dict[CardIndex, list[PodRef]] = {}
        for ref in everybody:
            for card in self.evictable[ref][0].by_card():
                by_card.setdefault(card, []).append(ref)
        spared = (self._without_spared(seed) for seed in (*by_card.values(), everybody))
        found = min(filter(None, spared), key=self._cost, default=None)
        if found is None:
            return []
        sets = chain.from_iterable(combinations(everybody, n + 1) for n in range(len(everybody)))
        known = self._cost(found)
        priced = [(self._cost(each), each) for each in islice(sets, _MOST_SETS)]
        cheaper = sorted((pair for pair in priced if pair[0] < known), key=itemgetter(0))
        return next((list(each) for _, each in cheaper if self._fit(each)), found)

    def _fit(self, chosen: Iterable[PodRef]) -> bool:
        return self.fits({ref.uid for ref in chosen})

    def _without_spared(self, seed: Sequence[PodRef]) -> list[PodRef]:
        """Those of them that are needed, the most valuable spared first; none where all are not enough."""
        chosen = sorted(seed, key=self._value)
        broken = [self.count_broken(chosen[:n]) for n in range(len(chosen) + 1)]
        breaks = {ref: broken[n + 1] - broken[n] for n, ref in enumerate(chosen)}
        if not self._fit(chosen):
            return []
        for ref in sorted(
            chosen, key=lambda each: (breaks[each], *self._value(each)), reverse=True
        ):
            if self._fit(left := [each for each in chosen if each != ref]):
                chosen = left
        return sorted(chosen, key=str)

    def _value(self, ref: PodRef) -> tuple[int, int, list[int]]:
        """More is worth more: a higher priority, less that it holds, a longer life."""
        hold, standing = self.evictable[ref]
        units = sum(share.units for share in hold.by_card().values())
        return standing.priority, -units, _age(standing.created)

    def _cost(self, chosen: Sequence[PodRef]) -> tuple[int, int, int, list[int]]:
        standings = [self.evictable[ref][1] for ref in chosen]
        oldest = min(standing.created for standing in standings)
        highest = max(standing.priority for standing in standings)
        return self.count_broken(chosen), highest, len(chosen), _age(oldest)


def _age(created: str) -> list[int]:
    """Sorts times the other way round: an earlier one is more."""
    return [-ord(character) for character in created]


async def choose_victims(
    ledger: ClusterLedger,
    node: str,
    checks: RequestChecks,
    proposed: Victims,
    budgets: Callable[[], Awaitable[CountBroken]],
) -> Victims | None:
    """Whom to evict from a node for a pod; None where nobody has to go, or no eviction helps.

    What is proposed stays where it frees a card, and where the cards have room: kube-scheduler needs
    something else then. Else only those proposed stay who hold nothing of the cards. `budgets` are
    asked for only where others have to be chosen.
    """
    evictable = ledger.evictable(node, checks.pod.standing.priority)
    ending = {ref.uid for ref, (_, standing) in evictable.items() if standing.is_ending}
    held, uids = {ref.uid for ref in evictable}, proposed.uids

    def fits(gone: Collection[str]) -> bool:
        return isinstance(ledger.fit(node, checks, gone), Fit)

    has_room = fits(ending)
    if uids and (fits(()) if has_room else fits({*uids, *ending})):
        new = [uid for uid in uids if uid not in ending]
        return replace(proposed, uids=new) if new else proposed
    if has_room or held == ending:
        return None  # There is room, or there will be; or nobody is left to go.
    others = [uid for uid in uids if uid not in held]
    always = {*ending, *others}
    staying = {ref: found for ref, found in evictable.items() if ref.uid not in ending}
    frees_milli, count_broken = _frees_milli(ledger, node, checks, always | held), await budgets()

    def is_enough(chosen: Collection[str]) -> bool:
        gone = always.union(chosen)
        return frees_milli(gone) and fits(gone)

    chosen = _Search(is_enough, staying, count_broken).cheapest()
    uids = [*others, *(ref.uid for ref in chosen)]
    return Victims(uids, count_broken(chosen)) if chosen else None


def _frees_milli(
    ledger: ClusterLedger, node: str, checks: RequestChecks, most: Collection[str]
) -> Callable[[Collection[str]], bool]:
    """Whether enough processor is free without these pods.

    By kube-scheduler's count it is without the `most`; by ours, of an older watch, perhaps not.
    """
    free = partial(ledger.processors.free, node)
    milli = min(checks.pod.cpu_milli, free(most))
    return lambda gone: free(gone) >= milli
