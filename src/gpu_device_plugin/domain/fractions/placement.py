"""Placement: which card a container gets, and which cards the containers of a pod.

Where placing one after the other fails, the first may have taken the only card on which a later one
fits. A search then goes through the cards of every container, cards that are alike once, and gives up
after so many tries: a pod that it does not place in them waits as if there were no room.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.fragmentation import unusable_share
from gpu_device_plugin.domain.fractions.no_room import NoRoom
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.grants.grant import Demand, UnitsAndPercent
from gpu_device_plugin.domain.grants.init_containers import NOTHING, take
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind


@dataclass(frozen=True, slots=True)
class Placement:
    """The cards that a container goes to."""

    cards: tuple[Card, ...]
    why: str


class _Part(Protocol):
    def __rsub__(self, other: float, /) -> Self: ...


_Free = TypeVar("_Free", bound=_Part)


def scores_by_fullness(free: _Free) -> dict[PlacementPolicy, _Free]:
    """How good cards are by binpack and spread, 1 the best, where with the pod `free` of them (0 to 1) is left.

    A number, or an array of them.
    """
    return {PlacementPolicy.BINPACK: 1.0 - free, PlacementPolicy.SPREAD: free}


def _preference(
    policy: PlacementPolicy, rooms: Sequence[Room], demand: Demand
) -> Callable[[Room], tuple[float, int]]:
    """The sort key of the cards that fit; the card with the lowest key is chosen."""
    match policy:
        case PlacementPolicy.BINPACK:
            return lambda room: (room.free_mem, room.free_core)
        case PlacementPolicy.SPREAD:
            return lambda room: (-room.free_mem, -room.free_core)
        case PlacementPolicy.FGD:
            at = {room.card.index: number for number, room in enumerate(rooms)}
            free = [room.free_milli for room in rooms]

            def measure_unusable(chosen: Room) -> tuple[float, int]:
                left = list(free)
                left[at[chosen.card.index]] = chosen.left_milli(demand)
                # Of cards that are equally good the fuller one: a whole card stays whole.
                return unusable_share(left), chosen.free_mem

            return measure_unusable


_BECAUSE: Mapping[PlacementPolicy, str] = {
    PlacementPolicy.BINPACK: "binpack: the least free memory that fits",
    PlacementPolicy.SPREAD: "spread: the most free memory",
    PlacementPolicy.FGD: "fgd: what leaves the most room for others",
}


def place(  # noqa: PLR0913 - everything that decides: demand, policy, pod, extender, kubelet
    rooms: Sequence[Room],
    demand: Demand,
    policy: PlacementPolicy,
    *,
    ahead: Demand | None = None,
    prefer: Sequence[str] = (),
    wish: Sequence[CardIndex] = (),
    must: frozenset[CardNumber] = frozenset(),
) -> Placement | NoRoom:
    """As many cards as the demand names, each with room for its equal part.

    Ties go to the first in `rooms`, so that equal nodes choose the same. `ahead` is what the
    container and those that reuse its units need, and is tried first; `prefer` are UUIDs of the
    cards of the pod's earlier containers; `wish` are NVML indexes from a scheduler extender,
    honoured if they all fit; `must` are the cards with reused units, all of which are taken.
    """
    if ahead not in (None, demand):
        placed = place(rooms, ahead, policy, prefer=prefer, wish=wish, must=must)
        if isinstance(placed, Placement):
            return placed
    fitting = [room for room in rooms if room.lack(demand) is None]
    # Memory that nobody was given is no room, though nothing says how long it stays.
    clean = [room for room in fitting if not room.has_strangers or room.card.number in must]
    fitting = clean if len(clean) >= demand.cards else fitting
    bound = [room for room in fitting if room.card.number in must]
    if len(bound) < len(must) or not len(must) <= demand.cards <= len(fitting):
        return NoRoom(rooms, demand, must)
    if wished := _follow_wish(fitting, demand, wish, must):
        return _placement(wished, "the scheduler's wish")
    weigh = _preference(policy, rooms, demand)

    def order(room: Room) -> tuple[bool, bool, tuple[float, int]]:
        return room.card.number not in must, room.card.uuid not in prefer, weigh(room)

    chosen = bound if len(bound) == demand.cards else sorted(fitting, key=order)[: demand.cards]
    return _placement(chosen, _why(chosen, policy, prefer, must))


def _follow_wish(
    fitting: Sequence[Room], demand: Demand, wish: Sequence[CardIndex], must: frozenset[CardNumber]
) -> Sequence[Room]:
    """The cards that the extender wishes, if they all fit; none without a wish."""
    wished = [room for room in fitting if room.card.index in wish] if wish else []
    is_whole = len(wished) == len(set(wish)) == demand.cards
    return wished if is_whole and must <= {room.card.number for room in wished} else ()


def _why(
    chosen: Sequence[Room],
    policy: PlacementPolicy,
    prefer: Sequence[str],
    must: frozenset[CardNumber],
) -> str:
    if must:
        return "the card on which an init container leaves its units"
    if all(room.card.uuid in prefer for room in chosen):
        return "the card of the pod's earlier containers"
    free = ", ".join(f"{room.free_mem} of {room.card.capacity(room.unit)}" for room in chosen)
    return f"{_BECAUSE[policy]} ({free} units free)"


def _placement(chosen: Sequence[Room], why: str) -> Placement:
    cards = sorted((room.card for room in chosen), key=lambda card: card.index)
    return Placement(tuple(cards), why)


MOST_TRIES = 200
_FreeParts = tuple[UnitsAndPercent, UnitsAndPercent]
"""The free part of a card, and the part that the next container can reuse of an init container's."""
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
    least = Demand(Units(1), is_exclusive=is_exclusive)
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
    chosen = search.place(
        0, tuple((UnitsAndPercent(room.free_mem, room.free_core), NOTHING) for room in usable)
    )
    if chosen is None:
        return None
    by_ask = dict(zip(order, chosen, strict=True))
    return [tuple(usable[card] for card in by_ask[at]) for at in range(len(asks))]


@dataclass(slots=True)
class _Search:
    """Backtracking over the cards of one container after the other.

    Attributes:
        least_core: For each card, the compute that every container takes at least.
        sign: 1 to try full cards first, -1 for empty ones.
        failed: What is left where the rest was found not to fit.
    """

    asks: Sequence[_ContainerAsk]
    least_core: Sequence[int]
    sign: int
    tries: int = 0
    failed: set[tuple[int, tuple[_FreeParts, ...]]] = field(default_factory=set)

    def place(self, at: int, free_parts: tuple[_FreeParts, ...]) -> list[_Cards] | None:
        """The cards of the containers from `at` on, or None."""
        if at == len(self.asks):
            return []
        key = at, tuple(sorted(free_parts))
        if key in self.failed:
            return None
        kind, demand = self.asks[at]
        for chosen in self._choices(free_parts, demand):
            self.tries += 1
            if self.tries > MOST_TRIES:
                return None
            after = tuple(
                _after(card, kind, demand) if position in chosen else card
                for position, card in enumerate(free_parts)
            )
            rest = self.place(at + 1, after)
            if rest is not None:
                return [chosen, *rest]
        self.failed.add(key)
        return None

    def _choices(self, free_parts: Sequence[_FreeParts], demand: Demand) -> Iterator[_Cards]:
        """Every choice of cards, those that are alike once."""
        fitting = [
            position
            for position, (free, reusable) in enumerate(free_parts)
            if (mine := free.plus(reusable)).units >= max(1, demand.units_per_card)
            and mine.percent >= max(demand.core_percent, self.least_core[position])
        ]
        must = tuple(position for position, (_, reusable) in enumerate(free_parts) if any(reusable))
        if not set(must) <= set(fitting) or len(must) > demand.cards:
            return
        fitting.sort(key=lambda position: self.sign * free_parts[position][0].units)
        others = [position for position in fitting if position not in must]
        kinds = [(free_parts[position], self.least_core[position]) for position in others]
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


def _after(card: _FreeParts, kind: ContainerKind, demand: Demand) -> _FreeParts:
    """A card with one container more."""
    free, reusable = card
    fresh, reusable = take(kind, demand.amounts_per_card, reusable)
    return free.less(fresh), reusable
