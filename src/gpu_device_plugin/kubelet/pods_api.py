"""The kubelet's Pods API, from 1.37 on: what the node's pods ask for."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import structlog

from gpu_device_plugin.domain.grants.call_budget import KUBELET_PODS_SECONDS
from gpu_device_plugin.domain.node.pods import PodKey
from gpu_device_plugin.kubelet._proto import pods_pb2

_log = structlog.get_logger(__name__)

_PODS_METHOD = "/v1alpha1.Pods/ListPods"
_PODS_OPTIONS = (
    # Tenants fill their pods as they like: of more than this nothing is read, and the API server is asked.
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)


class PodsApi:
    """Asks at a socket that only kubelets of 1.37 and later have."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._list: asyncio.Task[Mapping[PodKey, Any]] | None = None

    async def find(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """A pod as in the API server's JSON, with what we read of it; None where this kubelet does not tell.

        Calls at the same time share one list: the kubelet allows 100 a second after a burst of 10.
        """
        if not self._socket.exists():
            return None
        if self._list is None or self._list.done():
            self._list = asyncio.create_task(self._listed())
        pod = (await asyncio.shield(self._list)).get((namespace, name))
        return None if pod is None else _as_json(pod)

    async def _listed(self) -> Mapping[PodKey, Any]:
        async with grpc.aio.insecure_channel(
            f"unix:{self._socket}", options=_PODS_OPTIONS
        ) as channel:
            call = channel.unary_unary(
                _PODS_METHOD,
                request_serializer=pods_pb2.ListPodsRequest.SerializeToString,
                response_deserializer=pods_pb2.ListPodsResponse.FromString,
            )
            try:
                answer = await call(pods_pb2.ListPodsRequest(), timeout=KUBELET_PODS_SECONDS)
            except grpc.aio.AioRpcError as error:
                _log.info("the kubelet's Pods API does not answer", error=error.details())
                return {}
        return {(pod.metadata.namespace, pod.metadata.name): pod for pod in answer.pods}


def _as_json(pod: Any) -> Mapping[str, Any]:
    """Converted by hand, because protobuf's own converter takes 2 MiB of memory."""
    meta, spec = pod.metadata, pod.spec
    owners = [
        {"uid": each.uid, "kind": each.kind, "name": each.name, "controller": each.controller}
        for each in meta.owner_references
    ]
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "labels": dict(meta.labels),
            "annotations": dict(meta.annotations),
            "ownerReferences": owners,
        },
        "spec": {
            "nodeName": spec.node_name,
            "runtimeClassName": spec.runtime_class_name,
            "containers": [_container(each) for each in spec.containers],
            "initContainers": [_container(each) for each in spec.init_containers],
        },
        "status": {"phase": pod.status.phase},
    }


def _container(container: Any) -> Mapping[str, Any]:
    resources = container.resources
    return {
        "name": container.name,
        "env": [{"name": each.name, "value": each.value} for each in container.env],
        "restartPolicy": container.restart_policy,
        "resources": {
            "limits": {name: each.string for name, each in resources.limits.items()},
            "claims": [{"name": each.name} for each in resources.claims],
        },
    }
