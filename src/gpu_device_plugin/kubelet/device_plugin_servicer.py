"""The five calls of a device plugin: protobuf in, domain values through, protobuf out."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc
import structlog

from gpu_device_plugin.domain.grants.call_budget import CALL_SECONDS
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.errors import (
    DoesNotFitError,
    EdgeError,
    GpuPluginError,
    NodeError,
    RefusalError,
    RequestError,
    UnknownPodError,
)
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.device_list import DeviceList

SERVICE_NAME = "v1beta1.DevicePlugin"
PRE_START_DEADLINE_SECONDS = 25.0
"""The kubelet's own is 30."""

_log = structlog.get_logger(__name__)
_Answer = TypeVar("_Answer")

_STATUS: Mapping[type[GpuPluginError], grpc.StatusCode] = {
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    DoesNotFitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnknownPodError: grpc.StatusCode.FAILED_PRECONDITION,
    NodeError: grpc.StatusCode.UNAVAILABLE,
    RefusalError: grpc.StatusCode.FAILED_PRECONDITION,
    EdgeError: grpc.StatusCode.UNAVAILABLE,
    GpuPluginError: grpc.StatusCode.INTERNAL,
}


class DeviceService(Protocol):
    """Answers the kubelet's calls, or raises a GpuPluginError to refuse."""

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Exactly `size` ids out of `available`, those of `must_include` among them."""
        ...

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        """What the container receives for holding `ids`, durable before it returns."""
        ...

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Returns when the container that holds `ids` may start."""
        ...


class StreamWatch:
    """Whether the kubelet listens to one registration's device list."""

    def __init__(self, look: asyncio.Event) -> None:
        self.has_begun = asyncio.Event()
        """Set when a list has been sent, or a stream has ended without one."""
        self.has_listened = False  # whether a list has been sent
        self.open_streams = 0
        self.is_closing = False  # whether we end the streams ourselves
        self._look = look

    @property
    def is_lost(self) -> bool:
        """The kubelet listened and does not any more; it will not call again."""
        return self.has_listened and self.open_streams == 0

    def opened(self) -> None:
        self.open_streams += 1

    def sent(self) -> None:
        self.has_listened = True
        self.has_begun.set()

    def ended(self) -> None:
        self.open_streams -= 1
        self.has_begun.set()
        self._look.set()


@dataclass(eq=False)
class DevicePluginServicer:
    """Answers the kubelet for one resource, over one socket."""

    resource: str
    service: DeviceService
    given_options: pb.DevicePluginOptions
    device_list: DeviceList
    streams: StreamWatch

    def method_table(self) -> grpc.GenericRpcHandler:
        """The calls by name, for a server; lists are sent as encoded bytes."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetDevicePluginOptions": unary(self.options, pb.Empty),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self.list_and_watch, pb.Empty.FromString, None
                ),
                "GetPreferredAllocation": unary(self.prefer, pb.PreferredAllocationRequest),
                "Allocate": unary(self.allocate, pb.AllocateRequest),
                "PreStartContainer": unary(self.pre_start, pb.PreStartContainerRequest),
            },
        )

    async def options(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:
        """Called by the kubelet during Register, so it waits for nothing."""
        return self.given_options

    async def list_and_watch(self, _request: pb.Empty, context: Any) -> None:
        """Send the list now and after every change, until either side ends the stream."""
        self.streams.opened()
        try:
            while self.device_list.is_offered and not self.streams.is_closing:
                changed = self.device_list.changed
                await context.write(self.device_list.message)
                self.streams.sent()
                await changed.wait()
        finally:
            self.streams.ended()

    async def prefer(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """Name the units to give; a refusal here rejects the pod as one in Allocate does."""
        response = pb.PreferredAllocationResponse()
        for asked in request.container_requests:
            chosen = await self._answer(
                context,
                "GetPreferredAllocation",
                self.service.prefer(
                    self.resource,
                    tuple(asked.available_deviceIDs),
                    tuple(asked.must_include_deviceIDs),
                    asked.allocation_size,
                ),
            )
            response.container_responses.add(deviceIDs=chosen)
        return response

    async def allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        response = pb.AllocateResponse()
        for asked in request.container_requests:
            edits = await self._answer(
                context, "Allocate", self.service.allocate(self.resource, tuple(asked.devices_ids))
            )
            response.container_responses.append(_container_response(edits))
        return response

    async def pre_start(
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        await self._answer(
            context,
            "PreStartContainer",
            self.service.pre_start(self.resource, tuple(request.devices_ids)),
            seconds=PRE_START_DEADLINE_SECONDS,
        )
        return pb.PreStartContainerResponse()

    async def _answer(
        self, context: Any, call: str, answer: Awaitable[_Answer], *, seconds: float = CALL_SECONDS
    ) -> _Answer:
        """Return the service's answer, or end the call with the gRPC status of its error."""
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            text = f"{call} of {self.resource}: no answer after {seconds:g} s"
            _log.error("call timed out", call=call, resource=self.resource)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
            raise
        except GpuPluginError as error:
            if not isinstance(error, RefusalError):
                _log.error("call failed", call=call, resource=self.resource, error=str(error))
            await context.abort(status_of(error), str(error))
            raise


def status_of(error: GpuPluginError) -> grpc.StatusCode:
    """The gRPC status of an error, by its nearest class in the table."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def encode(message: Any) -> bytes:
    """A protobuf message in bytes."""
    return bytes(message.SerializeToString())


def unary(method: Any, request: Any) -> grpc.RpcMethodHandler:
    """How a server answers one call by `method`, which takes messages of the type `request`."""
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, encode)


def _container_response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=edits.envs,
        mounts=[
            pb.Mount(
                container_path=m.container_path, host_path=m.host_path, read_only=m.is_read_only
            )
            for m in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(
                container_path=device.container_path,
                host_path=device.host_path,
                permissions=device.permissions,
            )
            for device in edits.devices
        ],
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_names],
        annotations=edits.annotations,
    )
