"""Koordinator's names for a fraction of a card, in this scheme's (R-590)."""

from collections.abc import Mapping

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.units import Resource

MEMORY, CORE = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-core"
MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"
NAMES = (MEMORY, CORE, MEMORY_RATIO)
_MEBI = 1 << 20
_WHOLE_CARD = 100


def refusal(amounts: Mapping[str, int]) -> str:
    """Why these amounts cannot be translated, or "".

    >>> refusal({"koordinator.sh/gpu-core": 200})
    'koordinator.sh/gpu-core: 200 is more than one card, which is not translated: ask at most 100'
    """
    for name, amount in sorted(amounts.items()):
        if amount < 0:
            return f"{name}: {amount} is negative"
    if MEMORY_RATIO in amounts and len(amounts) > 1:
        return f"{MEMORY_RATIO} is not translated: ask {MEMORY} in bytes beside {CORE}"
    if amounts.get(CORE, 0) > _WHOLE_CARD:
        return (
            f"{CORE}: {amounts[CORE]} is more than one card, which is not translated: "
            f"ask at most {_WHOLE_CARD}"
        )
    return ""


def translate_amounts(amounts: Mapping[str, int], unit: MemoryUnit) -> dict[str, int]:
    """What a container asks under Koordinator's names; nothing where it uses neither.

    >>> translate_amounts({"koordinator.sh/gpu-memory": 2 << 30, "cpu": 1}, MemoryUnit.GIB)
    {'aliyun.com/gpu-mem': 2}

    Amounts are bytes of memory and percent of a card; a part of a unit counts as a whole one.
    """
    found = {}
    if MEMORY in amounts:
        found[str(Resource.MEM)] = -(-amounts[MEMORY] // (unit.mib * _MEBI))
    if CORE in amounts:
        found[str(Resource.CORE)] = amounts[CORE]
    return found
