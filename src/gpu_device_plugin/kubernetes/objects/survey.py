"""A whole cluster, read once for a person: nodes, pods, agents, policies."""

from collections.abc import Mapping

from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import check_answer, list_items, read_object
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.kubernetes.objects.agent_set import AgentSet
from gpu_device_plugin.kubernetes.objects.explained_pod import ExplainedPod
from gpu_device_plugin.kubernetes.objects.survey_objects import (
    Event,
    SurveyedNode,
    SurveyedPod,
    container_of,
)

NAMESPACES = "/api/v1/namespaces"
VALIDATING_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
MUTATING_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_CLAIM_TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"


class Survey:
    """Reads; every method raises ClusterError where the API server does not serve it."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api

    async def nodes(self) -> tuple[SurveyedNode, ...]:
        found = [node async for node in list_items(self.api, "/api/v1/nodes", SurveyedNode)]
        return tuple(sorted(found, key=lambda node: node.metadata.name))

    async def pods(self) -> tuple[SurveyedPod, ...]:
        return tuple([pod async for pod in list_items(self.api, "/api/v1/pods", SurveyedPod)])

    async def pod(self, namespace: str, name: str) -> ExplainedPod | None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return await read_object(self.api, path, ExplainedPod)

    async def events(self, namespace: str, kind: str, name: str = "") -> tuple[Event, ...]:
        """Events about one object (or all of a kind), the oldest first."""
        selector = f"involvedObject.kind={kind}"
        selector += f",involvedObject.name={name}" if name else ""
        path = f"/api/v1/namespaces/{namespace}/events"
        items = list_items(self.api, path, Event, {"fieldSelector": selector})
        return tuple(sorted([event async for event in items], key=lambda event: event.at))

    async def agent_sets(self) -> tuple[AgentSet, ...]:
        """The DaemonSets that run our agent, whatever their names."""
        items = list_items(self.api, "/apis/apps/v1/daemonsets", AgentSet)
        return tuple(
            [each async for each in items if container_of(each.spec.template.spec, "agent")]
        )

    async def claim_templates(self, name: str) -> frozenset[str]:
        query = {"fieldSelector": f"metadata.name={name}"}
        items = list_items(self.api, _CLAIM_TEMPLATES, Bare, query)
        return frozenset([each.metadata.namespace async for each in items])

    async def metrics(self, agent: SurveyedPod) -> str:
        """An agent's metrics page, through the API server's proxy."""
        meta, port = agent.metadata, agent.metrics_port
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{port}/proxy/metrics"
        answer = await self.api.call(Request("GET", path))
        return check_answer(answer, f"GET {path}").body.decode("utf-8", "replace")

    async def names(self, path: str, query: Mapping[str, str] | None = None) -> frozenset[str]:
        """Names of the objects of one of the lists above."""
        items = list_items(self.api, path, Bare, query)
        return frozenset([each.metadata.name async for each in items])
