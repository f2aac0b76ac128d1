"""Nodes, pods, agents and Events, with the fields that only a person asks for."""

from collections.abc import Mapping

import msgspec

from gpu_device_plugin.cluster.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.cluster.device_requests import devices_asked
from gpu_device_plugin.cluster.pod_spec import whole_request
from gpu_device_plugin.cluster.wire import (
    Bare,
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from gpu_device_plugin.domain.annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.held_devices import DEVICES_ANNOTATION
from gpu_device_plugin.domain.models.label_selector import Expression, Operator

_AGENT_COMMAND = ["gpu-device-plugin", "agent"]
_OPERATORS = frozenset(operator.value for operator in Operator)  # without Gt and Lt


class Condition(msgspec.Struct):
    """One entry of `status.conditions`."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class Address(msgspec.Struct):
    """One entry of a node's `status.addresses`."""

    type: str
    address: str


class SurveyedNodeSpec(msgspec.Struct):
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
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        return self.metadata.annotations or {}

    @property
    def address(self) -> str:
        """Its internal IP address, or `unknown`."""
        found = (a.address for a in self.status.addresses or () if a.type == "InternalIP")
        return next(found, "unknown")

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet reports it ready; one without conditions counts as ready."""
        found = (c.status for c in self.status.conditions or () if c.type == "Ready")
        return next(found, "True") == "True"

    @property
    def closed(self) -> str:
        """Why no new pod goes to it, whatever it asks; empty if nothing is known."""
        if not self.is_ready:
            return "the node is not ready"
        return "the node is cordoned" if self.spec.unschedulable else ""

    def with_cards(self) -> ClusterNode | None:
        """The node as placement sees it, or None where no agent publishes cards."""
        cards = self.annotations.get(CARDS_ANNOTATION)
        return None if cards is None else ClusterNode(self.metadata.name, cards, self.labels)


class Port(msgspec.Struct, rename="camel"):
    """One entry of a container's `ports`."""

    container_port: int
    name: str = ""


class SurveyedContainer(Container):
    """One entry of `containers`."""

    image: str = ""
    command: list[str] | None = None
    ports: list[Port] | None = None


class SurveyedPodSpec(PodSpec):
    """`spec` of a pod."""

    containers: list[SurveyedContainer] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    node_selector: dict[str, str] | None = None


class SurveyedPodStatus(PodStatus):
    """`status` of a pod."""

    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None


class SurveyedPod(Pod):
    """A pod."""

    spec: SurveyedPodSpec = msgspec.field(default_factory=SurveyedPodSpec)
    status: SurveyedPodStatus = msgspec.field(default_factory=SurveyedPodStatus)

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        return self.metadata.annotations or {}

    def condition(self, kind: str) -> Condition:
        """Its condition of that type; an empty one where it has none."""
        found = (c for c in self.status.conditions or () if c.type == kind)
        return next(found, Condition(kind))

    @property
    def is_ready(self) -> bool:
        """Whether it is ready."""
        return self.condition("Ready").status == "True"

    @property
    def agent(self) -> SurveyedContainer | None:
        """The container that runs our agent, or None."""
        return _agent(self.spec)

    def as_asking(self) -> ClusterPod | None:
        """The pod as placement sees it, or None where it asks for nothing of ours, cards included.

        Raises:
            ClusterError: A limit of one of our resources is not a quantity.
        """
        request = whole_request(self)
        devices = devices_asked(self)
        if not (request.asks or devices or DEVICES_ANNOTATION in self.annotations):
            return None
        return ClusterPod(
            request,
            self.spec.node_name,
            self.annotations,
            self.metadata.resource_version,
            devices,
        )

    @property
    def metrics_port(self) -> int:
        """Where its agent serves metrics; 0 where it names no such port."""
        ports = (self.agent.ports if self.agent else None) or ()
        return next((p.container_port for p in ports if p.name == "metrics"), 0)


class _Expression(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[_Expression] | None = None

    def names(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it, and one of them because it has to be there."""
        found = self.match_expressions or []
        if not any(each.operator in ("In", "Exists") for each in found):
            return False
        if any(each.operator not in _OPERATORS for each in found):
            return False
        return all(
            Expression(e.key, Operator(e.operator), frozenset(e.values or ())).holds(labels)
            for e in found
        )


class _Required(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_Term] = msgspec.field(default_factory=list)


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Required | None = None


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _TemplateSpec(SurveyedPodSpec):
    affinity: _Affinity | None = None

    @property
    def terms(self) -> list[_Term]:
        """Of its node affinity."""
        node = self.affinity.node_affinity if self.affinity else None
        required = node.required_during_scheduling_ignored_during_execution if node else None
        return required.node_selector_terms if required else []


class _Template(msgspec.Struct):
    spec: _TemplateSpec = msgspec.field(default_factory=_TemplateSpec)


class _DaemonSetSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class AgentSet(Bare):
    """A DaemonSet of agents."""

    spec: _DaemonSetSpec = msgspec.field(default_factory=_DaemonSetSpec)

    @property
    def version(self) -> str:
        """The release that it belongs to; empty where its labels do not say."""
        return (self.metadata.labels or {}).get("app.kubernetes.io/version", "")

    @property
    def is_of_agents(self) -> bool:
        """Whether its pods run our agent."""
        return _agent(self.spec.template.spec) is not None

    def looks_for(self, labels: Mapping[str, str]) -> bool:
        """Whether its node affinity names labels that this node has.

        Not so where it only says which labels nodes must not have, as with simulated cards.
        """
        spec = self.spec.template.spec
        selected = (spec.node_selector or {}).items() <= labels.items()
        return selected and any(term.names(labels) for term in spec.terms)

    @property
    def runtime_class(self) -> str:
        """The RuntimeClass of its pods; empty for the nodes' default."""
        return self.spec.template.spec.runtime_class_name


class _Source(msgspec.Struct):
    component: str = ""


class _About(msgspec.Struct):
    name: str = ""


class Event(Bare, rename="camel"):
    """An Event."""

    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""
    source: _Source = msgspec.field(default_factory=_Source)
    involved_object: _About = msgspec.field(default_factory=_About)

    @property
    def about(self) -> str:
        """Name of the object that it is about."""
        return self.involved_object.name

    @property
    def at(self) -> str:
        """When it was last seen, as RFC 3339; empty if unknown."""
        return self.last_timestamp or self.event_time or ""

    @property
    def reporter(self) -> str:
        """Who wrote it."""
        return self.reporting_component or self.source.component


def _agent(spec: SurveyedPodSpec) -> SurveyedContainer | None:
    found = (c for c in spec.containers if (c.command or [])[:2] == _AGENT_COMMAND)
    return next(found, None)
