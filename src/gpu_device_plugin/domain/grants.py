"""A grant: the slice that one container holds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from gpu_device_plugin.domain.compute_policy import ComputePolicy
from gpu_device_plugin.domain.modes import NodeMode, is_isolated
from gpu_device_plugin.domain.pods import ContainerKind, PodRef


@dataclass(frozen=True, slots=True)
class Grant:
    """A slice held by a container; written to disk before the kubelet gets its answer.

    Attributes:
        slice_id: Random id of the slice; names its files on the node.
        pod: Whose it is.
        container: Name of the container; empty while it is not known.
        kind: Init, sidecar or app.
        index: The container's position in `spec.containers` (or `spec.initContainers`).
        units: Resource -> its unit ids, sorted; without the resources not asked for yet.
        cards: UUIDs of the cards decided on, in order of NVML index at that time.
        card_bytes: Memory of the slice on each of `cards`, in bytes; empty while it is not known.
            It stays the same if a card shows less memory later (ECC, another driver).
        mem_units: Memory units decided on, over all cards.
        core_percent: Compute decided on; 0 is no cap.
        compute_policy: What that means while nobody else works; fixed for the container's life.
        pod_units: Memory units of the pod's app containers (`ALIYUN_COM_GPU_MEM_POD`).
        unit_mib: Size of a memory unit in MiB when granted.
        mode: Node mode when granted (`core_mem`, `cgpu`, `share`).
        is_isolated: Whether limits and the library are given to the container.
        is_checked: False while rules that need the pod spec still have to be checked.
        library_version: Version of the isolation library its mounts name; empty without isolation.
        created_seconds: Wall clock when first written.
    """

    slice_id: str
    pod: PodRef
    container: str
    kind: ContainerKind = ContainerKind.APP
    index: int = 0
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cards: tuple[str, ...] = ()
    card_bytes: tuple[int, ...] = ()
    mem_units: int = 0
    core_percent: int = 0
    compute_policy: ComputePolicy = ComputePolicy.FIXED
    pod_units: int = 0
    unit_mib: int = 1024
    mode: str = "core_mem"
    is_isolated: bool = True
    is_checked: bool = True
    library_version: str = ""
    created_seconds: float = 0.0

    def __post_init__(self) -> None:
        """A resource of which nothing is held is left out, so that equal grants are equal."""
        if not all(self.units.values()):
            held = {resource: ids for resource, ids in self.units.items() if ids}
            object.__setattr__(self, "units", held)

    def ids(self, resource: str) -> tuple[str, ...]:
        """The unit ids of `resource` that it holds."""
        return self.units.get(resource, ())

    def with_ids(self, resource: str, ids: Iterable[str]) -> "Grant":
        """The same grant holding `ids` of `resource`."""
        return replace(self, units={**self.units, resource: tuple(sorted(ids))})

    @property
    def all_ids(self) -> Iterator[str]:
        """Every unit that it holds, of whatever resource."""
        return chain.from_iterable(self.units.values())

    @property
    def is_handed_on(self) -> bool:
        """Whether later containers of the pod reuse its units: an ordinary init container's."""
        return self.kind is ContainerKind.INIT

    @property
    def is_capped(self) -> bool:
        """Whether the container gets limits and the library: never in mode `share`."""
        return self.is_isolated and is_isolated(NodeMode(self.mode))

    @property
    def is_bare(self) -> bool:
        """Whether the container has no cap although its mode has one."""
        return not self.is_isolated and is_isolated(NodeMode(self.mode))

    @property
    def units_per_card(self) -> int:
        """Memory units on each of its cards."""
        return self.mem_units // max(1, len(self.cards))
