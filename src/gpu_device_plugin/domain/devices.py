"""A physical card."""

from dataclasses import dataclass
from typing import NewType

from gpu_device_plugin.domain.hardware import UNKNOWN, Hardware
from gpu_device_plugin.domain.memory_unit import MemoryUnit

MAX_CARDS = 36
"""Most cards of a node: a card number is one base-36 digit of unit ids."""

CardNumber = NewType("CardNumber", int)
"""Stable on its node, part of unit ids, kept in the state directory. Never the index of a card."""
CardIndex = NewType("CardIndex", int)
"""NVML's index now. Never the number of a card: they differ once a card was unplugged or added."""


@dataclass(frozen=True, slots=True)
class Card:
    """One physical card. `uuid` is its identity; everything else may change.

    Attributes:
        uuid: NVML's UUID, for instance `GPU-4f…`.
        number: The card number.
        index: NVML's index; it changes when cards are unplugged or the node reboots. -1 while
            NVML does not show the card.
        minor: `/dev/nvidia<minor>`.
        model: NVML's name with spaces as hyphens, for instance `Tesla-V100-SXM2-16GB`.
        memory_mib: Total memory in MiB, rounded down.
        hardware: What else NVML says of it; not kept over a restart.
    """

    uuid: str
    number: CardNumber
    index: CardIndex
    minor: int
    model: str
    memory_mib: int
    hardware: Hardware = UNKNOWN

    @property
    def is_shown(self) -> bool:
        """Whether NVML shows the card now; one that was unplugged is kept, unhealthy."""
        return self.index >= 0

    def capacity(self, unit: MemoryUnit) -> int:
        """Whole memory units on this card (R-111: 16160 MiB are 15 units of 1 GiB)."""
        return self.memory_mib // unit.mib
