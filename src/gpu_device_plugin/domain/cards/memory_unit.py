"""How much memory one unit of a card is."""

from enum import Enum

from gpu_device_plugin.errors import StateError


class MemoryUnit(Enum):
    """The sizes in which memory can be asked for (R-401)."""

    GIB = "GiB"
    MIB128 = "128MiB"

    @property
    def mib(self) -> int:
        """The unit's size in MiB."""
        return 1024 if self is MemoryUnit.GIB else 128

    @classmethod
    def of_mib(cls, mib: int) -> "MemoryUnit":
        """The unit of that size, as grants tell it; StateError if there is none.

        >>> MemoryUnit.of_mib(128).value
        '128MiB'
        """
        for unit in cls:
            if unit.mib == mib:
                return unit
        raise StateError(f"unit_mib is {mib}, and no memory unit has this size")
