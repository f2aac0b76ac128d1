"""The kubelet's PodResources: which pod holds which units."""

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from gpu_device_plugin.domain.grants.call_budget import LIST_SECONDS
from gpu_device_plugin.domain.node.pods import ListedPod, PodKey, PodRef
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import podresources_pb2 as pb
from gpu_device_plugin.kubelet.unix_sockets import SocketIdentity, socket_identity

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

    async def served(self) -> frozenset[str]:
        """Every resource, also of others, of which a plugin that is connected now has healthy devices."""
        request, answer = pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        found = await self._ask("GetAllocatableResources", request, answer.FromString)
        return frozenset(each.resource_name for each in found.devices if each.device_ids)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _ask(
        self, method: str, request: Any, read: Callable[[bytes], Any] | None = None
    ) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LIST_SECONDS
        is_fresh = False
        while True:
            if self._channel is None:
                self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
                is_fresh = True
            channel = self._channel
            call = channel.unary_unary(
                _SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=read or self._read,
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
            await channel.close(LIST_SECONDS)  # other calls may be in progress on it

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
        if method == "Get" and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"this kubelet has no PodResources {method}: it is older than 1.34,"
                " or its feature gate KubeletPodResourcesGet is off"
            )
        return f"PodResources {method} on {self._socket}: {rpc_words(error, LIST_SECONDS)}"


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
