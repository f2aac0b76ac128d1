"""What the kubelet tells of its pods: PodResources and checkpoint, who holds what; the Pods API, what they ask for.

Unlike PodResources the checkpoint has pod UIDs, ordinary init containers and what Allocate answered.
Its checksum is computed over a Go rendering of the data and is not checked here; the kubelet replaces
the file atomically, so a file that can be parsed is whole.
"""

import asyncio
import base64
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import msgspec
import structlog
from google.protobuf.message import DecodeError

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, DeviceNode, Mount
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.node.pods import ListedPod, PodKey, PodRef
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2, pods_pb2
from gpu_device_plugin.kubelet._proto import podresources_pb2 as pb
from gpu_device_plugin.kubelet.plugin_directory import SocketIdentity, socket_identity

DEADLINE_SECONDS = 2.0
"""For one call with its repetitions. Many calls are made while the kubelet waits for us."""

_SERVICE = "/v1.PodResourcesLister/"
_PAUSE_SECONDS = 0.05  # the kubelet allows 100 a second after a burst of 10
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_CLOSED = "Permission denied"
_Containers: TypeAlias = tuple[tuple[str, frozenset[bytes], frozenset[bytes]], ...]
"""Name, devices and claims of each container; the last two encoded."""
_Key: TypeAlias = tuple[str, str, _Containers]
_Known: TypeAlias = dict[_Key, ListedPod]
_Answer: TypeAlias = Sequence[tuple[_Key, ListedPod]]

_PODS_METHOD = "/v1alpha1.Pods/ListPods"
_PODS_DEADLINE_SECONDS = 1.0
_PODS_OPTIONS = (
    # Tenants fill their pods as they like: of more than this nothing is read, and the API server is asked.
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)
_log = structlog.get_logger(__name__)


class PodResources:
    """A client with one connection, made at the first call. Resources of others are left out."""

    def __init__(self, socket: Path, resources: Container[str] = OUR_RESOURCES) -> None:
        self._socket = socket
        self._resources = resources
        self._channel: Any = None
        self._is_served: dict[str, bool] = {}  # by resource, as far as met
        self._known: _Known = {}  # by the last List
        self.listed: frozenset[PodKey] = frozenset()
        """Namespace and name of every pod in the last List."""

    def identity(self) -> SocketIdentity | None:
        """What tells this kubelet's socket from the next one's; None if there is none."""
        return socket_identity(self._socket)

    async def list(self) -> tuple[ListedPod, ...]:
        """Every active pod of the node, by name, including those that hold none of these units.

        Never call it while one of our Allocates is in flight: that can make the kubelet give
        the same unit away twice (kubernetes #137534).
        """
        found: _Answer = await self._ask("List", pb.ListPodResourcesRequest())
        self._known = dict(found)
        self.listed = frozenset(entry.pod.key for _, entry in found)
        return tuple(sorted((entry for _, entry in found), key=lambda entry: entry.pod.key))

    async def get(self, pod: PodRef) -> ListedPod | None:
        """One pod, or None if the kubelet does not know it. May be called at any time."""
        request = pb.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)
        try:
            found: _Answer = await self._ask("Get", request)
        except KubeletError as error:
            if _is_unknown_pod(error.__cause__):
                return None
            raise
        return found[0][1]

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _ask(self, method: str, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_SECONDS
        is_fresh = False
        while True:
            if self._channel is None:
                self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
                is_fresh = True
            channel = self._channel
            call = channel.unary_unary(
                _SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=self._read,
            )
            try:
                return await call(request, timeout=max(0.001, deadline - loop.time()))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    # The kubelet restarted. A channel that failed repeats its failure for a while
                    # without trying, so the next call takes a new one.
                    await self._hang_up(channel)
                    is_final = is_fresh
                else:
                    is_final = error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
                if is_final or loop.time() + _PAUSE_SECONDS > deadline:
                    raise KubeletError(self._explain(method, error)) from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _hang_up(self, channel: Any) -> None:
        if self._channel is channel:
            self._channel = None
            await channel.close(DEADLINE_SECONDS)  # other calls may be in progress on it

    def _read(self, answer: bytes) -> _Answer:
        """The pods of an answer; what one held at the last List is not read again."""
        if self._is_served != {name: name in self._resources for name in self._is_served}:
            self._is_served, self._known = {}, {}  # a configuration has brought more
        found = []
        for pod in pb.RawPods.FromString(answer).pod_resources:
            containers = tuple(
                (each.name, frozenset(each.devices[:]), frozenset(each.dynamic_resources[:]))
                for each in pod.containers
            )
            key = pod.namespace, pod.name, containers
            found.append((key, self._known.get(key) or self._listed_pod(*key)))
        return found

    def _listed_pod(self, namespace: str, name: str, containers: _Containers) -> ListedPod:
        held: dict[str, Mapping[str, frozenset[str]]] = {}
        drivers = set[str]()
        for container, encoded, claims in containers:
            # A resource stands there once per unit, and once more per NUMA node.
            ids: dict[str, list[str]] = {}
            for devices in map(pb.ContainerDevices.FromString, encoded):
                resource = devices.resource_name
                if resource not in self._is_served:
                    self._is_served[resource] = resource in self._resources
                if self._is_served[resource]:
                    ids.setdefault(resource, []).extend(devices.device_ids)
            held[container] = {resource: frozenset(each) for resource, each in ids.items()}
            for claim in map(pb.DynamicResource.FromString, claims):
                drivers.update(device.driver_name for device in claim.claim_resources)
        return ListedPod(PodRef(namespace, name), held, frozenset(drivers))

    def _explain(self, method: str, error: grpc.aio.AioRpcError) -> str:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"this kubelet has no PodResources {method}: it is older than 1.34,"
                " or its feature gate KubeletPodResourcesGet is off"
            )
        return f"PodResources {method} on {self._socket}: {rpc_words(error, DEADLINE_SECONDS)}"


def _is_unknown_pod(cause: BaseException | None) -> bool:
    """The kubelet has no status code for it, only this text."""
    return (
        isinstance(cause, grpc.aio.AioRpcError)
        and cause.code() in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND}
        and "not found" in (cause.details() or "")
    )


def rpc_words(error: grpc.aio.AioRpcError, deadline_seconds: float) -> str:
    """What the kubelet said, or that it said nothing: gRPC's own words tell of addresses."""
    if error.code() is grpc.StatusCode.UNAVAILABLE and _CLOSED in str(error.details()):
        return "the socket is closed to this user; run as root"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "nothing answers there; the kubelet is not running, or is starting"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {deadline_seconds:g} s"
    return str(error.details() or error.code().name)


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
                answer = await call(pods_pb2.ListPodsRequest(), timeout=_PODS_DEADLINE_SECONDS)
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


FILE_NAME = "kubelet_internal_checkpoint"


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: str | None = None


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data


_DECODER = msgspec.json.Decoder(_File)


def read_checkpoint(
    path: Path, resources: Container[str] = OUR_RESOURCES
) -> tuple[CheckpointEntry, ...] | None:
    """The entries of these resources; None without a file, as before the first allocation.

    What has not changed is not parsed again, so `resources` must not change either.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeletError(f"cannot read {path}: {error.strerror}") from error
    return parse_checkpoint(content, resources, str(path))  # type: ignore[arg-type]  # it has a hash


@lru_cache(maxsize=1)  # nearly always the kubelet has written nothing since the last pass
def parse_checkpoint(
    content: bytes, resources: Container[str] = OUR_RESOURCES, name: str = FILE_NAME
) -> tuple[CheckpointEntry, ...]:
    """The entries of our resources in a checkpoint's text; KubeletError if it has not that form."""
    try:
        entries = _DECODER.decode(content).data.pod_device_entries or ()
        return tuple(
            CheckpointEntry(
                pod_uid=entry.pod_uid,
                container=entry.container_name,
                resource=entry.resource_name,
                ids=frozenset(i for ids in (entry.device_ids or {}).values() for i in ids or ()),
                edits=_edits(entry.alloc_resp),
            )
            for entry in entries
            if entry.resource_name in resources
        )
    except (ValueError, RecursionError, DecodeError) as error:
        raise KubeletError(f"{name} is no checkpoint of a kubelet: {error}") from error


# Every reconcile pass reads the answers of all containers, and few of them are new.
@lru_cache(maxsize=1024)
def _edits(answer: str | None) -> ContainerEdits:
    encoded = base64.b64decode(answer or "", validate=True)
    message = deviceplugin_pb2.ContainerAllocateResponse.FromString(encoded)
    envs: Mapping[str, str] = dict(message.envs)
    return ContainerEdits(
        envs=envs,
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in message.mounts),
        devices=tuple(
            DeviceNode(d.container_path, d.host_path, d.permissions) for d in message.devices
        ),
        cdi_names=tuple(d.name for d in message.cdi_devices),
    )
