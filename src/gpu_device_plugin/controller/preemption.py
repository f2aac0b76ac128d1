"""Whom to evict from a node so that a pod gets its cards: the cheapest pods of a lower priority.

kube-scheduler proposes victims by a node's sums: they may free no card, and before 1.38 it proposes
nobody where the sums fit. The order is that of its own choice between nodes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.fractions.node_fit import Fit, RequestChecks
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.node.pods import PodRef, Standing
from gpu_device_plugin.kubernetes.objects.extender_messages import Victims

CountBroken = Callable[[Iterable[PodRef]], int]
"""How many of these evictions a PodDisruptionBudget does not allow."""


@dataclass(frozen=True, slots=True)
class _Search:
    """One node: which pods may be evicted, and whether the asking pod fits without some of them."""

    fits: Callable[[Collection[str]], bool]
    evictable: Mapping[PodRef, tuple[PodHold, Standing]]
    count_broken: CountBroken

    def cheapest(self) -> list[PodRef]:
        """Pods of one card if that is enough, else of any; none where no eviction helps."""
        by_card: dict[CardIndex, list[PodRef]] = {}
        for ref, (hold, _) in self.evictable.items():
            for card in hold.by_card():
                by_card.setdefault(card, []).append(ref)
        found = [self._without_spared(seed) for _, seed in sorted(by_card.items())]
        if not any(found):
            found = [self._without_spared(list(self.evictable))]
        return min(filter(None, found), key=self._cost, default=[])

    def _without_spared(self, seed: list[PodRef]) -> list[PodRef]:
        """Those of them that are needed, the most valuable spared first; none where all are not enough."""
        chosen = {ref.uid: ref for ref in seed}
        if not self.fits(chosen):
            return []
        for ref in sorted(seed, key=self._value, reverse=True):
            if self.fits(chosen.keys() - {ref.uid}):
                del chosen[ref.uid]
        return sorted(chosen.values(), key=str)

    def _value(self, ref: PodRef) -> tuple[int, int, list[int]]:
        """More is worth more: a budget that would break, a higher priority, a longer life."""
        _, standing = self.evictable[ref]
        return self.count_broken([ref]), standing.priority, _age(standing.created)

    def _cost(self, chosen: list[PodRef]) -> tuple[int, int, int, list[int]]:
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
        return proposed
    if has_room or held == ending:
        return None  # There is room, or there will be; or nobody is left to go.
    others = [uid for uid in uids if uid not in held]
    always = {*ending, *others}
    staying = {ref: found for ref, found in evictable.items() if ref.uid not in ending}
    count_broken = await budgets()
    chosen = _Search(lambda gone: fits({*gone, *always}), staying, count_broken).cheapest()
    if not chosen:
        return None
    return Victims([*others, *(ref.uid for ref in chosen)], count_broken(chosen))
