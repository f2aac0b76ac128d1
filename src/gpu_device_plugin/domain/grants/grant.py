"""A grant: what one container or claim holds of the node's devices.

Shares of devices: what a holder has of one, and what a container needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Literal, NamedTuple

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.node.compute_policy import ComputePolicy
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one device.

    Attributes:
        memory_bytes: The memory of this part; None while it is not known. It stays the same if the
            device shows less memory later (ECC, another driver).
        memory_mib: The memory that was asked for, which the ledger counts: `memory_bytes` is what
            the device makes of it.
    """

    device: str
    memory_bytes: int | None = None
    core_percent: int = 0
    is_exclusive: bool = False
    memory_mib: MiB = MiB(0)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds shares: a container, or a claim on behalf of the containers of one pod.

    Attributes:
        container: Name of the container; empty while it is not known, and for a claim.
        index: The container's position in `spec.containers` (or `spec.initContainers`).
        claim: Uid of the ResourceClaim; empty for a container.
        claim_name: The claim's name in its pod, or its own name where the pod names none.
    """

    pod: PodRef
    container: str = ""
    kind: ContainerKind = ContainerKind.APP
    index: int = 0
    claim: str = ""
    claim_name: str = ""

    def __str__(self) -> str:
        """The container or the claim, for people; its pod is left out."""
        if self.claim:
            return f"claim {self.claim_name or self.claim}"
        return f"container {self.container or '(not known)'}"

    @property
    def is_handed_on(self) -> bool:
        """Whether later containers reuse what it holds: an ordinary init container (init_containers)."""
        return self.kind is ContainerKind.INIT and not self.claim

    @property
    def place(self) -> tuple[bool, int]:
        """Sorts a pod's containers in the order in which the kubelet admits them."""
        return self.kind is ContainerKind.APP, self.index

    def is_same(self, other: "Holder") -> bool:
        """Whether both are one container or one claim, as far as both are known."""
        if self.claim or other.claim:
            return self.claim == other.claim
        return self.pod.is_same_pod(other.pod) and self.container == other.container


class UnitsAndPercent(NamedTuple):
    """Memory units and percent of compute: of one card, where nothing else is said."""

    units: Units = Units(0)
    percent: int = 0

    def plus(self, other: "UnitsAndPercent") -> "UnitsAndPercent":
        return UnitsAndPercent(Units(self.units + other.units), self.percent + other.percent)

    def less(self, other: "UnitsAndPercent") -> "UnitsAndPercent":
        """What is left without `other`; of each no less than nothing."""
        return UnitsAndPercent(
            Units(max(0, self.units - other.units)), max(0, self.percent - other.percent)
        )

    def at_most(self, other: "UnitsAndPercent") -> "UnitsAndPercent":
        return UnitsAndPercent(min(self.units, other.units), min(self.percent, other.percent))


@dataclass(frozen=True, slots=True)
class Demand:
    """What one container needs, checked: `mem_units` over `cards` cards in equal parts.

    `core_percent` is of one card; 0 is no cap, or not known yet. With `is_exclusive` no other pod
    may be on its cards (R-528).
    """

    mem_units: Units
    core_percent: int = 0
    cards: int = 1
    is_exclusive: bool = False

    @property
    def units_per_card(self) -> Units:
        return Units(self.mem_units // self.cards)

    @property
    def amounts(self) -> UnitsAndPercent:
        return UnitsAndPercent(self.mem_units, self.core_percent)

    @property
    def amounts_per_card(self) -> UnitsAndPercent:
        return UnitsAndPercent(self.units_per_card, self.core_percent)


class ContainerDemand(NamedTuple):
    """A container that asks, and what it needs."""

    container: ContainerRequest
    demand: Demand


class Hold(NamedTuple):
    """A share that a container or claim holds."""

    holder: Holder
    share: Share


NOBODY: Literal["nobody"] = "nobody"
_Enforcer = Literal["driver", "library", "nobody"]


class Enforcers(NamedTuple):
    """Who holds a slice to its memory, and to its share of compute: `driver`, `library` or `nobody`."""

    memory: _Enforcer = MemoryEnforcer.LIBRARY.value
    compute: _Enforcer = MemoryEnforcer.LIBRARY.value

    def __str__(self) -> str:
        """`memory by driver, compute by library`."""
        return f"memory by {self.memory}, compute by {self.compute}"


def usual_enforcers(*percents: int) -> Enforcers:
    """The library, of slices of so much compute: all of a card, or no share, is no cap."""
    is_capped = any(0 < percent < 100 for percent in percents)
    return Enforcers() if is_capped else Enforcers(compute=NOBODY)


class Resized(NamedTuple):
    """What of a slice is no longer as its pod asked.

    Attributes:
        limit: What it may use now: memory units over all its devices, and percent of each.
        extra: Resource -> ids of units that it has beside those of the kubelet, which offers them to nobody.
        revision: Of its limits file, which grows with each change.
    """

    limit: UnitsAndPercent
    extra: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """Shares of devices, given to a holder.

    Attributes:
        units: Resource -> the ids of its units, sorted; without the resources not asked for yet.
        shares: Its parts of devices, in order of NVML index when it was given.
        own: What only its scheme knows of it; the scheme keeps, writes and reads it.
        compute_policy: What its compute means while nobody else works; the same while it lasts.
        memory_enforcer: Who refuses what is above its memory; the same while it lasts.
        is_checked: False while rules that need the pod spec still have to be checked.
        library_version: Version of the isolation library its mounts name; empty without isolation.
        resized: None while it is as its pod asked.
    """

    slice_id: str
    holder: Holder
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    own: object = None
    compute_policy: ComputePolicy = ComputePolicy.FIXED
    memory_enforcer: MemoryEnforcer = MemoryEnforcer.LIBRARY
    is_isolated: bool = True
    is_checked: bool = True
    library_version: str = ""
    created_seconds: float = 0.0
    resized: Resized | None = None
    holds: tuple[Hold, ...] = field(init=False, repr=False, compare=False)
    all_ids: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """A resource of which nothing is held is left out, so that equal grants are equal."""
        # Kept: every admission looks for units in all grants, several times.
        object.__setattr__(self, "all_ids", frozenset(chain.from_iterable(self.units.values())))
        if not all(self.units.values()):
            held = {resource: ids for resource, ids in self.units.items() if ids}
            object.__setattr__(self, "units", held)
        holds = tuple(Hold(self.holder, share) for share in self.shares)
        object.__setattr__(self, "holds", holds)

    @property
    def pod(self) -> PodRef:
        return self.holder.pod

    @property
    def container(self) -> str:
        """Name of the container; empty while it is not known."""
        return self.holder.container

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(share.device for share in self.shares)

    @property
    def is_sized(self) -> bool:
        return all(share.memory_bytes is not None for share in self.shares)

    @property
    def core_percent(self) -> int:
        """Compute that counts as held on each of its devices; 0 is no cap."""
        return max((share.core_percent for share in self.shares), default=0)

    @property
    def limit_percent(self) -> int:
        """Compute that it may use on each of its devices now; 0 is no cap."""
        return self.resized.limit.percent if self.resized else self.core_percent

    @property
    def extra_ids(self) -> frozenset[str]:
        """Ids of units that it has beside those of the kubelet."""
        extra = self.resized.extra.values() if self.resized else ()
        return frozenset(chain.from_iterable(extra))

    @property
    def enforcers(self) -> Enforcers:
        if not self.is_isolated:
            return Enforcers(NOBODY, NOBODY)
        return usual_enforcers(
            0 if self.compute_policy is ComputePolicy.NATIVE else self.limit_percent
        )._replace(memory=self.memory_enforcer.value)

    def ids(self, resource: str) -> tuple[str, ...]:
        return self.units.get(resource, ())

    def with_ids(self, resource: str, ids: Iterable[str]) -> "Grant":
        return replace(self, units={**self.units, resource: tuple(sorted(ids))})


class GrantedIn(NamedTuple):
    """Mode and memory unit of the node when a grant was given."""

    mode: NodeMode
    unit: MemoryUnit


@dataclass(frozen=True, slots=True)
class NewGrant:
    """What is not decided of a grant."""

    slice_id: str
    created_seconds: float
    is_isolated: bool
