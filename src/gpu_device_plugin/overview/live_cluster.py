"""The nodes and their cards as the API server's watch tells of them, for as long as someone looks."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.node.pods import PodKey, PodRef
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.reflector import Reflection, Source, listen_by_key
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterPod, NodesAndPods
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedNode, SurveyedPod
from gpu_device_plugin.overview.node_cards import ClusterCards, NodeCards, asking_of, cluster_cards

UNBOUND = ""
"""Stands in place of a node's name for pods that are bound to no node."""


def pods_path(namespace: str) -> str:
    """The list of the pods of a namespace, or ("") of all."""
    return f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"


@dataclass(frozen=True, slots=True, eq=False)
class FollowedPod:
    """A pod that asks this plugin for anything, parsed once."""

    pod: SurveyedPod
    asking: ClusterPod

    @property
    def is_refused(self) -> bool:
        return self.pod.status.reason == "UnexpectedAdmissionError"

    @property
    def is_waiting(self) -> bool:
        return not self.asking.node and self.pod.status.phase == "Pending"


class LiveCluster(NodesAndPods[SurveyedNode, SurveyedPod]):
    """Follows nodes and pods; what cards hold is counted only of nodes that have changed.

    `nodes` has those without cards too; every change sets `changed`. `namespace` leaves out the
    pods of others; "" follows all.
    """

    def __init__(self, api: ApiServer, namespace: str = "") -> None:
        self.nodes: dict[str, SurveyedNode] = {}
        self.changed = asyncio.Event()
        self._pods: dict[str, FollowedPod] = {}
        self._by_node: dict[str, set[str]] = {}
        self._views: dict[str, NodeCards | str | None] = {}
        self._touched: set[str] = set()
        nodes = listen_by_key(
            lambda node: node.metadata.name,
            lambda: self.nodes,
            self._put_node,
            self._drop_node,
            self.changed.set,
        )
        pods = listen_by_key(
            lambda pod: pod.metadata.uid,
            lambda: self._pods,
            self._put_pod,
            self._drop_pod,
            self.changed.set,
        )
        super().__init__(
            Reflection(api, Source("/api/v1/nodes", ""), SurveyedNode, nodes),
            Reflection(api, Source(pods_path(namespace), ""), SurveyedPod, pods),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run_nodes())
            group.create_task(self.run_pods())

    def take_touched(self) -> set[str]:
        """Nodes, and `UNBOUND`, that have changed since the last call."""
        touched, self._touched = self._touched, set()
        self.changed.clear()
        return touched

    def view(self, name: str) -> NodeCards | str | None:
        """A node with its cards; why they cannot be read; None where it publishes none."""
        if name not in self._views:
            self._views[name] = self._count(name)
        return self._views[name]

    def cards(self) -> ClusterCards:
        found = [(name, self.view(name)) for name in sorted(self.nodes)]
        views = tuple(view for _, view in found if isinstance(view, NodeCards))
        unreadable = {name: view for name, view in found if isinstance(view, str)}
        return ClusterCards(views, unreadable)

    def without_card(self) -> Sequence[FollowedPod]:
        """The pods that wait for a node, and then those that a node has refused; each by name."""
        found = (each for each in self._pods.values() if each.is_refused or each.is_waiting)
        return sorted(found, key=lambda each: (each.is_refused, str(each.asking.request.ref)))

    def labels_of(self, pod: PodRef) -> Mapping[str, str]:
        found = self._pods.get(pod.uid)
        return (found.pod.metadata.labels if found else None) or {}

    def nodes_of(self, pods: Collection[PodKey]) -> set[str]:
        asking = [each.asking for each in self._pods.values()]
        return {pod.node for pod in asking if pod.node and pod.request.ref.key in pods}

    def _count(self, name: str) -> NodeCards | str | None:
        node = self.nodes.get(name)
        with_cards = node.with_cards() if node else None
        if with_cards is None:
            return None
        pods = [self._pods[uid].asking for uid in sorted(self._by_node.get(name, ()))]
        found = cluster_cards([with_cards], pods)
        return found.nodes[0] if found.nodes else found.unreadable[name]

    def _touch(self, name: str) -> None:
        self._views.pop(name, None)
        self._touched.add(name)
        self.changed.set()

    def _put_node(self, node: SurveyedNode) -> None:
        self.nodes[node.metadata.name] = node
        self._touch(node.metadata.name)

    def _drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self._touch(name)

    def _put_pod(self, pod: SurveyedPod) -> None:
        """Keep a pod that asks this plugin for anything; one that cannot be parsed holds nothing."""
        uid = pod.metadata.uid
        self._drop_pod(uid)
        asking = asking_of(pod)
        if asking is not None:
            self._pods[uid] = FollowedPod(pod, asking)
            self._by_node.setdefault(asking.node, set()).add(uid)
            self._touch(asking.node)
            self._touch(UNBOUND)

    def _drop_pod(self, uid: str) -> None:
        followed = self._pods.pop(uid, None)
        if followed is not None:
            node = followed.asking.node
            self._by_node[node].discard(uid)
            if not self._by_node[node]:
                del self._by_node[node]
            self._touch(node)
            self._touch(UNBOUND)
