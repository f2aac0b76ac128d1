"""The agents of one installation and their nodes, as the chart's hooks read and mark them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gpu_device_plugin.cluster.api import MERGE_PATCH, Answer, ApiServer, Request
from gpu_device_plugin.cluster.pod_spec import pod_request
from gpu_device_plugin.cluster.wire import Bare, ListOf, Node, Pod
from gpu_device_plugin.domain.annotations import UNINSTALL_ANNOTATION
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.errors import ClusterError

_PAGE = "500"
_Object = TypeVar("_Object", bound=Bare)


class _ConfigMap(Bare):
    data: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node as its object shows it."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Fleet:
    """One DaemonSet of agents; every method raises ClusterError where the API does not serve it."""

    def __init__(self, api: ApiServer, namespace: str, daemonset: str) -> None:
        self._api = api
        self._namespace = namespace
        self._daemonset = daemonset

    async def installation(self) -> str | None:
        """Uid of the DaemonSet, or None where there is none."""
        path = f"/apis/apps/v1/namespaces/{self._namespace}/daemonsets/{self._daemonset}"
        found = await self._get(path, Bare)
        return found.metadata.uid if found else None

    async def settings_text(self) -> str:
        """The settings file that the agents run with now; empty where there is none."""
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{self._daemonset}"
        found = await self._get(path, _ConfigMap)
        return ((found.data if found else None) or {}).get("config.yaml", "")

    async def agents(self, installation: str) -> Mapping[str, str]:
        """Node -> name of the agent's pod there."""
        found = {}
        async for pod in self._items(f"/api/v1/namespaces/{self._namespace}/pods", ListOf[Pod]):
            if pod.metadata.owner_uid == installation and pod.spec.node_name:
                found[pod.spec.node_name] = pod.metadata.name
        return found

    async def node(self, name: str) -> FleetNode | None:
        """The node, or None where it is gone."""
        found = await self._get(f"/api/v1/nodes/{name}", Node)
        return _shown(found) if found else None

    async def nodes(self) -> tuple[FleetNode, ...]:
        """All nodes of the cluster."""
        return tuple([_shown(node) async for node in self._items("/api/v1/nodes", ListOf[Node])])

    async def mark(self, name: str, installation: str) -> FleetNode | None:
        """Mark the node for the agents of that installation; None where it is gone."""
        body = {"metadata": {"annotations": {UNINSTALL_ANNOTATION: installation}}}
        path = f"/api/v1/nodes/{name}"
        answer = await self._api.call(Request("PATCH", path, {}, body, MERGE_PATCH))
        return None if _is_gone(answer, path) else _shown(_decoded(answer, Node))

    async def requests(self) -> AsyncIterator[tuple[str, PodRequest]]:
        """Node and request of every pod of the cluster that has a node."""
        async for pod in self._items("/api/v1/pods", ListOf[Pod]):
            if pod.spec.node_name:
                yield pod.spec.node_name, pod_request(pod)

    async def _items(self, path: str, kind: type[ListOf[_Object]]) -> AsyncIterator[_Object]:
        """A large cluster's list does not come at once, but page by page."""
        query = {"limit": _PAGE}
        while True:
            answer = await self._api.call(Request("GET", path, query))
            if not answer.is_success:
                raise ClusterError(f"list of {path}: {answer.text}")
            page: ListOf[_Object] = _decoded(answer, kind)
            for item in page.items or ():
                yield item
            if not page.metadata.next_page:
                return
            query = {"limit": _PAGE, "continue": page.metadata.next_page}

    async def _get(self, path: str, kind: type[_Object]) -> _Object | None:
        answer = await self._api.call(Request("GET", path))
        return None if _is_gone(answer, path) else _decoded(answer, kind)


def _is_gone(answer: Answer, path: str) -> bool:
    if answer.status == 404:
        return True
    if not answer.is_success:
        raise ClusterError(f"{path}: {answer.text}")
    return False


def _decoded(answer: Answer, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise ClusterError(f"an answer of the API server cannot be parsed: {error}") from error


def _shown(node: Node) -> FleetNode:
    meta = node.metadata
    return FleetNode(meta.name, meta.labels or {}, meta.annotations or {})
