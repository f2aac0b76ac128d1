"""What each card of a node has left, by what its pods hold.

Amounts only: unit ids are the node's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.ledger import Use, used
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import NodeOffer, PodHold
from gpu_device_plugin.domain.schemes.aliyun.placement import NoRoom, place
from gpu_device_plugin.domain.schemes.aliyun.pod_take import Share
from gpu_device_plugin.domain.schemes.aliyun.room import Room, room_of
from gpu_device_plugin.domain.shares import Demand, Hold
from gpu_device_plugin.domain.shares import Share as DeviceShare


def node_rooms(
    offer: NodeOffer, holds: Iterable[PodHold], door: Door | None = None
) -> tuple[Room, ...]:
    """What each card of a node has left; where `door` is named, for requests that come by it.

    Unplaced demands are put where the node's own policy would put them, the first pod first; where
    none has room, on the emptiest cards: somebody holds them, whatever we know.
    """
    by_index = {card.index: card for card in offer.cards}
    taken: list[Hold] = []
    waiting: list[tuple[PodHold, Demand]] = []

    def take(hold: PodHold, card: Card, share: Share) -> None:
        units, percent = share
        mib = units * offer.unit.mib
        held = DeviceShare(card.uuid, None, percent, hold.is_exclusive, mib)
        taken.append(Hold(hold.pod, held))

    for hold in holds:
        for index, share in hold.by_card().items():
            if index in by_index:
                take(hold, by_index[index], share)
            else:
                waiting.append((hold, Demand(*share)))
        waiting += [(hold, needed) for needed in hold.unplaced]
    found = _rooms(offer, taken)
    for hold, needed in waiting:
        for card in _guessed(found, replace(needed, is_exclusive=hold.is_exclusive), offer):
            take(hold, card, (needed.units_per_card, needed.core_percent))
        found = _rooms(offer, taken)
    return found if door is None else tuple(_through(door, room, offer) for room in found)


def _through(door: Door, room: Room, offer: NodeOffer) -> Room:
    is_behind_other = (room.card.index in offer.by_claims) is not (door is Door.DRA)
    return replace(room, is_behind_other_door=True) if is_behind_other else room


def _rooms(offer: NodeOffer, holds: Iterable[Hold]) -> tuple[Room, ...]:
    use, blank = used(holds), Use()
    return tuple(
        room_of(
            card,
            use.get(card.uuid, blank),
            offer.terms,
            is_healthy=card.index in offer.healthy,
        )
        for card in offer.cards
    )


def _guessed(rooms: Sequence[Room], needed: Demand, offer: NodeOffer) -> Sequence[Card]:
    placed = place(rooms, needed, offer.policy or PlacementPolicy.BINPACK)
    if not isinstance(placed, NoRoom):
        return placed.cards
    emptiest = sorted(rooms, key=lambda room: (-room.free_mem, room.card.index))
    return [room.card for room in emptiest[: needed.cards]]
