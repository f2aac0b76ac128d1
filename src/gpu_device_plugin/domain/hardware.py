"""What NVML says of a card beside its name and memory: MIG instances, links, capability."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance that containers can get: one compute instance.

    Attributes:
        uuid: `MIG-…`, in the form of its driver (R-211).
        index: NVML's index of it on its card.
        gpu_instance: Id of its GPU instance on the card.
        compute_instance: Id of it in its GPU instance.
        profile: For instance `1g.5gb`, or `1c.3g.20gb` of a part of a GPU instance.
        memory_mib: Memory that it shows, in MiB.
        gpu_slices: Compute slices of its GPU instance.
        compute_slices: Its own compute slices.
        multiprocessors: Its multiprocessors.
        engines: Engine (`copy`, `decoder`, `encoder`, `jpeg`, `ofa`) -> how many it has.
    """

    uuid: str
    index: int
    gpu_instance: int
    compute_instance: int
    profile: str
    memory_mib: int
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
        is_mig_capable: Whether it can be in MIG mode.
        is_mig: Whether it is in MIG mode now.
        instances: Its MIG instances, by index.
        links: UUID of another card -> how well it is linked, in points (R-703).
        numa_node: Its NUMA node, if the kernel knows it.
    """

    compute_capability: tuple[int, int] = (0, 0)
    pci_class: int = 0
    is_mig_capable: bool = False
    is_mig: bool = False
    instances: tuple[Instance, ...] = ()
    links: Mapping[str, int] = field(default_factory=dict)
    numa_node: int | None = None


UNKNOWN = Hardware()
