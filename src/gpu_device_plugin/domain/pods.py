"""Pods as the rules see them: what the API says they ask for, what the kubelet says they hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpu_device_plugin.domain.units import Resource


class ContainerKind(Enum):
    """How the kubelet runs a container; it decides who may take over whose units."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks of the three resources; 0 is nothing.

    Attributes:
        name: The container's name.
        kind: Init, sidecar or app.
        index: Position in `spec.containers`, or in `spec.initContainers`.
        mem_units: Limit of `aliyun.com/gpu-mem`.
        core_percent: Limit of `aliyun.com/gpu-core.percentage`.
        count_units: Limit of `aliyun.com/gpu-count`, which is refused.
        wants_no_isolation: The container's own env says CGPU_DISABLE (R-507).
    """

    name: str
    kind: ContainerKind
    index: int
    mem_units: int = 0
    core_percent: int = 0
    count_units: int = 0
    wants_no_isolation: bool = False

    def amount(self, resource: Resource) -> int:
        """How much of `resource` this container asks for."""
        match resource:
            case Resource.MEM:
                return self.mem_units
            case Resource.CORE:
                return self.core_percent
            case Resource.COUNT:
                return self.count_units

    @property
    def asks(self) -> bool:
        """Whether it asks for any of our resources."""
        return bool(self.mem_units or self.core_percent or self.count_units)


@dataclass(frozen=True, slots=True)
class PodRef:
    """Which pod. `uid` is empty while only the kubelet's PodResources has named it."""

    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        """`namespace/name`, as people write it."""
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: what the kubelet's List and the API have in common."""
        return self.namespace, self.name

    def is_same_name(self, other: "PodRef") -> bool:
        """Whether both carry the same namespace and name; the uid may differ."""
        return self.key == other.key

    def is_same_pod(self, other: "PodRef") -> bool:
        """Whether both are one pod: by uid where both know it, else by namespace and name."""
        if self.uid and other.uid:
            return self.uid == other.uid
        return self.is_same_name(other)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for, in the order in which the kubelet admits its containers.

    Attributes:
        ref: Which pod.
        containers: All of its containers, init containers first, in the order of the spec.
        card_count_label: Text of the pod label `aliyun.com/gpu-count`, or None.
        wish: Cards that a scheduler extender wishes, container index -> card index; may be empty.
        is_finished: Phase Succeeded or Failed.
        owner: The controller that made it, `ReplicaSet namespace/name`, or "".
    """

    ref: PodRef
    containers: tuple[ContainerRequest, ...]
    card_count_label: str | None = None
    wish: tuple[tuple[int, tuple[int, ...]], ...] = ()
    is_finished: bool = False
    owner: str = ""

    @property
    def app_units(self) -> int:
        """Memory units of all app containers together (`ALIYUN_COM_GPU_MEM_POD`)."""
        return sum(c.mem_units for c in self.containers if c.kind is ContainerKind.APP)

    def container(self, name: str) -> ContainerRequest | None:
        """The container of that name, or None."""
        return next((c for c in self.containers if c.name == name), None)


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod in the kubelet's PodResources List: it has no uid there, and nobody's wishes.

    Attributes:
        pod: Which pod; its uid is empty.
        held: Container -> resource -> unit ids. App and sidecar containers only: List never
            shows ordinary init containers. A container that holds nothing may be there or not.
    """

    pod: PodRef
    held: Mapping[str, Mapping[Resource, frozenset[str]]] = field(default_factory=dict)

    def ids(self, container: str, resource: Resource) -> frozenset[str]:
        """What `container` holds of `resource`, as the kubelet sees it."""
        return self.held.get(container, {}).get(resource, frozenset())
