"""How much memory of a card a container sees that holds some of its units."""

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.errors import DoesNotFitError

_BYTES_PER_MIB = 1024 * 1024


def slice_mib(card: Card, units: Units, unit: MemoryUnit) -> MiB:
    """Memory visible to a container that holds `units` of `card`.

    A slice is a proportion of the card, not `units` times the unit: the memory that
    is left after the last whole unit is divided among all units.

        floor(memory_mib * units / capacity)

    DoesNotFitError if the card does not have that many units. R-129: 2 of 15 units of a V100 with
    16160 MiB show as 2154 MiB.
    """
    capacity = card.capacity(unit)
    if not 1 <= units <= capacity:
        raise DoesNotFitError(
            f"{units} units of {unit.mib} MiB asked of card {card.index} ({card.uuid}), "
            f"which has {capacity}",
            reason="NoRoom",
        )
    return MiB(card.memory_mib * units // capacity)


def slice_bytes(card: Card, units: Units, unit: MemoryUnit) -> int:
    """`slice_mib` in bytes, as the isolation library counts."""
    return slice_mib(card, units, unit) * _BYTES_PER_MIB
