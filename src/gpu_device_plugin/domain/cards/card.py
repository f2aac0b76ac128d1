"""A physical card, and what NVML says of it: MIG instances, links, capability."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance that containers can get: one compute instance.

    Attributes:
        uuid: `MIG-…`, in the form of its driver (R-211).
        index: NVML's index of it on its card.
        profile: For instance `1g.5gb`, or `1c.3g.20gb` of a part of a GPU instance.
        gpu_slices: Compute slices of its GPU instance.
        engines: Engine (`copy`, `decoder`, `encoder`, `jpeg`, `ofa`) -> how many it has.
    """

    uuid: str
    index: int
    gpu_instance: int
    compute_instance: int
    profile: str
    memory_mib: MiB
    gpu_slices: int
    compute_slices: int
    multiprocessors: int
    engines: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it has all of its GPU instance's compute (R-706)."""
        return self.compute_slices == self.gpu_slices


@dataclass(frozen=True, slots=True)
class Hardware:
    """A card's further attributes; a default is "NVML does not say".

    Attributes:
        compute_capability: Major and minor.
        pci_class: The class of its PCI function, for instance 0x0302 (3D controller); 0 unknown.
        links: UUID of another card -> how well it is linked, in points (R-703).
        is_virtual: It is a virtual GPU of this machine, which is a guest.
        fabric: Cluster's UUID and clique, `5a5a….1`, of an NVLink domain that spans nodes; "" of none.
        is_unified: It has no memory of its own that NVML could tell of: it uses the system's (GB10, Thor).
    """

    compute_capability: tuple[int, int] = (0, 0)
    pci_class: int = 0
    is_mig_capable: bool = False
    is_mig: bool = False
    instances: tuple[Instance, ...] = ()
    links: Mapping[str, int] = field(default_factory=dict)
    numa_node: int | None = None
    is_virtual: bool = False
    fabric: str = ""
    is_unified: bool = False


UNKNOWN = Hardware()


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
        index: NVML's index; it changes when cards are unplugged or the node reboots. -1 while
            NVML does not show the card.
        minor: `/dev/nvidia<minor>`.
        model: NVML's name with spaces as hyphens, for instance `Tesla-V100-SXM2-16GB`.
        memory_mib: Total memory in MiB, rounded down.
    """

    uuid: str
    number: CardNumber
    index: CardIndex
    minor: int
    model: str
    memory_mib: MiB
    hardware: Hardware = UNKNOWN

    @property
    def is_shown(self) -> bool:
        """Whether NVML shows the card now; one that was unplugged is kept, unhealthy."""
        return self.index >= 0

    def capacity(self, unit: MemoryUnit) -> Units:
        """Whole memory units on this card (R-111: 16160 MiB are 15 units of 1 GiB)."""
        return Units(self.memory_mib // unit.mib)
