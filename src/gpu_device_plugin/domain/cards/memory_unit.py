"""How much memory one unit of a card is; memory in units and in MiB, which are never mixed up."""

from enum import Enum
from typing import NewType

from gpu_device_plugin.errors import StateError

Units = NewType("Units", int)
"""Memory in units of the node's `MemoryUnit`."""
MiB = NewType("MiB", int)
"""Memory in MiB (2^20 bytes)."""


class MemoryUnit(Enum):
    """The sizes in which memory can be asked for (R-401)."""

    GIB = "GiB"
    MIB128 = "128MiB"

    @property
    def mib(self) -> MiB:
        return MiB(1024 if self is MemoryUnit.GIB else 128)

    def count(self, memory: MiB) -> Units:
        """Units that this much memory takes, the last one perhaps in part.

        >>> MemoryUnit.GIB.count(MiB(1025))
        2
        """
        return Units(-(-memory // self.mib))

    @classmethod
    def of_mib(cls, mib: int) -> "MemoryUnit":
        """The unit of that size, as grants tell it; StateError if there is none."""
        for unit in cls:
            if unit.mib == mib:
                return unit
        raise StateError(f"unit_mib is {mib}, and no memory unit has this size")
