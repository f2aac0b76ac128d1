"""The few fields of Kubernetes objects that we read; msgspec skips the rest unparsed."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from gpu_device_plugin.domain.fractions.demands import CARD_LABEL, COUNT_LABEL
from gpu_device_plugin.domain.fractions.foreign_resource_names import KOORDINATOR
from gpu_device_plugin.domain.fractions.pod_annotations import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CORE_ALLOCATION,
    FIRST_GENERATION,
    INIT_ALLOCATION,
    MOST_ANSWERED,
    MOST_ASKED,
    RESIZE,
    RESIZED,
)
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    MOST_IN_A_WORD,
    MOST_ON_A_POD,
)
from gpu_device_plugin.domain.node.compute_policy import COMPUTE_POLICY_KEY
from gpu_device_plugin.domain.node.modes import PLACEMENT_ANNOTATION
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES

MIRROR = "kubernetes.io/config.mirror"
CGPU_DISABLE = "CGPU_DISABLE"
ACCESS_ANNOTATION = "nvidia.cdi.k8s.io/container.agent"
"""By which an agent asks NVIDIA's NRI plugin for its cards."""
POD_ANNOTATIONS: Mapping[str, int] = {
    **dict.fromkeys((ASSIGNED, ASSUME_TIME, *FIRST_GENERATION), MOST_IN_A_WORD),
    **dict.fromkeys(
        (COMPUTE_POLICY_KEY, PLACEMENT_ANNOTATION, MIRROR, ACCESS_ANNOTATION), MOST_IN_A_WORD
    ),
    **dict.fromkeys(
        (ALLOCATION, CORE_ALLOCATION, INIT_ALLOCATION, DEVICES_ANNOTATION), MOST_ON_A_POD
    ),
    RESIZE: MOST_ASKED + 1,
    RESIZED: MOST_ANSWERED,
}
"""A pod's annotations that we read or write -> the most characters of it; longer than what we write.

A tenant fills the others as he likes, and these too. A longer one is cut off, so that it
still stands there: as JSON it then says nothing, as a name it is not known.
"""
_POD_LABELS = (COUNT_LABEL, CARD_LABEL)
_RESOURCES = (*OUR_RESOURCES, *KOORDINATOR.names)
_MOST_RESOURCES, _MOST_CLAIMS = 64, 256
_Amounts = dict[str, str | int | float]


def _read_amounts(amounts: _Amounts | None, names: Collection[str], domain: str) -> _Amounts | None:
    """Those of `names` and some of `domain`: a tenant can write twenty thousand of any name."""
    if not amounts:
        return None
    others = (name for name in amounts if domain and name.startswith(domain))
    kept = (*(name for name in names if name in amounts), *islice(others, _MOST_RESOURCES))
    return {name: amounts[name] for name in kept} or None


class OwnerReference(msgspec.Struct):
    """One entry of `ownerReferences`."""

    uid: str
    kind: str = ""
    name: str = ""
    controller: bool | None = None

    def __post_init__(self) -> None:
        """As the API server bounds none of these."""
        self.uid, self.kind = self.uid[:MOST_IN_A_WORD], self.kind[:MOST_IN_A_WORD]
        self.name = self.name[:MOST_IN_A_WORD]


class ObjectMeta(msgspec.Struct, rename="camel"):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None

    @property
    def owner(self) -> OwnerReference | None:
        """The controller that made the object, or None."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)

    @property
    def owner_uid(self) -> str:
        """Uid of the controller that made the object, or ""."""
        return self.owner.uid if self.owner else ""


class Bare(msgspec.Struct):
    """Any object, of which only the metadata matters."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}


class EnvVar(msgspec.Struct):
    """One entry of a container's `env`; a `valueFrom` reads as empty."""

    name: str
    value: str = ""


class NamedEntry(msgspec.Struct):
    """One entry of a list of which only the name is read, as of a pod's `resourceClaims`."""

    name: str


class Resources(msgspec.Struct, omit_defaults=True):
    """`resources`; the kubelet's device manager looks at limits only, the scheduler at requests."""

    limits: _Amounts | None = None
    requests: _Amounts | None = None
    claims: list[NamedEntry] | None = None

    def __post_init__(self) -> None:
        """Without the amounts that we do not read."""
        self.claims = (self.claims or [])[:_MOST_CLAIMS] or None
        self.limits = _read_amounts(self.limits, _RESOURCES, "nvidia.com/")
        self.requests = _read_amounts(self.requests, ("cpu",), "")


class Container(msgspec.Struct, rename="camel", omit_defaults=True):
    """One entry of `containers` or `initContainers`."""

    name: str
    env: list[EnvVar] | None = None
    resources: Resources = msgspec.field(default_factory=Resources)
    restart_policy: str | None = None

    def __post_init__(self) -> None:
        """Without the variables that we do not read: a tenant can write a megabyte of them."""
        said = [each.value for each in self.env or () if each.name == CGPU_DISABLE]
        self.env = [EnvVar(CGPU_DISABLE, said[-1][:MOST_IN_A_WORD])] if said else None

    @property
    def is_sidecar(self) -> bool:
        """Whether it is an init container that runs beside the app containers."""
        return self.restart_policy == "Always"


class PodSpec(msgspec.Struct, rename="camel"):
    """`spec` of a pod."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    node_name: str = ""
    runtime_class_name: str = ""
    resources: Resources | None = None
    overhead: _Amounts | None = None
    resource_claims: list[NamedEntry] | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        """Without the rest of what a tenant can write thousands of."""
        self.overhead = _read_amounts(self.overhead, ("cpu",), "")
        self.resource_claims = (self.resource_claims or [])[:_MOST_CLAIMS] or None


class PodStatus(msgspec.Struct):
    """`status` of a pod."""

    phase: str = ""
    nominated_node: str = msgspec.field(default="", name="nominatedNodeName")

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended, and holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")


class Pod(Bare):
    """A pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def __post_init__(self) -> None:
        """Without the labels, annotations and owners that we do not read, see `POD_ANNOTATIONS`."""
        meta = self.metadata
        found, labels = meta.annotations or {}, meta.labels or {}
        kept = {key: found[key][:most] for key, most in POD_ANNOTATIONS.items() if key in found}
        meta.annotations = kept or None
        meta.labels = {key: labels[key] for key in _POD_LABELS if key in labels} or None
        meta.owner_references = [meta.owner] if meta.owner else None


class ConfigMap(Bare):
    """A ConfigMap; binary data is not read."""

    data: dict[str, str] | None = None


class NodeInfo(msgspec.Struct, rename="camel"):
    """`status.nodeInfo` of a node."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(msgspec.Struct, rename="camel"):
    """`status` of a node."""

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class NodeSpec(msgspec.Struct, rename="camel"):
    """`spec` of a node."""

    taints: list[dict[str, str]] | None = None


class Node(Bare):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class ResourceSliceSpec(msgspec.Struct, rename="camel"):
    """`spec` of a ResourceSlice."""

    driver: str = ""
    node_name: str = ""


class ResourceSlice(Bare):
    """Devices that a DRA driver offers on a node."""

    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)


Item = TypeVar("Item", bound=Bare)


class ListMeta(msgspec.Struct, rename="camel"):
    """`metadata` of a list; `next_page` is empty at its end."""

    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class ListOf(msgspec.Struct, Generic[Item]):
    """A list answer."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Item] | None = None


class RawList(msgspec.Struct):
    """A list answer whose objects are decoded one by one."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class WatchLine(msgspec.Struct):
    """One line of a watch; `object` is decoded once `type` is known."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    """The API server's answer if it has no object."""

    message: str = ""
    code: int = 0
