"""Device lists as the bytes of a ListAndWatchResponse.

A protobuf message is the concatenation of its fields, so the list of a node is the
concatenation of its cards' lists. Each card is encoded once and kept; a health change
swaps one chunk instead of building thousands of objects (performance.md 3.3).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.units import MemoryUnit, Resource, unit_ids

HEALTHY = b"Healthy"
UNHEALTHY = b"Unhealthy"
LARGEST_LIST_BYTES = 2 * 1024 * 1024
"""Half of what the kubelet's gRPC client accepts (4 MiB, not adjustable)."""

_LIST_DEVICES_TAG = b"\x0a"  # ListAndWatchResponse.devices = 1, length-delimited
_DEVICE_ID_TAG = b"\x0a"  # Device.ID = 1
_DEVICE_HEALTH_TAG = b"\x12"  # Device.health = 2
_TAGS_AND_LENGTHS_BYTES = 6  # three tags and three lengths; no id is long enough for a second byte


@dataclass(frozen=True, slots=True)
class CardUnits:
    """What one card brings to one resource of the node.

    Attributes:
        resource: Which resource.
        card_number: The card's stable number, 0 to `MAX_CARDS` - 1.
        units: How many units; all of one card are healthy or none is.
        is_healthy: Whether the kubelet may give them away.
    """

    resource: Resource
    card_number: int
    units: int
    is_healthy: bool = True


def encode_list(cards: Iterable[CardUnits]) -> bytes:
    """The ListAndWatchResponse that offers these cards, in the given order."""
    return b"".join(_encode_card(card) for card in cards)


def list_message_bytes(resource: Resource, cards: Iterable[Card], unit: MemoryUnit) -> int:
    """Size of the largest message that offers `cards`: the one with every unit unhealthy.

    Pure arithmetic, so that settings can be refused before anything is encoded. A healthy
    unit takes two bytes less.

    >>> from gpu_device_plugin.domain.device import Card
    >>> card = Card("GPU-0", 0, 0, 0, "Tesla-V100-SXM2-16GB", 16160)
    >>> list_message_bytes(Resource.MEM, [card], MemoryUnit.GIB)
    270
    """
    return sum(_card_bytes(card.units(resource, unit)) for card in cards)


def _card_bytes(units: int) -> int:
    """Size of `units` unhealthy devices; an id is letter, card and the unit in base 36."""
    total = units * (_TAGS_AND_LENGTHS_BYTES + len(UNHEALTHY) + 3)
    shorter = 36  # this many units have ids of at most the length counted so far
    while shorter < units:
        total += units - shorter
        shorter *= 36
    return total


# 36 cards x 3 resources x 2 healths, and a few sizes of cards that were replaced.
@lru_cache(maxsize=256)
def _encode_card(card: CardUnits) -> bytes:
    health = HEALTHY if card.is_healthy else UNHEALTHY
    tail = _DEVICE_HEALTH_TAG + bytes([len(health)]) + health
    chunks = []
    for text in unit_ids(card.resource, card.card_number, card.units):
        unit = text.encode("ascii")
        device = _DEVICE_ID_TAG + bytes([len(unit)]) + unit + tail
        chunks.append(_LIST_DEVICES_TAG + bytes([len(device)]) + device)
    return b"".join(chunks)
