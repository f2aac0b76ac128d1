"""Koordinator's names for a fraction of a card, in this scheme's (R-590)."""

from collections.abc import Mapping

from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.schemes.aliyun.units import Resource

MEMORY, CORE = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-core"
_MEBI = 1 << 20


def translated(amounts: Mapping[str, int], unit: MemoryUnit) -> dict[str, int]:
    """What a container asks under Koordinator's names; nothing where it uses neither.

    >>> translated({"koordinator.sh/gpu-memory": 2 << 30, "cpu": 1}, MemoryUnit.GIB)
    {'aliyun.com/gpu-mem': 2}

    Args:
        amounts: Bytes of memory, and percent of a card's compute.
        unit: Size of a unit; a part of one counts as a whole one.
    """
    found = {}
    if MEMORY in amounts:
        found[str(Resource.MEM)] = -(-amounts[MEMORY] // (unit.mib * _MEBI))
    if CORE in amounts:
        found[str(Resource.CORE)] = amounts[CORE]
    return found
