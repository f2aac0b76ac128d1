"""What a pod asks for, as plain values, and the rules its text alone decides."""

from dataclasses import dataclass
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
        wants_no_isolation: The container's own env says CGPU_DISABLE (contract R-507).
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
        return {
            Resource.MEM: self.mem_units,
            Resource.CORE: self.core_percent,
            Resource.COUNT: self.count_units,
        }[resource]

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

    def is_same_name(self, other: "PodRef") -> bool:
        """Whether both carry the same namespace and name; the uid may differ."""
        return (self.namespace, self.name) == (other.namespace, other.name)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for, in the order in which the kubelet admits its containers.

    Attributes:
        ref: Which pod.
        containers: All of its containers, init containers first, in the order of the spec.
        card_count_label: Text of the pod label `aliyun.com/gpu-count`, or None.
        wish: Cards that a scheduler extender wishes, container index -> card index; may be empty.
        is_finished: Phase Succeeded or Failed.
    """

    ref: PodRef
    containers: tuple[ContainerRequest, ...]
    card_count_label: str | None = None
    wish: tuple[tuple[int, tuple[int, ...]], ...] = ()
    is_finished: bool = False

    @property
    def app_units(self) -> int:
        """Memory units of all app containers together (`ALIYUN_COM_GPU_MEM_POD`)."""
        return sum(c.mem_units for c in self.containers if c.kind is ContainerKind.APP)

    def container(self, name: str) -> ContainerRequest | None:
        """The container of that name, or None."""
        return next((c for c in self.containers if c.name == name), None)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one container needs, checked: `mem_units` over `cards` cards in equal parts.

    Attributes:
        mem_units: Memory units in all.
        core_percent: Percent of one card's compute; 0 is no cap.
        cards: Number of cards, at least 1; divides `mem_units`.
    """

    mem_units: int
    core_percent: int = 0
    cards: int = 1

    @property
    def units_per_card(self) -> int:
        """Memory units on each of its cards."""
        return self.mem_units // self.cards
