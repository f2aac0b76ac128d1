"""The label by which a Service finds the one pod that serves kube-scheduler."""

from typing import Any

import msgspec

from gpu_device_plugin.cluster.api import MERGE_PATCH, ApiServer, Request
from gpu_device_plugin.cluster.wire import Bare, ListOf
from gpu_device_plugin.errors import ClusterError

LEADER_LABEL = "gpu-device-plugin/leader"
_list = msgspec.json.Decoder(ListOf[Bare])


class LeaderLabel:
    """The label on the pods of one namespace; nothing is done where our own pod has no name."""

    def __init__(self, api: ApiServer, namespace: str, pod_name: str) -> None:
        self._api, self._pod_name = api, pod_name
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def take(self) -> None:
        """Have it on our pod and on no other.

        Raises:
            ClusterError: The API server does not answer, or refuses.
        """
        if not self._pod_name:
            return
        query = {"labelSelector": f"{LEADER_LABEL}=true"}
        answer = await self._api.call(Request("GET", self._pods, query))
        if not answer.is_success:
            raise ClusterError(f"list of {self._pods}: {answer.text}")
        try:
            found = _list.decode(answer.body).items or []
        except msgspec.MsgspecError as error:
            raise ClusterError(f"list of {self._pods}: {error}") from error
        names = {pod.metadata.name for pod in found}
        for name in names - {self._pod_name}:
            await self._patch(name, None)
        if self._pod_name not in names:
            await self._patch(self._pod_name, "true")

    async def give_up(self) -> None:
        """Have it on our pod no more.

        Raises:
            ClusterError: As for `take`.
        """
        if self._pod_name:
            await self._patch(self._pod_name, None)

    async def _patch(self, name: str, value: str | None) -> None:
        body: dict[str, Any] = {"metadata": {"labels": {LEADER_LABEL: value}}}
        request = Request("PATCH", f"{self._pods}/{name}", {}, body, MERGE_PATCH)
        answer = await self._api.call(request)
        if not (answer.is_success or answer.is_not_found):
            raise ClusterError(f"label of pod {name}: {answer.text}")
