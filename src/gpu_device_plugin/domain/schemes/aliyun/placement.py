"""Placement: which card a container gets."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.fragmentation import unusable
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.schemes.aliyun.room import Room
from gpu_device_plugin.domain.schemes.aliyun.slice_size import slice_mib
from gpu_device_plugin.domain.shares import Demand


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container goes.

    Attributes:
        cards: The cards, by NVML index.
        why: Why these, for people.
    """

    cards: tuple[Card, ...]
    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a container goes nowhere now.

    Attributes:
        largest_units: Largest slice free on one card that has the compute asked for (or, where
            none has it, on any healthy card), in memory units; 0 where nothing is free.
        largest_mib: The same as a slice in MiB.
        largest_card: Where that is, or None.
        lacks: NVML index of each card, and what it lacks.
        reason: One CamelCase word.
    """

    largest_units: int
    largest_mib: int
    largest_card: Card | None
    lacks: tuple[tuple[int, str], ...]
    reason: str = "NoRoom"


def _preference(
    policy: PlacementPolicy, rooms: Sequence[Room], demand: Demand
) -> Callable[[Room], float]:
    """What of the cards that fit comes first: the least."""
    match policy:
        case PlacementPolicy.BINPACK:
            return lambda room: room.free_mem
        case PlacementPolicy.SPREAD:
            return lambda room: -room.free_mem
        case PlacementPolicy.FGD:
            at = {room.card.index: number for number, room in enumerate(rooms)}
            free = [room.free_milli for room in rooms]

            def spoiled(chosen: Room) -> float:
                left = list(free)
                left[at[chosen.card.index]] = chosen.left_milli(demand)
                return unusable(left)

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
    prefer: Sequence[str] = (),
    wish: Sequence[int] = (),
    must: frozenset[int] = frozenset(),
) -> Placement | NoRoom:
    """As many cards as the demand names, each with room for its equal part.

    Ties go to the lowest index, so that equal nodes choose the same.

    Args:
        rooms: What each card has left.
        demand: What the container needs.
        policy: The node's preference.
        prefer: UUIDs of the cards of the pod's earlier containers: taken before others.
        wish: NVML indexes that a scheduler extender wishes; honoured if they all fit.
        must: Numbers of cards with reused units; all of them are taken.
    """
    fitting = {room.card.number: room for room in rooms if room.lack(demand) is None}
    if not must <= fitting.keys() or len(must) > demand.cards:
        return _no_room(rooms, demand, must)
    wished = [room for room in fitting.values() if room.card.index in wish]
    if len(wished) == len(set(wish)) == demand.cards and must <= {r.card.number for r in wished}:
        return _placement(wished, "the scheduler's wish")
    weigh = _preference(policy, rooms, demand)

    def order(room: Room) -> tuple[bool, bool, float, int, int]:
        comes_first = room.card.number in must, room.card.uuid in prefer
        # Of cards that are equally good the fuller one: a whole card stays whole.
        return not comes_first[0], not comes_first[1], weigh(room), room.free_mem, room.card.index

    chosen = sorted(fitting.values(), key=order)[: demand.cards]
    if len(chosen) < demand.cards:
        return _no_room(rooms, demand, must)
    return _placement(chosen, _why(chosen, policy, prefer, must))


def place_ahead(
    search: Callable[[Demand], Placement | NoRoom], ahead: Demand, needed: Demand
) -> Placement | NoRoom:
    """Cards with room for the containers after this one too, else with room for it alone.

    Args:
        search: `place`, with everything but the demand.
        ahead: What the container and those that reuse its units need.
        needed: What the container needs.
    """
    found = search(ahead)
    return search(needed) if isinstance(found, NoRoom) and ahead != needed else found


def _why(
    chosen: Sequence[Room], policy: PlacementPolicy, prefer: Sequence[str], must: frozenset[int]
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


def _no_room(rooms: Sequence[Room], demand: Demand, must: Collection[int]) -> NoRoom:
    serving = [r for r in rooms if r.is_healthy and not r.is_behind_other_door]
    usable = [r for r in serving if not r.is_full_of_pods and r.free_mem]
    with_core = [r for r in usable if r.free_core >= max(demand.core_percent, r.least_core)]
    best = max(with_core or usable, key=lambda r: (r.free_mem, -r.card.index), default=None)
    lacks = [(r.card.index, _lack_text(r, demand, must)) for r in rooms]
    return NoRoom(
        largest_units=best.free_mem if best else 0,
        largest_mib=slice_mib(best.card, best.free_mem, best.unit) if best else 0,
        largest_card=best.card if best else None,
        lacks=tuple(lacks),
        reason=_reason(rooms, demand),
    )


def _lack_text(room: Room, demand: Demand, must: Collection[int]) -> str:
    lack = room.lack(demand)
    if lack is not None:
        return lack
    if must and room.card.number not in must:
        return "fits, but an init container's units lie on another card"
    return "fits"


def _reason(rooms: Sequence[Room], demand: Demand) -> str:
    if not any(room.is_healthy for room in rooms):
        return "NoHealthyCard"
    without_cap = [replace(room, max_pods=None) for room in rooms]
    would_fit = sum(room.lack(demand) is None for room in without_cap) >= demand.cards
    is_capped = any(room.is_full_of_pods for room in rooms)
    return "TooManyPods" if would_fit and is_capped else "NoRoom"
