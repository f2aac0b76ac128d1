"""What a pod's containers take of cards, one after the other, as the kubelet hands units on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.grants.holdings import UnitsAndPercent
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest

Shares: TypeAlias = Mapping[CardIndex, UnitsAndPercent]
NOTHING: UnitsAndPercent = (0, 0)
_MOST_SHARED = 16
"""Most shares of a pod that is taken to hold as others do."""


@dataclass(slots=True)
class ContainerSums:
    """What the containers so far have taken; it grows with each of them.

    Attributes:
        kept: Card index -> what init containers hold there, for the containers after them.
        apps: Index in `spec.containers` -> card index -> share.
        inits: Index in `spec.initContainers` -> card index -> share; sidecars are among them.
    """

    kept: dict[CardIndex, UnitsAndPercent] = field(default_factory=dict)
    taken: dict[CardIndex, UnitsAndPercent] = field(default_factory=dict)
    apps: dict[int, Shares] = field(default_factory=dict)
    inits: dict[int, Shares] = field(default_factory=dict)

    def fresh(self, card: CardIndex, share: UnitsAndPercent) -> UnitsAndPercent:
        """What of a share on this card no init container hands on."""
        pool = self.kept.get(card, NOTHING)
        return max(0, share[0] - pool[0]), max(0, share[1] - pool[1])

    def add(self, container: ContainerRequest, shares: Shares) -> None:
        """One container more, that has these shares by card index."""
        for card, share in shares.items():
            pool, before = self.kept.get(card, NOTHING), self.taken.get(card, NOTHING)
            new = self.fresh(card, share)
            self.taken[card] = (before[0] + new[0], before[1] + new[1])
            if container.kind is ContainerKind.INIT:
                self.kept[card] = (max(pool[0], share[0]), max(pool[1], share[1]))
            else:
                self.kept[card] = (max(0, pool[0] - share[0]), max(0, pool[1] - share[1]))
        named = self.apps if container.kind is ContainerKind.APP else self.inits
        named[container.index] = shares

    def extra(self) -> dict[CardIndex, UnitsAndPercent]:
        """What was taken beyond the app containers' shares, by card index."""
        found = dict(self.taken)
        for shares in self.apps.values():
            for card, (units, percent) in shares.items():
                before = found.get(card, NOTHING)
                found[card] = (before[0] - units, before[1] - percent)
        positive = {c: (max(0, u), max(0, p)) for c, (u, p) in found.items()}
        return {card: share for card, share in positive.items() if any(share)}


def one_copy(shares: Mapping[int, Shares]) -> Mapping[int, Shares]:
    """The same mapping for all that are equal: tens of thousands of pods hold alike.

    A large one is the pod's own: what is kept outlives the pod.
    """
    if sum(map(len, shares.values())) > _MOST_SHARED:
        return shares
    return _one_copy(tuple((number, tuple(cards.items())) for number, cards in shares.items()))


@lru_cache(maxsize=4096)
def _one_copy(
    shares: tuple[tuple[int, tuple[tuple[CardIndex, UnitsAndPercent], ...]], ...],
) -> Mapping[int, Shares]:
    return {number: dict(cards) for number, cards in shares}
