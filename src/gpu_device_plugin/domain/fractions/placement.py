"""Placement: which card a container gets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.fractions.fragmentation import unusable_share
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.node.modes import PlacementPolicy


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container goes."""

    cards: tuple[Card, ...]
    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a container goes nowhere now; in words only where somebody asks.

    `must` are the numbers of the cards with reused units.
    """

    rooms: Sequence[Room]
    demand: Demand
    must: frozenset[CardNumber] = frozenset()

    @property
    def largest(self) -> Room | None:
        """Where the largest slice is free, or None where nothing is.

        On a card that has the compute asked for, or, where none has it, on any healthy card.
        """
        serving = [r for r in self.rooms if r.is_healthy and not r.is_behind_other_door]
        usable = [r for r in serving if not r.is_full_of_pods and r.free_mem]
        core = self.demand.core_percent
        with_core = [r for r in usable if r.free_core >= max(core, r.least_core)]
        return max(with_core or usable, key=lambda r: (r.free_mem, -r.card.index), default=None)

    @property
    def lacks(self) -> tuple[tuple[CardIndex, str], ...]:
        """NVML index of each card, and what it lacks."""
        bound = "fits, but an init container's units lie on another card"
        return tuple(
            (
                room.card.index,
                room.lack(self.demand)
                or (bound if self.must and room.card.number not in self.must else "fits"),
            )
            for room in self.rooms
        )

    @property
    def reason(self) -> str:
        """One CamelCase word."""
        if not any(room.is_healthy for room in self.rooms):
            return "NoHealthyCard"
        without_cap = [replace(room, max_pods=None) for room in self.rooms]
        would_fit = sum(r.lack(self.demand) is None for r in without_cap) >= self.demand.cards
        is_capped = any(room.is_full_of_pods for room in self.rooms)
        return "TooManyPods" if would_fit and is_capped else "NoRoom"


def _preference(
    policy: PlacementPolicy, rooms: Sequence[Room], demand: Demand
) -> Callable[[Room], tuple[float, int]]:
    """What of the cards that fit comes first: the least."""
    match policy:
        case PlacementPolicy.BINPACK:
            return lambda room: (room.free_mem, room.free_core)
        case PlacementPolicy.SPREAD:
            return lambda room: (-room.free_mem, -room.free_core)
        case PlacementPolicy.FGD:
            at = {room.card.index: number for number, room in enumerate(rooms)}
            free = [room.free_milli for room in rooms]

            def spoiled(chosen: Room) -> tuple[float, int]:
                left = list(free)
                left[at[chosen.card.index]] = chosen.left_milli(demand)
                # Of cards that are equally good the fuller one: a whole card stays whole.
                return unusable_share(left), chosen.free_mem

            return spoiled


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
        found = place(rooms, ahead, policy, prefer=prefer, wish=wish, must=must)
        if isinstance(found, Placement):
            return found
    fitting = [room for room in rooms if room.lack(demand) is None]
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
