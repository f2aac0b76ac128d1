"""Nodes, pods, agents and Events, with the fields that only a person asks for."""

from collections.abc import Mapping
from itertools import islice

import msgspec

from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    HOLDINGS_ANNOTATION,
    MOST_IN_A_WORD,
)
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.kubernetes.client.wire import (
    MIRROR,
    Bare,
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.kubernetes.objects.pod_spec import devices_asked, whole_request

_METRICS = "metrics"
SCHEDULER_LABEL = "gpu-device-plugin/scheduler"
"""On the pods of the chart's kube-scheduler: the name that it serves."""
NAMES_SCHEDULER_LABEL = "gpu-device-plugin/names-scheduler"
"""On the controller's pods: the name that its webhook gives to new pods."""
_MOST_LABELS = 256


class Condition(msgspec.Struct, rename="camel"):
    """One entry of `status.conditions`."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class Address(msgspec.Struct):
    """One entry of a node's `status.addresses`."""

    type: str
    address: str


class SurveyedNodeSpec(NodeSpec):
    """`spec` of a node."""

    unschedulable: bool = False


class SurveyedNodeStatus(NodeStatus):
    """`status` of a node."""

    addresses: list[Address] | None = None
    conditions: list[Condition] | None = None


class SurveyedNode(Node):
    """A node."""

    spec: SurveyedNodeSpec = msgspec.field(default_factory=SurveyedNodeSpec)
    status: SurveyedNodeStatus = msgspec.field(default_factory=SurveyedNodeStatus)

    @property
    def address(self) -> str:
        """Its internal IP address, or `unknown`."""
        found = (a.address for a in self.status.addresses or () if a.type == "InternalIP")
        return next(found, "unknown")

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet reports it ready; one without conditions counts as ready."""
        return self._readiness.status == "True"

    @property
    def readiness_text(self) -> str:
        """What its condition Ready says; empty where it says nothing."""
        return self._readiness.message or self._readiness.reason

    @property
    def _readiness(self) -> Condition:
        found = (c for c in self.status.conditions or () if c.type == "Ready")
        return next(found, Condition("Ready", "True"))

    @property
    def marks(self) -> tuple[str, ...]:
        """Why no new pod goes to it, whatever it asks, each in one or two words."""
        cordoned = ("cordoned",) if self.spec.unschedulable else ()
        return cordoned if self.is_ready else ("not ready", *cordoned)

    def with_cards(self) -> ClusterNode | None:
        """The node as placement sees it, or None where no agent publishes cards."""
        cards = self.annotations.get(CARDS_ANNOTATION)
        holdings = self.annotations.get(HOLDINGS_ANNOTATION, "")
        if cards is None:
            return None
        name, labels = self.metadata.name, self.labels
        return ClusterNode(name, cards, labels, holdings=holdings, marks=self.marks)


class Port(msgspec.Struct, rename="camel"):
    """One entry of a container's `ports`."""

    container_port: int
    name: str = ""


class SurveyedContainer(Container):
    """One entry of `containers`."""

    image: str = ""
    command: list[str] | None = None
    ports: list[Port] | None = None

    def __post_init__(self) -> None:
        """With so much as tells an agent: the command's beginning, and the port of its metrics."""
        super().__post_init__()
        self.image = self.image[:MOST_IN_A_WORD]
        self.command = [word[:MOST_IN_A_WORD] for word in (self.command or [])[:2]] or None
        self.ports = [port for port in self.ports or () if port.name == _METRICS][:1] or None


class SurveyedPodSpec(PodSpec):
    """`spec` of a pod."""

    containers: list[SurveyedContainer] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    node_selector: dict[str, str] | None = None
    scheduler_name: str = "default-scheduler"

    def __post_init__(self) -> None:
        """With as many labels of a node as anybody would select by."""
        super().__post_init__()
        self.node_selector = dict(islice((self.node_selector or {}).items(), _MOST_LABELS)) or None


class SurveyedPodStatus(PodStatus):
    """`status` of a pod."""

    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None


class SurveyedPod(Pod):
    """A pod."""

    spec: SurveyedPodSpec = msgspec.field(default_factory=SurveyedPodSpec)
    status: SurveyedPodStatus = msgspec.field(default_factory=SurveyedPodStatus)

    def __post_init__(self) -> None:
        """With as many labels as anybody would count by."""
        some = dict(islice((self.metadata.labels or {}).items(), _MOST_LABELS))
        super().__post_init__()
        self.metadata.labels = some | (self.metadata.labels or {}) or None

    def condition(self, kind: str) -> Condition:
        """Its condition of that type; an empty one where it has none."""
        found = (c for c in self.status.conditions or () if c.type == kind)
        return next(found, Condition(kind))

    @property
    def is_ready(self) -> bool:
        return self.condition("Ready").status == "True"

    @property
    def agent(self) -> SurveyedContainer | None:
        """The container that runs our agent; None also in a pod that has ended, as an evicted one."""
        return None if self.status.is_over else container_of(self.spec, "agent")

    def as_asking(self, foreign: Mapping[str, int] | None = None) -> ClusterPod | None:
        """The pod as placement sees it, or None where it asks for nothing of this plugin, cards included, nor for `foreign`."""
        request = whole_request(self)
        devices = {**devices_asked(self), **(foreign or {})}
        if not (request.asks or devices or DEVICES_ANNOTATION in self.annotations):
            return None
        return ClusterPod(
            request, self.spec.node_name, self.annotations, self.metadata.resource_version, devices
        )

    @property
    def metrics_port(self) -> int:
        """The port at which its agent serves metrics; 0 where it names no such port."""
        ports = (self.agent.ports if self.agent else None) or ()
        return next((p.container_port for p in ports if p.name == _METRICS), 0)


class _Source(msgspec.Struct):
    component: str = ""


class _About(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Series(msgspec.Struct, rename="camel"):
    last_observed_time: str = ""


class Event(Bare, rename="camel"):
    """An Event."""

    reason: str = ""
    message: str = ""
    type: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None
    reporting_component: str = ""
    source: _Source = msgspec.field(default_factory=_Source)
    involved_object: _About = msgspec.field(default_factory=_About)

    @property
    def about(self) -> str:
        return self.involved_object.name

    def is_about(self, pod: SurveyedPod) -> bool:
        """Whether it is about this pod, and not an earlier one of its name.

        For a static pod the kubelet says its own uid, which the API's copy has in an annotation.
        """
        uids = ("", pod.metadata.uid, pod.annotations.get(MIRROR))
        return self.involved_object.uid in uids

    @property
    def at(self) -> str:
        """When it was last seen, as RFC 3339 to the second; empty if unknown."""
        again = self.series.last_observed_time if self.series else ""
        seen = again or self.last_timestamp or self.event_time or ""
        whole, point, _ = seen.partition(".")
        return f"{whole}Z" if point else seen

    @property
    def reporter(self) -> str:
        return self.reporting_component or self.source.component


def container_of(spec: SurveyedPodSpec, program: str) -> SurveyedContainer | None:
    """The container of a pod spec that runs `gpu-device-plugin PROGRAM`, or None."""
    command = ["gpu-device-plugin", program]
    found = (c for c in spec.containers if (c.command or [])[:2] == command)
    return next(found, None)
