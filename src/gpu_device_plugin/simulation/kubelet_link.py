"""One plugin as the stand-in kubelet reaches it: dialled once, never again."""

import asyncio
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.simulation.kubelet_pods import Call

_SERVICE = "/v1beta1.DevicePlugin/"
# No size options: like the real client, it takes messages of at most 4 MiB.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class PluginLink:
    """The connection to one registered plugin.

    Attributes:
        resource: What the plugin serves.
        socket: Where it serves.
        options: Its answer to GetDevicePluginOptions; None before, and after a kubelet restart.
        has_list: Whether it has told its devices.
        stopped_at: When the plugin was lost, by the kubelet's clock; None while it is there.
        journal: Every call made, shared with the kubelet.
    """

    def __init__(self, resource: str, socket: Path, journal: list[Call]) -> None:
        self.resource = resource
        self.socket = socket
        self.options: pb.DevicePluginOptions | None = None
        self.has_list = False
        self.stopped_at: float | None = None
        self.journal = journal
        self._channel: Any = None

    async def connect(self, dial_seconds: float) -> None:
        """Dials and asks for the options, all within the plugin's own Register call."""
        self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=_OPTIONS)
        try:
            async with asyncio.timeout(dial_seconds):
                await self._channel.channel_ready()
        except TimeoutError as error:
            await self.close()
            raise KubeletError("failed to dial device plugin: context deadline exceeded") from error
        self.journal.append(Call("GetDevicePluginOptions", self.resource))
        call = self._method("GetDevicePluginOptions", pb.DevicePluginOptions)
        try:
            self.options = await call(pb.Empty())
        except grpc.aio.AioRpcError as error:
            await self.close()
            raise KubeletError(f"failed to get device plugin options: {_text(error)}") from error

    def lists(self) -> Any:
        """Opens ListAndWatch: an async iterator over whole lists."""
        if self._channel is None:
            raise KubeletError(f"endpoint {self.resource} has been stopped")
        stream = self._channel.unary_stream(
            f"{_SERVICE}ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )
        return stream(pb.Empty())

    async def preferred(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> frozenset[str]:
        """The plugin's choice, without any deadline; empty where it does not want to choose."""
        if self.options is None or not self.options.get_preferred_allocation_available:
            return frozenset()
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must_include,
                    allocation_size=size,
                )
            ]
        )
        self.journal.append(
            Call("GetPreferredAllocation", self.resource, available, must_include, size)
        )
        try:
            answer = await self._call(
                "GetPreferredAllocation", request, pb.PreferredAllocationResponse
            )
        except KubeletError as error:
            raise KubeletError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from error
        return frozenset(
            answer.container_responses[0].deviceIDs if answer.container_responses else ()
        )

    async def allocate(self, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Tells the plugin which devices a container gets; one container, no deadline."""
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
        )
        self.journal.append(Call("Allocate", self.resource, ids))
        answer = await self._call("Allocate", request, pb.AllocateResponse)
        if not answer.container_responses:
            raise KubeletError(f"no containers return in allocation response {answer}")
        return answer.container_responses[0]

    async def pre_start(self, ids: tuple[str, ...], seconds: float) -> None:
        """Asks before a container starts, where the plugin wants to be asked."""
        if self.options is None or not self.options.pre_start_required:
            return
        request = pb.PreStartContainerRequest(devices_ids=ids)
        self.journal.append(Call("PreStartContainer", self.resource, ids))
        try:
            await self._call("PreStartContainer", request, pb.PreStartContainerResponse, seconds)
        except KubeletError as error:
            raise KubeletError(
                f"device plugin PreStartContainer rpc failed with err: {error}"
            ) from error

    async def close(self) -> None:
        """Hangs up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _method(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            _SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    async def _call(
        self, name: str, request: Any, answer: Any, seconds: float | None = None
    ) -> Any:
        if self.stopped_at is not None or self._channel is None:
            raise KubeletError(f"endpoint {self.resource} has been stopped")
        try:
            return await self._method(name, answer)(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise KubeletError(_text(error)) from error
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            # Hanging up cancels the calls in flight, not the admission that waits for them.
            raise KubeletError("rpc error: code = Canceled desc = connection closing") from None


def is_being_cancelled() -> bool:
    """Whether the running task itself is to end, and not only a call of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _text(error: grpc.aio.AioRpcError) -> str:
    """A status as Go prints it."""
    code = "".join(word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"
