"""The label by which a Service finds the one pod that serves kube-scheduler."""

from typing import Any

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import list_items
from gpu_device_plugin.kubernetes.client.wire import Bare

LEADER_LABEL = "gpu-device-plugin/leader"


class LeaderLabel:
    """The label on the pods of one namespace; nothing is done where our own pod has no name."""

    def __init__(self, api: ApiServer, namespace: str, pod_name: str) -> None:
        self._api, self._pod_name = api, pod_name
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def take(self) -> None:
        """Have it on our pod and on no other."""
        if not self._pod_name:
            return
        query = {"labelSelector": f"{LEADER_LABEL}=true"}
        pods = list_items(self._api, self._pods, Bare, query)
        names = {pod.metadata.name async for pod in pods}
        for name in names - {self._pod_name}:
            await self._patch(name, None)
        if self._pod_name not in names:
            await self._patch(self._pod_name, "true")

    async def give_up(self) -> None:
        if self._pod_name:
            await self._patch(self._pod_name, None)

    async def _patch(self, name: str, value: str | None) -> None:
        body: dict[str, Any] = {"metadata": {"labels": {LEADER_LABEL: value}}}
        answer = await self._api.call(Request("PATCH", f"{self._pods}/{name}", body=body))
        if not (answer.is_success or answer.is_not_found):
            raise ClusterError(f"label of pod {name}: {answer.text}")
