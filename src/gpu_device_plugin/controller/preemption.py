"""Whom to evict from a node so that a pod gets its cards: the cheapest pods of a lower priority.

kube-scheduler proposes victims by a node's sums: they may free no card, and before 1.38 it proposes
nobody where the sums fit. The order is that of its own choice between nodes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.fractions.node_fit import Fit, RequestChecks
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.node.pods import PodRef, Standing
from gpu_device_plugin.kubernetes.objects.extender_messages import Victims

CountBroken = Callable[[Iterable[PodRef]], int]
"""How many of these evictions a PodDisruptionBudget does not allow."""
Choose = Callable[[CountBroken], Victims | None]
"""Whom to evict; None where no eviction helps."""


@dataclass(frozen=True, slots=True)
class _Search:
    """One node: who may go, and whether the pod fits when some are gone."""

    fits: Callable[[Collection[str]], bool]
    evictable: Mapping[PodRef, tuple[PodHold, Standing]]
    always: frozenset[str]
    """Uids of pods that go in any case: they are ending, or kube-scheduler needs what else they hold."""
    count_broken: CountBroken

    def cheapest(self) -> list[PodRef] | None:
        """Pods of one card if that is enough, else of any; None where no eviction helps."""
        cards = sorted({card for hold, _ in self.evictable.values() for card in hold.by_card()})
        seeds = [
            [ref for ref, (hold, _) in self.evictable.items() if card in hold.by_card()]
            for card in cards
        ]
        found = [chosen for seed in seeds if (chosen := self._without_spared(seed))]
        if not found and (chosen := self._without_spared(list(self.evictable))):
            found = [chosen]
        return min(found, key=self._cost, default=None)

    def _without_spared(self, seed: list[PodRef]) -> list[PodRef]:
        """Those of them that are needed, the most valuable spared first; none where all are not enough."""
        if not self.fits({ref.uid for ref in seed} | self.always):
            return []
        chosen = set(seed)
        for ref in sorted(seed, key=self._value, reverse=True):
            if self.fits({each.uid for each in chosen if each != ref} | self.always):
                chosen.discard(ref)
        return sorted(chosen, key=str)

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


def choose_victims(
    ledger: ClusterLedger, node: str, checks: RequestChecks, proposed: Victims
) -> Victims | Choose | None:
    """Whom to evict from a node for a pod; None where nobody has to go.

    What is proposed stays where it frees a card, and where the cards have room: kube-scheduler needs
    something else then. Else only those proposed stay who hold nothing of the cards, and it takes the
    budgets to choose the others.
    """

    def fits(gone: Collection[str]) -> bool:
        return isinstance(ledger.fit(node, checks, gone), Fit)

    evictable = ledger.evictable(node, checks.pod.standing.priority)
    ending = {ref.uid for ref, (_, standing) in evictable.items() if standing.is_ending}
    uids = set(proposed.uids)
    if uids and (fits(()) or (not fits(ending) and fits(uids | ending))):
        return proposed
    if fits(ending):
        return None  # There is room, or there will be.
    held = {ref.uid for ref in evictable}
    others = [uid for uid in proposed.uids if uid not in held]
    staying = {ref: found for ref, found in evictable.items() if ref.uid not in ending}

    def choose(count_broken: CountBroken) -> Victims | None:
        chosen = _Search(fits, staying, frozenset((*ending, *others)), count_broken).cheapest()
        if chosen is None:
            return None
        return Victims([*others, *(ref.uid for ref in chosen)], count_broken(chosen))

    return choose if staying else None
