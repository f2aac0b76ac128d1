"""Limits of a card: how many pods it takes, and how many units fit into a device list."""

from collections.abc import Sequence

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.units import resources_of, units_of
from gpu_device_plugin.domain.node.modes import NodeMode, is_isolated
from gpu_device_plugin.errors import ConfigError

MAX_PODS_PER_CARD = 16
"""Most pods per card in modes with isolation, whatever the unit (R-405)."""
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""Half of what the kubelet's gRPC client accepts of a ListAndWatch message."""
# What a device takes besides its id: the tag and length of the device, of its id and of its
# health, and the longer of the two healths, "Unhealthy".
_DEVICE_BYTES = 2 + 2 + 2 + len("Unhealthy")
_SHORTEST_ID = 3
_BASE = 36


def most_pods(mode: NodeMode, by_label: int | None) -> int | None:
    """Most pods a card, or None for no limit: 16 with isolation (R-405), or less by the label."""
    limits = [MAX_PODS_PER_CARD] if is_isolated(mode) else []
    return min([*limits, *([] if by_label is None else [by_label])], default=None)


def list_message_bytes(resource: str, cards: Sequence[Card], unit: MemoryUnit) -> int:
    """Size of the ListAndWatchResponse with every unit of `cards` unhealthy."""
    return sum(_device_list_bytes(units_of(card, resource, unit)) for card in cards)


def check_message(cards: Sequence[Card], unit: MemoryUnit, mode: NodeMode) -> None:
    """Raise ConfigError if a device list would exceed `MAX_MESSAGE_BYTES`; the text names the unit to set."""
    for resource in resources_of(mode):
        size = list_message_bytes(resource, cards, unit)
        if size > MAX_MESSAGE_BYTES:
            raise ConfigError(
                f"memory unit {unit.value} makes the device list of {resource} {size} bytes long, "
                f"the limit is {MAX_MESSAGE_BYTES}: {_cure(resource, cards)}"
            )


def _device_list_bytes(units: int) -> int:
    total, length, first = 0, _SHORTEST_ID, 0
    while first < units:
        end = min(units, _BASE ** (length - _SHORTEST_ID + 1))
        total += (end - first) * (_DEVICE_BYTES + length)
        length, first = length + 1, end
    return total


def _cure(resource: str, cards: Sequence[Card]) -> str:
    for unit in sorted(MemoryUnit, key=lambda unit: unit.mib):
        if list_message_bytes(resource, cards, unit) <= MAX_MESSAGE_BYTES:
            return f"the smallest unit that fits {len(cards)} cards is {unit.value}"
    return f"no unit fits {len(cards)} cards of this size"
