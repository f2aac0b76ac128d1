"""Search for the cards of pods of several containers, where placing one after the other has failed.

The first container that is placed may take the only card on which a later one fits. The search goes
through the cards of every container, cards that are alike once, and gives up after so many tries:
a pod that it does not place in them waits as if there were no room.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind

MOST_TRIES = 200
_Left = tuple[int, int, int, int]
"""Of a card: memory and compute that are free, and what init containers hand on of them."""
_ContainerAsk = tuple[ContainerKind, Demand]
_Cards = tuple[int, ...]
"""Positions in the list of rooms."""


def cards_for_all(
    rooms: Sequence[Room], asks: Sequence[_ContainerAsk], policy: PlacementPolicy
) -> list[tuple[Room, ...]] | None:
    """The cards of each container, in the order of `asks`, or None where no way was found.

    `rooms` are for a pod that holds nothing yet; `asks` are in the order in which the kubelet admits.
    """
    is_exclusive = any(demand.is_exclusive for _, demand in asks)
    least = Demand(1, 0, is_exclusive=is_exclusive)
    usable = [room for room in rooms if room.lack(least) is None]
    has_init = any(kind is ContainerKind.INIT for kind, _ in asks)
    if not has_init and sum(d.mem_units for _, d in asks) > sum(r.free_mem for r in usable):
        return None
    # Largest first finds out soonest. Init containers hand units on in the order of the spec.
    order = list(range(len(asks)))
    if not has_init:
        order.sort(key=lambda at: (-asks[at][1].units_per_card, -asks[at][1].core_percent))
    sign = -1 if policy is PlacementPolicy.SPREAD else 1
    search = _Search([asks[at] for at in order], [room.least_core for room in usable], sign)
    found = search.place(0, tuple((room.free_mem, room.free_core, 0, 0) for room in usable))
    if found is None:
        return None
    by_ask = dict(zip(order, found, strict=True))
    return [tuple(usable[card] for card in by_ask[at]) for at in range(len(asks))]


@dataclass(slots=True)
class _Search:
    """Backtracking over the cards of one container after the other.

    Attributes:
        least_core: Of each card, the compute that every container takes at least.
        sign: 1 to try full cards first, -1 for empty ones.
        failed: What is left where the rest was found not to fit.
    """

    asks: Sequence[_ContainerAsk]
    least_core: Sequence[int]
    sign: int
    tries: int = 0
    failed: set[tuple[int, tuple[_Left, ...]]] = field(default_factory=set)

    def place(self, at: int, left: tuple[_Left, ...]) -> list[_Cards] | None:
        """The cards of the containers from `at` on, or None."""
        if at == len(self.asks):
            return []
        key = at, tuple(sorted(left))
        if key in self.failed:
            return None
        kind, demand = self.asks[at]
        for chosen in self._choices(left, demand):
            self.tries += 1
            if self.tries > MOST_TRIES:
                return None
            after = tuple(
                _after(card, kind, demand) if position in chosen else card
                for position, card in enumerate(left)
            )
            rest = self.place(at + 1, after)
            if rest is not None:
                return [chosen, *rest]
        self.failed.add(key)
        return None

    def _choices(self, left: Sequence[_Left], demand: Demand) -> Iterator[_Cards]:
        """Every choice of cards, those that are alike once."""
        fitting = [
            position
            for position, card in enumerate(left)
            if card[0] + card[2] >= max(1, demand.units_per_card)
            and card[1] + card[3] >= max(demand.core_percent, self.least_core[position])
        ]
        must = tuple(position for position, card in enumerate(left) if any(card[2:]))
        if not set(must) <= set(fitting) or len(must) > demand.cards:
            return
        fitting.sort(key=lambda position: self.sign * left[position][0])
        others = [position for position in fitting if position not in must]
        kinds = [(left[position], self.least_core[position]) for position in others]
        for more in _combinations(kinds, demand.cards - len(must)):
            yield (*must, *(others[at] for at in more))


def _combinations(kinds: Sequence[object], size: int, start: int = 0) -> Iterator[_Cards]:
    """Positions from `start` on, in the order of `itertools.combinations`; those alike once.

    What is alike is never gone through: of 36 empty cards there are nine billion ways to take 18.

    >>> list(_combinations("aab", 2))
    [(0, 1), (0, 2)]
    """
    if size == 0:
        yield ()
        return
    seen = set()
    for at in range(start, len(kinds) - size + 1):
        if kinds[at] not in seen:
            seen.add(kinds[at])
            for rest in _combinations(kinds, size - 1, at + 1):
                yield (at, *rest)


def _after(card: _Left, kind: ContainerKind, demand: Demand) -> _Left:
    """A card with one container more."""
    units, percent = demand.units_per_card, demand.core_percent
    mem, core, kept_mem, kept_core = card
    mem, core = mem - max(0, units - kept_mem), core - max(0, percent - kept_core)
    if kind is ContainerKind.INIT:
        return mem, core, max(kept_mem, units), max(kept_core, percent)
    return mem, core, max(0, kept_mem - units), max(0, kept_core - percent)
