"""The node state, what the agent knows of its node, as one immutable value; and what it offers the kubelet: pools of units."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.compute_policy import ComputePolicy, pod_compute_policy
from gpu_device_plugin.domain.node.memory_enforcer import DriverLimits, EnforcerChoice, why_library
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy, is_isolated
from gpu_device_plugin.domain.node.pods import PodRequest
from gpu_device_plugin.errors import RequestError, clip

ANY_CARD = "*"
_SANDBOX = (
    "runtimeClassName {} is of a sandbox, in which neither the isolation library nor the driver's limit "
    "holds a slice; use another runtime class, or a whole card"
)


@dataclass(frozen=True, slots=True)
class NodeTerms:
    """What a node offers, as far as requests are checked."""

    node: str
    mode: NodeMode
    unit: MemoryUnit
    max_pods: int | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """The node as of now; a change is a new value.

    Attributes:
        other_cards: How many cards more the node has, in a view of it with one scheme's cards.
        unhealthy: UUID -> reason of the cards that are unhealthy.
        strangers: UUID -> memory that programs without a grant hold, where it is more than a driver's own part.
        unhealthy_since: UUID -> since when, in seconds of the wall clock, where a fault of the card is the reason.
        faults: Reason -> text of each fault that keeps the whole node from serving.
        mark: The uninstall mark that this agent acts on, or "".
        mps_root: Directory of the MPS daemon that `mps_served` is of, or "".
        mps_served: What a living MPS daemon serves, as it says; UUIDs alone are cards that a daemon has
            not given back, and `ANY_CARD` says that it is not known which these are.
        mps_waits: What keeps the configured MPS daemon from serving, in its words, or "".
        mig_profile: Into which profile every card is to be cut, or ""; None before that is known.
        allocation_api: By what requests reach the node.
        driver_limits: On which cards NVIDIA's driver is proven to limit memory.
        sandboxes: Names of RuntimeClasses whose pods get no enforced slice; `kata*` are all that begin so.
        older_configuration: Why NVIDIA's configuration is not the one that is asked for, and of when it is.
        kept: Pods whose files stay after the withdrawal; None while it is not done.
    """

    node: str
    mode: NodeMode | None = None
    policy: PlacementPolicy = PlacementPolicy.BINPACK
    compute_policy: ComputePolicy = ComputePolicy.FIXED
    unit: MemoryUnit = MemoryUnit.GIB
    max_pods: int | None = None
    cards: tuple[Card, ...] = ()
    other_cards: int = 0
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    unhealthy_since: Mapping[str, float] = field(default_factory=dict)
    strangers: Mapping[str, MiB] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    wants_isolation: bool = True
    memory_choice: EnforcerChoice = EnforcerChoice.AUTO
    driver_limits: DriverLimits = field(default_factory=DriverLimits)
    honors_disable: bool = False
    honors_pod_policy: bool = False
    driver_capabilities: str = "compute,utility"
    sandboxes: tuple[str, ...] = ()
    library_version: str = ""
    mark: str = ""
    mps_root: str = ""
    mps_served: str = ""
    mps_waits: str = ""
    mig_profile: str | None = None
    imex_channels: tuple[int, ...] = ()
    allocation_api: AllocationApi = AllocationApi.DEVICE_PLUGIN
    older_configuration: str = ""
    kept: tuple[str, ...] | None = None

    @property
    def terms(self) -> NodeTerms:
        """What a request is checked against; only while a mode is known."""
        return NodeTerms(self.node, self.mode or NodeMode.DISABLED, self.unit, self.max_pods)

    def policy_for(self, pod: PodRequest | None) -> ComputePolicy:
        """The compute policy of a pod's containers; RequestError as `pod_compute_policy` has it."""
        honors = self.honors_pod_policy
        return pod_compute_policy(pod, self.node, self.compute_policy, honors_annotation=honors)

    def check_runtime(self, pod: PodRequest | None) -> None:
        """RequestError where a pod that is to get a slice runs in a sandbox, in which nothing enforces it."""
        if pod and self.isolates and any(fnmatchcase(pod.runtime_class, s) for s in self.sandboxes):
            raise RequestError(
                f"pod {pod.ref} on node {self.node}: {_SANDBOX.format(pod.runtime_class)}",
                reason="SandboxedRuntime",
            )

    def memory_by(self, uuid: str) -> str:
        """Who will hold a new slice of a card to its memory: `driver (dmem)`, or why the library does.

        Where the driver was chosen and cannot, why there are none: `no slices (...)`.
        """
        if not self.isolates:
            return "nobody"
        limits, choice = self.driver_limits, self.memory_choice
        why = why_library(choice, limits, {uuid: 0}, is_shared=False)
        other = "no slices" if choice is EnforcerChoice.DRIVER else "library"
        text = clip(why.removeprefix(f"{uuid}: "))
        return f"{other} ({text})" if why else f"driver ({limits.backends[uuid]})"

    def memory_short(self, card: Card, held_mib: int) -> int:
        """By how many MiB slices and what strangers hold are more than the card has; 0 without strangers."""
        taken = self.strangers.get(card.uuid)
        return max(0, held_mib + taken - card.memory_mib) if taken else 0

    @property
    def mps_keeper(self) -> str:
        """Directory of an MPS daemon that serves cards or has not given them back, or ""."""
        return self.mps_root if self.mps_served else ""

    @property
    def isolates(self) -> bool:
        return self.mode is not None and is_isolated(self.mode) and self.wants_isolation

    @property
    def healthy(self) -> dict[str, bool]:
        """UUID -> whether it may be given away, of cards and of MIG instances."""
        return {
            uuid: not self.faults and not {card.uuid, uuid} & self.unhealthy.keys()
            for card in self.cards
            for uuid in (card.uuid, *(instance.uuid for instance in card.hardware.instances))
        }

    @property
    def is_leaving(self) -> bool:
        """Marked for uninstalling, and not withdrawn yet."""
        return bool(self.mark) and self.kept is None

    def card(self, uuid: str) -> Card | None:
        return next((card for card in self.cards if card.uuid == uuid), None)


StateReader = Callable[[], NodeState]


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Units that lie on one device and are offered alike; their ids are as the kubelet counts them."""

    ids: tuple[str, ...]
    is_healthy: bool = True
    card: str = ""
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class UnitCount:
    """Units of one resource on one card, free and held; `resource` is the kubelet's name."""

    resource: str
    free: int
    held: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Everything of one resource that this node has, healthy or not."""

    resource: str
    groups: tuple[DeviceGroup, ...] = ()

    def without(self, ids: frozenset[str]) -> "Pool":
        """The pool with these units offered to nobody."""
        if ids.isdisjoint(chain.from_iterable(group.ids for group in self.groups)):
            return self
        parts = [
            replace(group, ids=part, is_healthy=group.is_healthy and not is_kept)
            for group in self.groups
            for is_kept in (False, True)
            if (part := tuple(each for each in group.ids if (each in ids) is is_kept))
        ]
        return replace(self, groups=tuple(parts))


@dataclass(frozen=True, slots=True)
class Layout:
    """Why a node does not fit what it is to offer; what waits, card by card; which names it is to share and does not."""

    problem: str = ""
    left_out: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unshared: tuple[str, ...] = ()
