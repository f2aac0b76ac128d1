"""Refusals and decisions in words, for `kubectl describe` and `gpu-device-plugin why`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.caller import Asker
from gpu_device_plugin.domain.placement import NoRoom, Room
from gpu_device_plugin.domain.requests import Demand, NodeTerms, asked_text
from gpu_device_plugin.domain.units import Resource

_DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one container, as `why` shows it.

    Attributes:
        pod: `namespace/name`.
        container: Name of the container, or empty if it is not known.
        asked: What it asked, for people.
        rooms: One line per card: what it had free at that moment.
        outcome: The result, for people.
        reason: One CamelCase word for refusals; empty otherwise.
        at_seconds: Wall clock.
        owner: The controller that made the pod, `ReplicaSet namespace/name`; empty where none is known.
    """

    pod: str
    container: str
    asked: str
    rooms: tuple[str, ...]
    outcome: str
    reason: str
    at_seconds: float
    owner: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether the container was refused."""
        return bool(self.reason)


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
    return " and ".join(parts) + spread


def no_room_text(asker: Asker, demand: Demand, found: NoRoom, terms: NodeTerms) -> str:
    """Why no card has room for this container: the largest free slice, and each card."""
    if found.largest_card is None:
        largest = "nothing is free on any healthy card"
    else:
        largest = (
            f"the largest free slice is {found.largest_units} units ({found.largest_mib} MiB) "
            f"on card {found.largest_card.index}"
        )
    cards = "; ".join(f"card {index}: {lack}" for index, lack in found.lacks) or "no cards"
    if len(found.lacks) < demand.cards:
        cards = f"the node has {len(found.lacks)} cards, {demand.cards} are asked; {cards}"
    on_one = ", all from one card" if demand.cards == 1 else ""
    return (
        f"pod {_who(asker)} on node {terms.node} (mode {terms.mode}) asks "
        f"{demand_text(demand, terms)}{on_one}: {largest}. {cards}. "
        f"Ask less, free a slice, or send the pod to another node"
    )


def room_lines(rooms: Iterable[Room], demand: Demand) -> tuple[str, ...]:
    """One line per card: whether `demand` fits and what the card has left, for `why`."""
    return tuple(_room_line(room, demand) for room in rooms)


def why_text(decisions: Sequence[Decision]) -> str:
    """What `gpu-device-plugin why NAMESPACE/POD` prints: the decisions, oldest first."""
    if not decisions:
        return (
            "nothing has been decided about this pod since the agent started, or it was too long ago; "
            "where a controller makes one pod after the other, ask for its owner\n"
        )
    return "\n".join(_paragraph(decision) for decision in decisions)


def refusals_text(owner: str, count: int, since_seconds: float, last: Sequence[Decision]) -> str:
    """How often an owner's pods were refused, and the last of these refusals.

    A controller makes a new pod for each one that fails, so one cause makes many refusals.
    """
    times = "once" if count == 1 else f"{count} times"
    head = f"{owner}: pods of it were refused {times} since {_time_of_day(since_seconds)}\n"
    return "\n".join([head, *map(_paragraph, last)])


def _paragraph(decision: Decision) -> str:
    where = f", container {decision.container}" if decision.container else ""
    reason = f" [{decision.reason}]" if decision.reason else ""
    rooms = "".join(f"  {line}\n" for line in decision.rooms)
    return (
        f"{_time_of_day(decision.at_seconds)} {decision.pod}{where}\n"
        f"  asked    {decision.asked}\n"
        f"  decided  {decision.outcome}{reason}\n{rooms}"
    )


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


def _time_of_day(at_seconds: float) -> str:
    """`HH:MM:SSZ`, without the day, because decisions are kept for hours."""
    seconds = int(at_seconds) % _DAY_SECONDS
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
