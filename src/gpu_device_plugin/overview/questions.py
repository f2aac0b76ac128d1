"""A person's questions about the whole cluster, each answered by reading it once."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gpu_device_plugin.domain.fractions.demands import TEMPLATE
from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL, AllocationApi
from gpu_device_plugin.errors import AccessError, ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import list_items
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.kubernetes.objects.survey import (
    MUTATING_POLICIES,
    NAMESPACES,
    RUNTIME_CLASSES,
    VALIDATING_POLICIES,
    Survey,
)
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedNode, SurveyedPod
from gpu_device_plugin.overview import slice_use
from gpu_device_plugin.overview.doctor import DAEMON_SETS, Installation, findings
from gpu_device_plugin.overview.finding import Finding
from gpu_device_plugin.overview.live_cluster import LiveCluster
from gpu_device_plugin.overview.node_cards import ClusterCards, asking_of, cluster_cards
from gpu_device_plugin.overview.why import PodStory, event_line, story

_LEAST_SECONDS_BETWEEN = 0.5
_MOST_SECONDS_BETWEEN = 1.0
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Reading:
    """The cluster as it was read."""

    nodes: tuple[SurveyedNode, ...]
    pods: tuple[SurveyedPod, ...]
    cards: ClusterCards


async def read_cluster(api: ApiServer) -> Reading:
    """All nodes and pods."""
    survey = Survey(api)
    nodes, pods = await asyncio.gather(survey.nodes(), survey.pods())
    with_cards = [found for node in nodes if (found := node.with_cards())]
    return Reading(nodes, pods, cluster_cards(with_cards, filter(None, map(asking_of, pods))))


async def select_by_labels(
    api: ApiServer, path: str, labels: str
) -> Collection[tuple[str, str]] | None:
    """Namespace and name of the objects of a list that a label selector leaves; None without one."""
    if not labels:
        return None
    items = list_items(api, path, Bare, {"labelSelector": labels})
    return {(each.metadata.namespace, each.metadata.name) async for each in items}


@dataclass(frozen=True, slots=True)
class FollowedCards:
    """The nodes with cards as last seen; None before both lists were read. `trouble` is why they may be out of date."""

    cards: ClusterCards | None
    trouble: str
    trouble_seconds: float


async def follow_cards(api: ApiServer, tell: Callable[[FollowedCards], None]) -> None:
    """Tell the nodes with cards after every change, and at least every second, until cancelled."""
    live = LiveCluster(api)
    async with asyncio.TaskGroup() as group:
        group.create_task(live.run())
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_MOST_SECONDS_BETWEEN):
                    await live.changed.wait()
            live.take_touched()
            cards = live.cards() if live.is_synced else None
            tell(FollowedCards(cards, *live.doubt))
            await asyncio.sleep(_LEAST_SECONDS_BETWEEN)


NodesAndFacts = tuple[ClusterCards, Mapping[str, SurveyedNode]]


async def read_story(
    api: ApiServer,
    namespace: str,
    name: str,
    nodes: Callable[[], Awaitable[NodesAndFacts]] | None = None,
) -> PodStory | None:
    """What is known of a pod, or None where there is none and no Event about one; AccessError: Events may not be listed.

    `nodes` has the nodes with cards and all nodes by name; None lists nodes and pods.
    """
    survey = Survey(api)
    lists = _Optional([])
    pod, events = await asyncio.gather(
        survey.pod(namespace, name), lists.read("Events", survey.events(namespace, "Pod", name))
    )
    if pod is None and events is None:
        raise AccessError(
            f"no pod {namespace}/{name}; you may not list Events in its namespace, so a deleted pod cannot be shown"
        )
    if pod is None:
        messages = tuple(event_line(event) for event in events or ())
        return PodStory(f"{namespace}/{name}", "is gone", messages=messages) if events else None
    unlisted = ""
    try:
        cards, facts = await (nodes() if nodes else _listed_nodes(api))
    except AccessError as error:  # who has rights in a namespace may still know all but the nodes
        cards, facts, unlisted = ClusterCards(()), {}, str(error)
    # It may be about hundreds of nodes: other readers do not wait for that.
    return await asyncio.to_thread(story, pod, events, cards, facts, unlisted)


async def _listed_nodes(api: ApiServer) -> NodesAndFacts:
    reading = await read_cluster(api)
    return reading.cards, {node.metadata.name: node for node in reading.nodes}


async def read_findings(api: ApiServer, version: str) -> tuple[Sequence[Finding], Reading]:
    """What is wrong with an installation, and what was examined; `version` is of this program."""
    survey, lists = Survey(api), _Optional([])
    reading, sets = await asyncio.gather(
        read_cluster(api), lists.read(DAEMON_SETS, survey.agent_sets())
    )
    by_claims = {"labelSelector": f"{ALLOCATION_API_LABEL}={AllocationApi.DRA}"}
    examined = await asyncio.gather(
        lists.read("Events of nodes", survey.events("default", "Node")),
        lists.read("ValidatingAdmissionPolicies", survey.names(VALIDATING_POLICIES)),
        lists.read("RuntimeClasses", survey.names(RUNTIME_CLASSES)),
        lists.read("Namespaces", survey.names(NAMESPACES, by_claims)),
        # A cluster may be too old for these.
        lists.read_if_served("ResourceClaimTemplates", survey.claim_templates(TEMPLATE)),
        lists.read_if_served("MutatingAdmissionPolicies", survey.names(MUTATING_POLICIES)),
    )
    refused = sorted(lists.refused)
    facts = Installation(
        version, sets or (), reading.nodes, reading.pods, reading.cards, *examined, refused
    )
    return findings(facts), reading


async def read_uses(
    api: ApiServer, prometheus: str | None
) -> tuple[Sequence[slice_use.SliceUse], Sequence[str]]:
    """Every slice with its use, and what could not be asked.

    `prometheus` is `NAMESPACE/SERVICE:PORT`; None asks the agents.
    """
    survey = Survey(api)
    if prometheus:
        return await slice_use.from_prometheus(survey, prometheus), ()
    pods = await survey.pods()
    agents = [pod for pod in pods if pod.agent is not None and pod.spec.node_name]
    if not agents:
        raise ClusterError("no agent runs in this cluster; see `kubectl gpu doctor`")
    return await slice_use.from_agents(survey, agents)


@dataclass(frozen=True, slots=True)
class _Optional:
    """Lists that a person may lack the right to read; `refused` has the kinds of those that were refused."""

    refused: list[str]

    async def read(self, kind: str, reading: Awaitable[_Value]) -> _Value | None:
        """What is read, or None where we lack the right."""
        try:
            return await reading
        except AccessError:
            self.refused.append(kind)
            return None

    async def read_if_served(self, kind: str, reading: Awaitable[_Value]) -> _Value | None:
        """What is read, or None also where the API server has no such kind."""
        try:
            return await self.read(kind, reading)
        except ClusterError:
            return None
