"""No room: why a container goes on no card now, and the text that its pod gets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.demands import asked_text
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.caller import Caller
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.node.state import NodeTerms

_LIKELY_MIB = 1024  # nobody means a slice of less by such a number
_TOLD = 8  # a text is bounded, and its end is the cure; `why` shows all of them


class CardLack(NamedTuple):
    """What a card lacks for a container, for people."""

    card: CardIndex
    text: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a container goes nowhere now; in words only where somebody asks.

    `must` are the numbers of the cards on which it has something already, `bound_by` says what.
    """

    rooms: Sequence[Room]
    demand: Demand
    must: frozenset[CardNumber] = frozenset()
    bound_by: str = "an init container's units lie"

    @property
    def largest(self) -> Room | None:
        """Where the largest slice is free, or None where nothing is.

        On a card that has the compute asked for, or, where none has it, on any healthy card.
        """
        serving = [r for r in self.rooms if r.is_healthy]
        usable = [r for r in serving if not r.is_full_of_pods and r.free_mem]
        core = self.demand.core_percent
        with_core = [r for r in usable if r.free_core >= max(core, r.least_core)]
        return max(with_core or usable, key=lambda r: (r.free_mem, -r.card.index), default=None)

    @property
    def lacks(self) -> tuple[CardLack, ...]:
        bound = f"fits, but {self.bound_by} on another card"
        return tuple(
            CardLack(
                room.card.index,
                room.lack(self.demand)
                or (bound if self.must and room.card.number not in self.must else "fits"),
            )
            for room in self.rooms
        )

    @property
    def reason(self) -> str:
        if not any(room.is_healthy for room in self.rooms):
            return "NoHealthyCard"
        without_cap = [replace(room, max_pods=None) for room in self.rooms]
        would_fit = sum(r.lack(self.demand) is None for r in without_cap) >= self.demand.cards
        is_capped = any(room.is_full_of_pods for room in self.rooms)
        return "TooManyPods" if would_fit and is_capped else "NoRoom"


def demand_text(demand: Demand, terms: NodeTerms) -> str:
    """What a container needs, with units; where only one resource is known yet, that one."""
    parts = [
        asked_text(resource, amount, terms.unit)
        for resource, amount in (
            (Resource.MEM, demand.mem_units),
            (Resource.CORE, demand.core_percent),
        )
        if amount
    ]
    spread = f" on {demand.cards} cards ({demand.units_per_card} each)" if demand.cards > 1 else ""
    alone = " with no other pod there" if demand.is_exclusive else ""
    return " and ".join(parts) + spread + alone


def no_room_text(caller: Caller, demand: Demand, found: NoRoom, terms: NodeTerms) -> str:
    """Why no card has room for this container: the largest free slice, and each card."""
    largest = "nothing is free on any healthy card"
    if room := found.largest:
        largest = (
            f"the largest free slice is {room.free_mem} units ({room.free_slice_mib} MiB) "
            f"on card {room.card.index}"
        )
    lacks = [f"card {index}: {lack}" for index, lack in found.lacks[:_TOLD]]
    if len(found.lacks) > _TOLD:
        lacks.append(f"and {len(found.lacks) - _TOLD} more cards")
    cards = "; ".join(lacks) or "no cards"
    if len(found.rooms) < demand.cards:
        cards = f"the node has {len(found.rooms)} cards, {demand.cards} are asked; {cards}"
    on_one = ", all from one card" if demand.cards == 1 else ""
    container = f", container {caller.container.name}," if caller.container else ""
    meant = if_in_mib(demand, found.rooms)
    less = f"{meant[:1].upper()}{meant[1:]}; else ask" if meant else "Ask"
    return (
        f"pod {caller.pod}{container} on node {terms.node} (mode {terms.mode}) asks "
        f"{demand_text(demand, terms)}{on_one}: {largest}. {cards}. "
        f"{less} less, free a slice, or send the pod to another node"
    )


def if_in_mib(demand: Demand, rooms: Sequence[Room]) -> str:
    """What to ask instead where the amount is larger than every card, and is none as MiB; else empty."""
    units = demand.units_per_card
    if units < _LIKELY_MIB or any(units <= room.card.capacity(room.unit) for room in rooms):
        return ""
    for room in rooms:
        if (meant := room.unit.count(MiB(units))) <= room.card.capacity(room.unit):
            asked = f"ask {meant * demand.cards} units (of {room.unit.mib} MiB)"
            return f"if {demand.mem_units} MiB are meant, {asked}"
    return ""


def room_lines(rooms: Iterable[Room], demand: Demand) -> tuple[str, ...]:
    """One line per card: whether `demand` fits and what the card has left, for `why`."""
    return tuple(_room_line(room, demand) for room in rooms)


def _room_line(room: Room, demand: Demand) -> str:
    """Short, so that it fits into 80 columns when it is indented."""
    fits = "fits" if room.lack(demand) is None else "no room"
    word = fits if room.is_healthy else "unhealthy"
    pods = f"{room.pods} pods" if room.max_pods is None else f"{room.pods}/{room.max_pods} pods"
    core = f", {room.free_core} % compute" if room.least_core else ""
    mine = ", this pod is here" if room.holds_pod else ""
    uuid = "-".join(room.card.uuid.split("-")[:2])
    return (
        f"{f'card {room.card.index}':<8} {word}: {room.free_mem}/{room.card.capacity(room.unit)} "
        f"units{core} free, {pods}{mine} ({uuid})"
    )
