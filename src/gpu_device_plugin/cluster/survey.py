"""A whole cluster, read once for a person."""

from collections.abc import Mapping, Sequence

from gpu_device_plugin.cluster.agent_set import AgentSet
from gpu_device_plugin.cluster.api import ApiServer, Request
from gpu_device_plugin.cluster.explained_pod import ExplainedPod
from gpu_device_plugin.cluster.listing import list_items, read_object, served
from gpu_device_plugin.cluster.prometheus import Series, instant_query
from gpu_device_plugin.cluster.survey_objects import Event, SurveyedNode, SurveyedPod
from gpu_device_plugin.cluster.wire import Bare

_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_MUTATING_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
_CLAIM_TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
_RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


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
