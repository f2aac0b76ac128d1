"""The agents of one installation and their nodes, as the chart's hooks read and mark them."""

from collections.abc import AsyncIterator, Mapping

from gpu_device_plugin.domain.grants.node_annotations import UNINSTALL_ANNOTATION
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import (
    check_answer,
    decode_answer,
    list_items,
    read_object,
)
from gpu_device_plugin.kubernetes.client.wire import Bare, ConfigMap, Node, Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request


class Fleet:
    """One DaemonSet of agents; every method raises ClusterError where the API does not serve it."""

    def __init__(self, api: ApiServer, namespace: str, daemonset: str) -> None:
        self.api = api
        self._namespace = namespace
        self._daemonset = daemonset
        self._path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{daemonset}"

    def __str__(self) -> str:
        return f"{self._namespace}/{self._daemonset}"

    async def installation(self) -> str | None:
        """Uid of the DaemonSet, or None where there is none."""
        found = await read_object(self.api, self._path, Bare)
        return found.metadata.uid if found else None

    async def release(self) -> str:
        """Version that the DaemonSet's labels name; empty where there is none, or they do not."""
        found = await read_object(self.api, self._path, Bare)
        return found.labels.get("app.kubernetes.io/version", "") if found else ""

    async def settings_text(self) -> str:
        """The settings file that the agents run with now; empty where there is none."""
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{self._daemonset}"
        found = await read_object(self.api, path, ConfigMap)
        return ((found.data if found else None) or {}).get("config.yaml", "")

    async def agents(self, installation: str) -> Mapping[str, str]:
        found = {}
        async for pod in list_items(self.api, f"/api/v1/namespaces/{self._namespace}/pods", Pod):
            if pod.metadata.owner_uid == installation and pod.spec.node_name:
                found[pod.spec.node_name] = pod.metadata.name
        return found

    async def node(self, name: str) -> Node | None:
        """The node, or None where it is gone."""
        return await read_object(self.api, f"/api/v1/nodes/{name}", Node)

    async def nodes(self) -> tuple[Node, ...]:
        return tuple([node async for node in list_items(self.api, "/api/v1/nodes", Node)])

    async def mark(self, name: str, installation: str) -> Node | None:
        """Mark the node for the agents of that installation; None where it is gone."""
        return await self.change(name, {}, {UNINSTALL_ANNOTATION: installation})

    async def change(
        self, name: str, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> Node | None:
        """Set these of the node, or remove those whose value is None; None where it is gone."""
        body = {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}
        path = f"/api/v1/nodes/{name}"
        answer = await self.api.call(Request("PATCH", path, body=body))
        if answer.is_not_found:
            return None
        return decode_answer(check_answer(answer, path), Node)

    async def requests(self) -> AsyncIterator[tuple[str, PodRequest]]:
        """Node and request, by its limits, of every pod of the cluster that has a node.

        Of a pod that cannot be read only who it is: no tenant's text may keep the others from being read.
        """
        async for pod in list_items(self.api, "/api/v1/pods", Pod):
            if pod.spec.node_name:
                meta = pod.metadata
                try:
                    found = pod_request(pod)
                except ClusterError:
                    ref = PodRef(meta.namespace, meta.name, meta.uid)
                    found = PodRequest(ref, (), is_finished=pod.status.is_over)
                yield pod.spec.node_name, found
