"""What each card of a node has left, by what its pods hold.

Amounts only: unit ids are the node's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.devices import CardIndex
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.ledger import Use
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import NodeOffer, PodHold
from gpu_device_plugin.domain.schemes.aliyun.placement import NoRoom, place
from gpu_device_plugin.domain.schemes.aliyun.pod_take import Share
from gpu_device_plugin.domain.schemes.aliyun.room import Room, room_of
from gpu_device_plugin.domain.shares import Demand


@dataclass(slots=True)
class _Left:
    """What a card has left, counted down with each share that is taken."""

    room: Room
    pods: set[PodRef] = field(default_factory=set)

    def take(self, hold: PodHold, share: Share) -> None:
        units, percent = share
        is_new = hold.pod not in self.pods
        self.pods.add(hold.pod)
        self.down(units, percent, int(is_new), is_closed=hold.is_exclusive)

    def down(self, units: int, percent: int, pods: int, *, is_closed: bool = False) -> None:
        room = self.room
        is_closed = is_closed or room.is_closed
        self.room = replace(
            room,
            free_mem=0 if is_closed else max(0, room.free_mem - units),
            free_core=0 if is_closed else max(0, room.free_core - percent),
            pods=room.pods + pods,
            is_closed=is_closed,
        )


def node_rooms(
    offer: NodeOffer, holds: Iterable[PodHold], door: Door | None = None
) -> tuple[Room, ...]:
    """What each card of a node has left; where `door` is named, for requests that come by it.

    Unplaced demands are put where the node's own policy would put them, the first pod first; where
    none has room, on the emptiest cards: somebody holds them, whatever we know. They are never on a
    card that is given by claims. What claims hold of those the node's agent says.
    """
    empty = (
        room_of(card, Use(), offer.terms, is_healthy=card.index in offer.healthy)
        for card in offer.cards
    )
    left = {room.card.index: _Left(room) for room in empty}
    for told in offer.claimed:
        left[told.index].down(told.units, told.percent, told.pods)
    waiting: list[tuple[PodHold, Demand]] = []
    for hold in holds:
        if hold.is_by_claims:
            continue
        for index, share in hold.by_card().items():
            if index in left:
                left[index].take(hold, share)
            else:
                waiting.append((hold, Demand(*share)))
        waiting += [(hold, needed) for needed in hold.unplaced]
    for hold, needed in waiting:
        # Counted down card by card: counting all again for each would take the square of the time.
        rooms = [each.room for index, each in left.items() if index not in offer.by_claims]
        for index in _guessed(rooms, replace(needed, is_exclusive=hold.is_exclusive), offer):
            left[index].take(hold, (needed.units_per_card, needed.core_percent))
    found = [each.room for each in left.values()]
    return tuple(found if door is None else (_through(door, room, offer) for room in found))


def _through(door: Door, room: Room, offer: NodeOffer) -> Room:
    is_behind_other = (room.card.index in offer.by_claims) is not (door is Door.DRA)
    return replace(room, is_behind_other_door=True) if is_behind_other else room


def _guessed(rooms: Sequence[Room], needed: Demand, offer: NodeOffer) -> Sequence[CardIndex]:
    placed = place(rooms, needed, offer.policy or PlacementPolicy.BINPACK)
    if not isinstance(placed, NoRoom):
        return [card.index for card in placed.cards]
    emptiest = sorted(rooms, key=lambda room: (-room.free_mem, room.card.index))
    return [room.card.index for room in emptiest[: needed.cards]]
