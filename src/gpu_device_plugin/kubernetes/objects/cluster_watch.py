"""All nodes and pods of a cluster, as far as our cards are concerned."""

import asyncio
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from gpu_device_plugin.domain.fractions.processors import Processors
from gpu_device_plugin.domain.grants.holdings_annotation import HOLDINGS_ANNOTATION
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.models.model_catalogue import SERIES_ANNOTATION
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import list_items, read_object
from gpu_device_plugin.kubernetes.client.reflector import (
    UNFINISHED,
    ObjectListener,
    Reflection,
    Source,
    listen_by_key,
)
from gpu_device_plugin.kubernetes.client.wire import Bare, Node, Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import scheduled_request
from gpu_device_plugin.kubernetes.objects.pod_watch import pod_path
from gpu_device_plugin.kubernetes.objects.quantity import milli

NodeItem = TypeVar("NodeItem", bound=Bare)
PodItem = TypeVar("PodItem", bound=Bare)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node with cards."""

    name: str
    cards: str
    labels: Mapping[str, str]
    series: str | None = None  # the series that we wrote as a label of it, or None
    holdings: str = ""  # its annotation of what pods hold; empty where it has none
    marks: tuple[str, ...] = ()  # as those of `SurveyedNode`, which alone tells them


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod that asks for any of our resources.

    Attributes:
        node: Where it is bound, or "".
        devices: Resource -> how many whole devices it asks for; only `SurveyedPod` tells them.
        nominated: Where kube-scheduler makes room for it, or "".
    """

    request: PodRequest
    node: str
    annotations: Mapping[str, str]
    resource_version: str
    devices: Mapping[str, int] = field(default_factory=dict)
    nominated: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """Callbacks for changes; a node or pod that is gone is passed as None."""

    node: Callable[[str, ClusterNode | None], None]
    pod: Callable[[PodRef, ClusterPod | None], None]


@dataclass(slots=True)
class _News:
    """What the watch tells of a pod while it is being read."""

    readers: int = 0
    newest: float = -1  # newest version that the watch told; infinite where it was no number


class NodesAndPods(Generic[NodeItem, PodItem]):
    """The lists of all nodes and of pods, as `run_nodes` and `run_pods` follow them."""

    def __init__(self, nodes: Reflection[NodeItem], pods: Reflection[PodItem]) -> None:
        self._node_list, self._pod_list = nodes, pods
        self.run_nodes, self.run_pods = nodes.run, pods.run

    @property
    def is_synced(self) -> bool:
        """Whether nodes and pods were both listed since the start."""
        return self._node_list.is_synced and self._pod_list.is_synced

    @property
    def trouble(self) -> str:
        """Why the view is not current; empty if it is."""
        return self._node_list.trouble or self._pod_list.trouble

    @property
    def news_seconds(self) -> float:
        """How long ago the last event or bookmark came, of the list that has been silent for longer."""
        return max(self._node_list.news_seconds, self._pod_list.news_seconds)

    @property
    def doubt(self) -> tuple[str, float]:
        """Why the view may be out of date, in words for people, and by how many seconds; or ("", 0)."""
        if (
            self.is_synced
            and not self.trouble
            and (self._node_list.is_silent or self._pod_list.is_silent)
        ):
            return "a watch of the API server is silent", self.news_seconds
        return self.trouble, self.trouble_seconds

    @property
    def trouble_seconds(self) -> float:
        """For how long the view has not been current."""
        return max(self._node_list.trouble_seconds, self._pod_list.trouble_seconds)


class ClusterWatch(NodesAndPods[Node, Pod]):
    """Follows every node and pod; keeps only what it needs to report their end."""

    def __init__(
        self, api: ApiServer, changes: Changes, processors: Processors | None = None
    ) -> None:
        self._changes = changes
        self._processors = processors or Processors()
        self._nodes: set[str] = set()
        self._pods: dict[str, PodRef] = {}
        # What a GET told before the watch: uid -> version, and the uids since a list was asked for.
        self._learned: dict[str, int] = {}
        self._since_list: set[str] = set()
        self._news: dict[str, _News] = {}
        nodes = listen_by_key(
            lambda node: node.metadata.name, lambda: self._nodes, self._put_node, self._drop_node
        )
        pods = ObjectListener(
            self._replace_pods, self._put_pod, self._remove_pod, self._since_list.clear
        )
        super().__init__(
            Reflection(api, Source("/api/v1/nodes", ""), Node, nodes),
            Reflection(api, Source("/api/v1/pods", UNFINISHED), Pod, pods),
        )

    async def catch_up(self) -> None:
        """Read the cluster as it is now, past every cache."""
        await asyncio.gather(self._node_list.relist(), self._pod_list.relist())

    async def read(self, api: ApiServer, ref: PodRef, deadline_seconds: float) -> ClusterPod | None:
        """The pod by one GET of `api`, or None where it is gone; the ledger learns of it before the watch.

        An answer that is older than what the watch has told meanwhile changes nothing.

        Raises:
            ClusterError: The API server does not answer, or the pod asks for what is no quantity.
        """
        news = self._news.setdefault(ref.uid, _News())
        news.readers += 1
        try:
            found = await read_object(api, pod_path(ref), Pod, deadline_seconds)
        finally:
            news.readers -= 1
            if not news.readers:
                del self._news[ref.uid]
        if found is None or found.metadata.uid != ref.uid:
            self.learn(ref, None)
            return None
        pod = _understood(found)
        if _number(pod.resource_version) >= news.newest:
            self.learn(ref, pod)
        return pod

    def learn(self, ref: PodRef, pod: ClusterPod | None) -> None:
        """A GET has shown a pod, or (None) that it is gone; the watch may be behind.

        What the watch tells of it from before is passed over from now on.
        """
        if pod is None or pod.request.is_finished or not pod.request.asks:
            self._drop_pod(ref.uid)
            self._changes.pod(ref, None)
            return
        self._processors.put(ref.uid, pod.node, pod.request.cpu_milli)
        self._learned[ref.uid] = _number(pod.resource_version)
        self._since_list.add(ref.uid)
        self._pods[ref.uid] = ref
        self._changes.pod(ref, pod)

    def _put_node(self, node: Node) -> None:
        name, annotations = node.metadata.name, node.annotations
        cards, series = annotations.get(CARDS_ANNOTATION), annotations.get(SERIES_ANNOTATION)
        if cards is None:
            self._drop_node(name)
            return
        self._nodes.add(name)
        self._processors.node_changed(name, _allocatable_milli(node))
        holdings = annotations.get(HOLDINGS_ANNOTATION, "")
        labels = node.labels
        self._changes.node(name, ClusterNode(name, cards, labels, series, holdings))

    def _drop_node(self, name: str) -> None:
        if name in self._nodes:
            self._nodes.discard(name)
            self._processors.node_changed(name, None)
            self._changes.node(name, None)

    def _replace_pods(self, pods: Sequence[Pod]) -> Iterator[None]:
        listed = set()
        for pod in pods:
            listed.add(pod.metadata.uid)
            self._put_pod(pod)
            yield
        # A pod that was learned of while the list was under way may be missing there and alive.
        listed |= self._since_list
        for uid in self._pods.keys() - listed:
            self._note(uid, "")
            self._drop_pod(uid)
        self._processors.keep(listed)

    def _note(self, uid: str, version: str) -> None:
        """Keep which version the watch told of a pod that is being read."""
        if uid in self._news:
            news = self._news[uid]
            news.newest = max(news.newest, _number(version) or math.inf)

    def _put_pod(self, pod: Pod) -> None:
        self._note(pod.metadata.uid, pod.metadata.resource_version)
        if _number(pod.metadata.resource_version) < self._learned.get(pod.metadata.uid, 0):
            return
        self._learned.pop(pod.metadata.uid, None)
        try:
            found = _understood(pod)
        except ClusterError as error:
            meta = pod.metadata
            _log.info("pod not understood", pod=f"{meta.namespace}/{meta.name}", error=str(error))
            self._drop_pod(pod.metadata.uid)
            return
        if found.request.is_finished:
            self._drop_pod(pod.metadata.uid)
            return
        self._processors.put(pod.metadata.uid, found.node, found.request.cpu_milli)
        if not found.request.asks:
            self._drop_slice(pod.metadata.uid)
            return
        self._pods[pod.metadata.uid] = found.request.ref
        self._changes.pod(found.request.ref, found)

    def _remove_pod(self, pod: Pod) -> None:
        self._note(pod.metadata.uid, pod.metadata.resource_version)
        self._drop_pod(pod.metadata.uid)

    def _drop_pod(self, uid: str) -> None:
        self._learned.pop(uid, None)
        self._processors.drop(uid)
        self._drop_slice(uid)

    def _drop_slice(self, uid: str) -> None:
        ref = self._pods.pop(uid, None)
        if ref is not None:
            self._changes.pod(ref, None)


async def unbound_pods(api: ApiServer) -> Collection[str]:
    """Uids of the pods without a node, by a list past every cache."""
    items = list_items(api, "/api/v1/pods", Bare, {"fieldSelector": "spec.nodeName="})
    return {pod.metadata.uid async for pod in items}


def _number(version: str) -> int:
    """Versions of one resource are comparable numbers (Kubernetes says so since 1.35)."""
    return int(version) if version.isascii() and version.isdecimal() else 0


def _allocatable_milli(node: Node) -> int | None:
    amount = (node.status.allocatable or {}).get("cpu")
    try:
        return None if amount is None else milli(str(amount))
    except ClusterError as error:
        _log.info("processor not understood", node=node.metadata.name, error=str(error))
        return None


def _understood(pod: Pod) -> ClusterPod:
    """The pod, with what it asks for of our resources."""
    return ClusterPod(
        scheduled_request(pod),
        # One string a node, and not one a pod.
        sys.intern(pod.spec.node_name),
        pod.annotations,
        pod.metadata.resource_version,
        nominated=sys.intern(pod.status.nominated_node),
    )
