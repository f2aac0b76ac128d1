"""The size of a slice."""

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.errors import DoesNotFitError

_BYTES_PER_MIB = 1024 * 1024


def slice_mib(card: Card, units: int, unit: MemoryUnit) -> int:
    """Memory visible to a container that holds `units` of `card`.

    A slice is a proportion of the card, not `units` times the unit: the memory that
    is left after the last whole unit is divided among all units.

        floor(memory_mib * units / capacity)

    Args:
        card: The card the slice is cut from.
        units: Units held, 1 to `card.capacity(unit)`.
        unit: The node's memory unit.

    Returns:
        Slice size in MiB, rounded down.

    Raises:
        DoesNotFitError: `units` is outside that range.

    Source:
        R-129: 2 of 15 units of a 16160 MiB V100 show as 2154 MiB.

    >>> slice_mib(Card("GPU-0", 0, 0, 0, "Tesla-V100", 16160), 2, MemoryUnit.GIB)
    2154
    """
    capacity = card.capacity(unit)
    if not 1 <= units <= capacity:
        raise DoesNotFitError(
            f"{units} units of {unit.mib} MiB asked of card {card.index} ({card.uuid}), "
            f"which has {capacity}",
            reason="NoRoom",
        )
    return card.memory_mib * units // capacity


def slice_bytes(card: Card, units: int, unit: MemoryUnit) -> int:
    """`slice_mib` in bytes, as the isolation library counts.

    Raises:
        DoesNotFitError: The card does not have that many units.
    """
    return slice_mib(card, units, unit) * _BYTES_PER_MIB
