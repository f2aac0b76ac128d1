"""A whole cluster, read once for a person, and the DaemonSet of the agents: which nodes it is meant for."""

from collections.abc import Mapping, Sequence

import msgspec

from gpu_device_plugin.cluster.api import ApiServer, Request
from gpu_device_plugin.cluster.listing import list_items, read_object, served
from gpu_device_plugin.cluster.prometheus import Series, instant_query
from gpu_device_plugin.cluster.survey_objects import (
    Event,
    ExplainedPod,
    SurveyedNode,
    SurveyedPod,
    SurveyedPodSpec,
    agent_container,
)
from gpu_device_plugin.cluster.wire import Bare
from gpu_device_plugin.domain.models.label_selector import Expression, Operator

_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_MUTATING_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
_CLAIM_TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
_RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_OPERATORS = frozenset(operator.value for operator in Operator)  # without Gt and Lt


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
        return agent_container(self.spec.template.spec) is not None

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


class Survey:
    """Reads; every method raises ClusterError where the API server does not serve it."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def nodes(self) -> tuple[SurveyedNode, ...]:
        """All nodes, by name."""
        found = [node async for node in list_items(self._api, "/api/v1/nodes", SurveyedNode)]
        return tuple(sorted(found, key=lambda node: node.metadata.name))

    async def pods(self) -> tuple[SurveyedPod, ...]:
        """All pods."""
        return tuple([pod async for pod in list_items(self._api, "/api/v1/pods", SurveyedPod)])

    async def pod(self, namespace: str, name: str) -> ExplainedPod | None:
        """A pod, or None where there is none."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return await read_object(self._api, path, ExplainedPod)

    async def events(self, namespace: str, kind: str, name: str = "") -> tuple[Event, ...]:
        """Events about one object (or all of a kind), the oldest first."""
        selector = f"involvedObject.kind={kind}"
        selector += f",involvedObject.name={name}" if name else ""
        path = f"/api/v1/namespaces/{namespace}/events"
        items = list_items(self._api, path, Event, {"fieldSelector": selector})
        return tuple(sorted([event async for event in items], key=lambda event: event.at))

    async def agent_sets(self) -> tuple[AgentSet, ...]:
        """The DaemonSets that run our agent, whatever their names."""
        items = list_items(self._api, "/apis/apps/v1/daemonsets", AgentSet)
        return tuple([each async for each in items if each.is_of_agents])

    async def policies(self) -> frozenset[str]:
        """Names of the admission policies."""
        return await self._names(_POLICIES)

    async def runtime_classes(self) -> frozenset[str]:
        """Names of the RuntimeClasses."""
        return await self._names(_RUNTIME_CLASSES)

    async def namespaces_labelled(self, label: str) -> frozenset[str]:
        """Names of the namespaces with that label, `key=value`."""
        return await self._names("/api/v1/namespaces", {"labelSelector": label})

    async def claim_templates(self, name: str) -> frozenset[str]:
        """Namespaces that have a ResourceClaimTemplate of that name."""
        query = {"fieldSelector": f"metadata.name={name}"}
        items = list_items(self._api, _CLAIM_TEMPLATES, Bare, query)
        return frozenset([each.metadata.namespace async for each in items])

    async def mutating_policies(self) -> frozenset[str]:
        """Names of the MutatingAdmissionPolicies."""
        return await self._names(_MUTATING_POLICIES)

    async def metrics(self, agent: SurveyedPod) -> str:
        """An agent's metrics page, through the API server's proxy."""
        meta, port = agent.metadata, agent.metrics_port
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{port}/proxy/metrics"
        answer = await self._api.call(Request("GET", path))
        return served(answer, path).body.decode("utf-8", "replace")

    async def prometheus(self, where: str, query: str) -> Sequence[Series]:
        """Labels and value of each series of an instant query; see `instant_query`."""
        return await instant_query(self._api, where, query)

    async def _names(self, path: str, query: Mapping[str, str] | None = None) -> frozenset[str]:
        items = list_items(self._api, path, Bare, query)
        return frozenset([each.metadata.name async for each in items])
