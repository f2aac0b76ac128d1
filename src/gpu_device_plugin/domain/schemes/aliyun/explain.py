"""Demands, rooms and refusals in words."""

from collections.abc import Iterable

from gpu_device_plugin.domain.caller import Asker
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.schemes.aliyun.placement import NoRoom
from gpu_device_plugin.domain.schemes.aliyun.requests import asked_text
from gpu_device_plugin.domain.schemes.aliyun.room import Room
from gpu_device_plugin.domain.schemes.aliyun.units import Resource
from gpu_device_plugin.domain.shares import Demand

_TOLD = 8  # a text is bounded, and its end is the cure; `why` shows all of them


def demand_text(demand: Demand, terms: NodeTerms) -> str:
    """What a container needs, with units.

    A demand of which only one resource is known yet shows that one.
    """
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


def no_room_text(asker: Asker, demand: Demand, found: NoRoom, terms: NodeTerms) -> str:
    """Why no card has room for this container: the largest free slice, and each card."""
    room = found.largest
    if room is None:
        largest = "nothing is free on any healthy card"
    else:
        largest = (
            f"the largest free slice is {room.free_mem} units ({room.free_slice_mib} MiB) "
            f"on card {room.card.index}"
        )
    told = [f"card {index}: {lack}" for index, lack in found.lacks[:_TOLD]]
    if len(found.lacks) > _TOLD:
        told.append(f"and {len(found.lacks) - _TOLD} cards more")
    cards = "; ".join(told) or "no cards"
    if len(found.rooms) < demand.cards:
        cards = f"the node has {len(found.rooms)} cards, {demand.cards} are asked; {cards}"
    on_one = ", all from one card" if demand.cards == 1 else ""
    return (
        f"pod {_who(asker)} on node {terms.node} (mode {terms.mode}) asks "
        f"{demand_text(demand, terms)}{on_one}: {largest}. {cards}. "
        f"Ask less, free a slice, or send the pod to another node"
    )


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


def _who(asker: Asker) -> str:
    return f"{asker.pod}, container {asker.container.name}," if asker.container else str(asker.pod)
