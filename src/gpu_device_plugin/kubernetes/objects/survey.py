"""A whole cluster, read once for a person: nodes, pods, agents, policies, and what Prometheus says."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from gpu_device_plugin.domain.models.pod_admission import Expression, Operator
from gpu_device_plugin.errors import ClusterError, ConfigError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request, connection_error
from gpu_device_plugin.kubernetes.client.listing import check_answer, list_items, read_object
from gpu_device_plugin.kubernetes.client.wire import Bare, NamedEntry, ObjectMeta
from gpu_device_plugin.kubernetes.objects.survey_objects import (
    Event,
    SurveyedNode,
    SurveyedPod,
    SurveyedPodSpec,
    SurveyedPodStatus,
    agent_container,
)


class StateDetails(msgspec.Struct, rename="camel"):
    """`state.waiting` or `state.terminated` of a container."""

    exit_code: int = 0  # of one that ended
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    """`state` of a container."""

    waiting: StateDetails | None = None
    terminated: StateDetails | None = None


class ContainerStatus(msgspec.Struct):
    """One entry of `containerStatuses`."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)

    def __str__(self) -> str:
        """What it waits for, or how it ended; empty where it runs or ended well."""
        waiting, ended = self.state.waiting, self.state.terminated
        if waiting is not None:
            why = ": ".join(filter(None, (waiting.reason, waiting.message)))
            return f"container {self.name} waits: {why}" if why else ""
        if ended is None or not ended.exit_code:
            return ""
        reason = f" ({ended.reason})" if ended.reason else ""
        message = f": {ended.message}" if ended.message else ""
        return f"container {self.name} ended with exit code {ended.exit_code}{reason}{message}"


class ExplainedMeta(ObjectMeta):
    """`metadata` of the pod."""

    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class ExplainedSpec(SurveyedPodSpec):
    """`spec` of the pod."""

    scheduler_name: str = "default-scheduler"
    scheduling_gates: list[NamedEntry] | None = None


class ExplainedStatus(SurveyedPodStatus, rename="camel"):
    """`status` of the pod."""

    start_time: str | None = None
    resource_claim_statuses: list[NamedEntry] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class ExplainedPod(SurveyedPod):
    """The pod."""

    metadata: ExplainedMeta = msgspec.field(default_factory=ExplainedMeta)
    spec: ExplainedSpec = msgspec.field(default_factory=ExplainedSpec)
    status: ExplainedStatus = msgspec.field(default_factory=ExplainedStatus)

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        """What is known of its containers, init containers first."""
        status = self.status
        return (*(status.init_container_statuses or ()), *(status.container_statuses or ()))

    @property
    def missing_claims(self) -> tuple[str, ...]:
        """Names in it of claims that kube-controller-manager has not made."""
        made = {each.name for each in self.status.resource_claim_statuses or ()}
        names = (each.name for each in self.spec.resource_claims or ())
        return tuple(name for name in names if name not in made)

    @property
    def failed_by_itself(self) -> tuple[str, ...]:
        """Containers by which it failed; empty where the kubelet refused or ended it, with a reason."""
        if self.status.phase != "Failed" or self.status.reason:
            return ()
        ended = (each for each in self.containers if each.state.terminated)
        return tuple(each.name for each in ended if str(each))


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


class _TemplateSpec(SurveyedPodSpec):
    affinity: dict[str, Any] | None = None

    @property
    def terms(self) -> list[_Term]:
        node = (self.affinity or {}).get("nodeAffinity") or {}
        required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        return msgspec.convert(required.get("nodeSelectorTerms") or [], list[_Term])


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
        return self.labels.get("app.kubernetes.io/version", "")

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


_SECONDS = 10.0
Series = tuple[dict[str, str], float]
PastSeries = tuple[dict[str, str], Sequence[tuple[float, float]]]


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] = (0.0, "NaN")
    values: tuple[tuple[float, str], ...] = ()


class _Data(msgspec.Struct):
    result: list[_Series]


class _Result(msgspec.Struct):
    data: _Data


async def instant_query(api: ApiServer, prometheus: str, query: str) -> Sequence[Series]:
    """Labels and value of each series of a PromQL query.

    `prometheus` is an address (`http://…`), or `NAMESPACE/SERVICE:PORT` behind `api`.

    Raises:
        ConfigError: It is neither.
        ClusterError: No answer, or none that a Prometheus gives; the text names which was asked.
    """
    return [(labels, past[-1][1]) for labels, past in await query_past(api, prometheus, query)]


async def query_past(api: ApiServer, prometheus: str, query: str) -> Sequence[PastSeries]:
    """As `instant_query`, each value with its time; of a subquery the earlier ones too."""
    path = query_path(prometheus)
    if path.startswith("/"):
        answer = await api.call(Request("GET", path, {"query": query}))
    else:
        answer = await _direct(path, query)
    try:
        found = msgspec.json.decode(
            check_answer(answer, f"GET {path}").body, type=_Result
        ).data.result
        return [
            (each.metric, [(at, float(value)) for at, value in each.values or (each.value,)])
            for each in found
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise ClusterError(f"{path}: not the answer of a Prometheus: {error}") from error


def query_path(prometheus: str) -> str:
    """Where it is asked: a URL, or a path at the API server."""
    if re.match(r"https?://[^/:]", prometheus):
        return prometheus.rstrip("/") + "/api/v1/query"
    namespace, slash, name = prometheus.partition("/")
    if not namespace or not slash or ":" not in name:
        raise ConfigError(
            f"--prometheus: {prometheus!r} is neither http://… nor NAMESPACE/SERVICE:PORT, "
            f"for instance monitoring/prometheus:9090"
        )
    return f"/api/v1/namespaces/{quote(namespace)}/services/{quote(name)}/proxy/api/v1/query"


async def _direct(url: str, query: str) -> Answer:
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, params={"query": query}) as response,
        ):
            return Answer(response.status, await response.read())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise connection_error(url, f"GET {url}", error) from error


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
        """A pod, or None where there is none."""
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
        return tuple([each async for each in items if agent_container(each.spec.template.spec)])

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
