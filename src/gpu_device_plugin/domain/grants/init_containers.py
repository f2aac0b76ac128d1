"""Init containers: what ordinary ones hold is reused by the containers after them.

The kubelet gives a container units of the pod's earlier init containers before any others. A sidecar
or an app container keeps them; an ordinary init container (`Holder.is_handed_on`) leaves all that it
has, so nothing that it reuses is used up. Amounts are counted here, `Ledger.before` says which grants
count as free for the next container.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.grants.grant import ContainerDemand, Demand, UnitsAndPercent
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest

Shares: TypeAlias = Mapping[CardIndex, UnitsAndPercent]
NOTHING = UnitsAndPercent()
_MOST_SHARED = 16
"""Most shares of a pod that is taken to hold as others do."""


class Taken(NamedTuple):
    """What a container takes beyond what it reuses, and what the containers after it can reuse."""

    fresh: UnitsAndPercent
    reusable: UnitsAndPercent


def take(kind: ContainerKind, asked: UnitsAndPercent, reusable: UnitsAndPercent) -> Taken:
    """What a container that asks this takes, where this is reusable."""
    fresh = asked.less(reusable)
    is_handed_on = kind is ContainerKind.INIT
    return Taken(fresh, reusable.plus(fresh) if is_handed_on else reusable.less(asked))


def demands_ahead(needs: Sequence[ContainerDemand]) -> list[Demand | None]:
    """What the card of each container needs free, with the containers that reuse its units.

    Those can be on no other card: a card without room for them would have the pod refused. None of
    a container that reuses units itself, because it is bound to their card.
    """
    ahead: dict[int, Demand] = {}
    first, reusable = 0, NOTHING
    for at, (container, needed) in enumerate(needs):
        is_bound = any(reusable)
        fresh, reusable = take(container.kind, needed.amounts, reusable)
        if is_bound:
            units, percent = ahead[first].amounts.plus(fresh)
            ahead[first] = replace(ahead[first], mem_units=units, core_percent=percent)
        else:
            first, ahead[at] = at, needed
    return [ahead.get(at) for at in range(len(needs))]


@dataclass(slots=True)
class ContainerSums:
    """What the containers so far have taken; it grows with each of them.

    Attributes:
        reusable: Card index -> what init containers hold there, for the containers after them.
        apps: Index in `spec.containers` -> card index -> share.
        inits: Index in `spec.initContainers` -> card index -> share; sidecars are among them.
    """

    reusable: dict[CardIndex, UnitsAndPercent] = field(default_factory=dict)
    taken: dict[CardIndex, UnitsAndPercent] = field(default_factory=dict)
    apps: dict[int, Shares] = field(default_factory=dict)
    inits: dict[int, Shares] = field(default_factory=dict)

    def add(self, container: ContainerRequest, shares: Shares) -> Shares:
        """One container more, that has these shares by card index; what it reuses is not in the answer."""
        new = {}
        for card, share in shares.items():
            reusable = self.reusable.get(card, NOTHING)
            new[card], self.reusable[card] = take(container.kind, share, reusable)
            self.taken[card] = self.taken.get(card, NOTHING).plus(new[card])
        named = self.apps if container.kind is ContainerKind.APP else self.inits
        named[container.index] = shares
        return new

    def extra(self) -> dict[CardIndex, UnitsAndPercent]:
        """What was taken beyond the app containers' shares, by card index."""
        beyond = dict(self.taken)
        for shares in self.apps.values():
            for card, share in shares.items():
                beyond[card] = beyond.get(card, NOTHING).less(share)
        return {card: share for card, share in beyond.items() if any(share)}


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
