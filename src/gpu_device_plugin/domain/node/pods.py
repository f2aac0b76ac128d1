"""Pods: what they ask for (from the API), and what they hold (from the kubelet)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.node.allocation_api import AllocationApi

PodKey: TypeAlias = tuple[str, str]
"""Namespace and name of a pod."""


WishedCards: TypeAlias = tuple[tuple[int, tuple[CardIndex, ...]], ...]
"""Index of a container in the spec, and the cards that are wished for it."""


class ContainerKind(Enum):
    """How the kubelet runs a container, and so which containers may reuse its units."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks of this plugin's resources.

    Attributes:
        index: Position in `spec.containers`, or in `spec.initContainers`.
        amounts: Resource -> limit, for the resources that a scheme of this node serves.
        claims: The claims of the pod that it names.
    """

    name: str
    kind: ContainerKind
    index: int
    amounts: Mapping[str, int] = field(default_factory=dict)
    wants_no_isolation: bool = False
    claims: tuple[str, ...] = ()

    def amount(self, resource: str) -> int:
        return self.amounts.get(resource, 0)

    @property
    def asks(self) -> bool:
        return any(self.amounts.values())


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Which object of a kind in the API."""

    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        """`namespace/name`, as people write it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodRef(ObjectRef):
    """Which pod. `uid` is empty while only the kubelet's PodResources has named it."""

    @property
    def key(self) -> PodKey:
        """Namespace and name: what the kubelet's List and the API have in common."""
        return self.namespace, self.name

    @property
    def text(self) -> str:
        """`namespace/name`, or the uid where the name is not known."""
        return str(self) if self.name else f"uid {self.uid}"

    def is_same_name(self, other: "PodRef") -> bool:
        """Whether both have the same namespace and name; the uid may differ."""
        return self.key == other.key

    def is_same_pod(self, other: "PodRef") -> bool:
        """Whether both are one pod: by uid if both have one, else by namespace and name."""
        if self.uid and other.uid:
            return self.uid == other.uid
        return self.is_same_name(other)


@dataclass(frozen=True, slots=True)
class Standing:
    """What counts where one pod may be evicted for another; only the controller asks.

    Attributes:
        created: By the API server's clock, as text that sorts by time.
        is_ending: Whether somebody has deleted it already.
    """

    priority: int = 0
    created: str = ""
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for, in the order in which the kubelet admits its containers.

    Attributes:
        containers: All of its containers, init containers first, in the order of the spec.
        wish: Cards that a scheduler extender wishes, container index -> card index; may be empty.
        init_wish: The same for init containers and sidecars, by their index in `initContainers`.
        owner: The controller that made it, `ReplicaSet namespace/name`, or "".
        cpu_milli: Processor that the scheduler counts for it, in thousandths of a core; only the
            controller asks, 0 elsewhere.
        allocation_api: How what it asks for reaches a node.
        runtime_class: Name of its RuntimeClass, or "" for the node's default.
        is_mirror: It says of itself that it is the API's mirror of a static pod, as anybody's pod can.
    """

    ref: PodRef
    containers: tuple[ContainerRequest, ...]
    card_count_label: str | None = None
    wish: WishedCards = ()
    init_wish: WishedCards = ()
    is_finished: bool = False
    owner: str = ""
    compute_policy: str | None = None
    placement: str | None = None
    card_label: str | None = None
    cpu_milli: int = 0
    standing: Standing = Standing()
    allocation_api: AllocationApi = AllocationApi.DEVICE_PLUGIN
    runtime_class: str = ""
    is_mirror: bool = False

    @property
    def asks(self) -> bool:
        return any(container.asks for container in self.containers)

    @property
    def asking(self) -> tuple[ContainerRequest, ...]:
        return tuple(container for container in self.containers if container.asks)

    @property
    def asks_units(self) -> bool:
        """Whether what it asks for is counted in units; what claims have, kube-scheduler allocates."""
        return self.asks and self.allocation_api is AllocationApi.DEVICE_PLUGIN

    def app_amount(self, resource: str) -> int:
        return sum(c.amount(resource) for c in self.containers if c.kind is ContainerKind.APP)

    def container(self, name: str) -> ContainerRequest | None:
        return next((c for c in self.containers if c.name == name), None)


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod in the kubelet's PodResources List, which has neither uid nor pod spec.

    Attributes:
        held: Container -> resource -> unit ids. App and sidecar containers only: List never
            shows ordinary init containers. A container that holds nothing may be there or not.
        resources: Those of which it holds units. Kept, since each call of the kubelet looks at all pods.
    """

    pod: PodRef
    held: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    drivers: frozenset[str] = frozenset()
    resources: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        held = (name for units in self.held.values() for name, ids in units.items() if ids)
        object.__setattr__(self, "resources", frozenset(held))

    def ids(self, container: str, resource: str) -> frozenset[str]:
        return self.held.get(container, {}).get(resource, frozenset())


@dataclass(frozen=True, slots=True)
class HeldUnits:
    """Units of one resource in one container, as the kubelet's List or checkpoint has them.

    The checkpoint knows uids only, List names only. Slice and library version are those that the answer in
    the checkpoint mounts; empty if not known.
    """

    pod: PodRef
    container: str
    resource: str
    ids: frozenset[str]
    slice_id: str = ""
    library_version: str = ""


def known_here(
    specs: Mapping[PodKey, PodRequest], listed: Collection[PodKey]
) -> Mapping[PodKey, PodRequest]:
    """The API's pods of this node, where a forged mirror of a static pod asks for nothing.

    Anybody can create a pod that says it is a mirror, with any uid. The kubelet never runs it and
    removes it, unless a finalizer keeps it. It knows a static pod before the API has its mirror.

    Returns:
        The same; a mirror that the kubelet does not list, or whose uid is another pod's, without
        uid and containers: it is there, and nothing else is known of it.
    """
    mirrors = {key: spec for key, spec in specs.items() if spec.is_mirror}
    if not mirrors:
        return specs
    others = {spec.ref.uid for spec in specs.values() if not spec.is_mirror}
    forged = {
        key: replace(spec, ref=replace(spec.ref, uid=""), containers=(), wish=(), init_wish=())
        for key, spec in mirrors.items()
        if key not in listed or spec.ref.uid in others
    }
    return {**specs, **forged}
