"""The size of a slice, and the limits file for the isolation library."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.compute_policy import ComputePolicy
from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.units import MemoryUnit
from gpu_device_plugin.errors import DoesNotFitError

LIMITS_VERSION = 1
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


@dataclass(frozen=True, slots=True)
class CardLimit:
    """What a container may take of one card; None is no cap of that kind.

    Attributes:
        uuid: The card.
        memory_bytes: Memory.
        core_percent: Compute, 1 to 100.
    """

    uuid: str
    memory_bytes: int | None
    core_percent: int | None


def limits_text(
    slice_id: str, lines: Sequence[CardLimit], policy: ComputePolicy = ComputePolicy.FIXED
) -> str:
    r"""The `limits` file that the isolation library reads: one line per card.

    >>> print(limits_text("s1", [CardLimit("GPU-a", 2258632704, 30)]), end="")
    version=1
    slice=s1
    policy=fixed
    device=GPU-a memory_bytes=2258632704 core_percent=30
    """
    head = f"version={LIMITS_VERSION}\nslice={slice_id}\npolicy={policy}\n"
    return head + "".join(_line(limit) for limit in lines)


def _line(limit: CardLimit) -> str:
    memory = "" if limit.memory_bytes is None else f" memory_bytes={limit.memory_bytes}"
    core = "" if limit.core_percent is None else f" core_percent={limit.core_percent}"
    return f"device={limit.uuid}{memory}{core}\n"
