"""Device lists as the bytes of a ListAndWatchResponse.

A protobuf message is the concatenation of its fields, so the list of a node is the
concatenation of its cards' lists. Each card is encoded once and cached; a health change
replaces the bytes of one card instead of building thousands of objects.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from gpu_device_plugin.domain.units import Resource, unit_ids

HEALTHY = b"Healthy"
UNHEALTHY = b"Unhealthy"

_LIST_DEVICES_TAG = b"\x0a"  # ListAndWatchResponse.devices = 1, length-delimited
_DEVICE_ID_TAG = b"\x0a"  # Device.ID = 1
_DEVICE_HEALTH_TAG = b"\x12"  # Device.health = 2


@dataclass(frozen=True, slots=True)
class CardUnits:
    """The units of one card for one resource of the node.

    Attributes:
        resource: Which resource.
        card_number: The card's stable number, 0 to `MAX_CARDS` - 1.
        units: How many units; either all of them are healthy, or none.
        is_healthy: Whether the kubelet may give them away.
    """

    resource: Resource
    card_number: int
    units: int
    is_healthy: bool = True


def encode_list(cards: Iterable[CardUnits]) -> bytes:
    """The ListAndWatchResponse that offers these cards, in the given order."""
    return b"".join(_encode_card(card) for card in cards)


# 36 cards x 3 resources x 2 healths, and a few sizes of cards that were replaced.
@lru_cache(maxsize=256)
def _encode_card(card: CardUnits) -> bytes:
    health = HEALTHY if card.is_healthy else UNHEALTHY
    tail = _DEVICE_HEALTH_TAG + bytes([len(health)]) + health
    chunks = []
    # Devices differ only in their ids, and their framing only in the length of the id.
    for length, texts in groupby(unit_ids(card.resource, card.card_number, card.units), len):
        head = _DEVICE_ID_TAG + bytes([length])
        head = _LIST_DEVICES_TAG + bytes([len(head) + length + len(tail)]) + head
        between = (tail + head).decode("ascii")
        chunks.append(head + between.join(texts).encode("ascii") + tail)
    return b"".join(chunks)
