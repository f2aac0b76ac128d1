"""The stand-in kubelet's registration server and the links it makes.

One slot for each resource name, as in kubelets up to 1.36.3: the plugin that registers last
takes the slot, and when an older stream of the same name ends, the newer one is
disconnected with it. With `keys_by_socket` links are told apart by socket, as later
kubelets do (kubernetes #135437).

One plugin as the stand-in kubelet reaches it: dialled once, never again.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from tools.harness.kubelet_book import Book
from tools.harness.kubelet_pods import KubeletFaults, KubeletTimes, PluginCall

_SERVICE = "/v1beta1.DevicePlugin/"
# No size options: like the real client, it takes messages of at most 4 MiB.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class PluginLink:
    """The connection to one plugin; `options` is None before it answers, `stopped_at` while it is there."""

    def __init__(self, resource: str, socket: Path, journal: list[PluginCall]) -> None:
        self.resource = resource
        self.socket = socket
        self.options: pb.DevicePluginOptions | None = None
        self.registered_options: pb.DevicePluginOptions | None = None  # which a kubelet never reads
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
        self.journal.append(PluginCall("GetDevicePluginOptions", self.resource))
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

    async def ask_preferred(
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
            PluginCall("GetPreferredAllocation", self.resource, available, must_include, size)
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
        self.journal.append(PluginCall("Allocate", self.resource, ids))
        answer = await self._call("Allocate", request, pb.AllocateResponse)
        if not answer.container_responses:
            raise KubeletError(f"no containers return in allocation response {answer}")
        return answer.container_responses[0]

    async def pre_start(self, ids: tuple[str, ...], seconds: float) -> None:
        """Asks before a container starts, where the plugin wants to be asked."""
        if self.options is None or not self.options.pre_start_required:
            return
        request = pb.PreStartContainerRequest(devices_ids=ids)
        self.journal.append(PluginCall("PreStartContainer", self.resource, ids))
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


async def serve(socket: Path, service: str, calls: Mapping[str, tuple[Any, Any]]) -> Any:
    """A server of the kubelet's on a socket; by call what answers it and the type of its requests."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            answer, request.FromString, lambda message: message.SerializeToString()
        )
        for name, (answer, request) in calls.items()
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


SOCKET_NAME = "kubelet.sock"
CHECKPOINT_NAME = "kubelet_internal_checkpoint"
_VERSION = "v1beta1"
_NAME = re.compile(r"^(?!requests\.)(?!kubernetes\.io/)[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][\w.-]*$")


class PluginRegistry:
    """Which plugin serves which resource, and the book that their lists go into."""

    def __init__(self, directory: Path, clock: Callable[[], float], times: KubeletTimes) -> None:
        self.directory = directory
        self.links: dict[str, PluginLink] = {}
        self.journal: list[PluginCall] = []
        self.faults = KubeletFaults()
        self.keys_by_socket = False
        self.book = Book()
        self._clock = clock
        self._times = times
        self._slots: dict[str, PluginLink] = {}
        self._open: list[PluginLink] = []
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order, so that a seed decides all
        self._server: Any = None

    async def start(self, book: Book) -> None:
        """Removes every socket of the directory, then listens: the order of a kubelet's start."""
        self.book = book
        self.links = {name: PluginLink(name, self.directory, self.journal) for name in book.healthy}
        for link in self.links.values():
            link.stopped_at = self._clock()
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)  # its plugin may be faster
        calls = {"Register": (self._register, pb.RegisterRequest)}
        self._server = await serve(self.directory / SOCKET_NAME, "v1beta1.Registration", calls)

    async def stop(self) -> None:
        """Dies: every stream breaks without a reason."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._open:
            await link.close()
        self._open.clear()
        self._slots.clear()

    def is_expired(self, resource: str) -> bool:
        """Whether the plugin has been gone for longer than the grace period."""
        link = self.links.get(resource)
        if link is None:
            return True
        lost_at = link.stopped_at
        return lost_at is not None and self._clock() - lost_at > self._times.stop_grace

    def save(self) -> None:
        """Writes the checkpoint."""
        if self.directory.is_dir():
            self.book.write(self.directory / CHECKPOINT_NAME)

    async def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        try:
            link = await self._connect(request)
        except KubeletError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
            raise
        task = asyncio.create_task(self._read_lists(link))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return pb.Empty()

    async def _connect(self, request: pb.RegisterRequest) -> PluginLink:
        if self.faults.register_errors:
            raise KubeletError(self.faults.register_errors.pop(0))
        resource = request.resource_name
        if request.version != _VERSION:
            raise KubeletError(
                f'requested API version "{request.version}" is not supported by kubelet.'
                f' Supported version is ["{_VERSION}"]'
            )
        if not _NAME.match(resource):
            raise KubeletError(f'the ResourceName "{resource}" is invalid')
        link = PluginLink(resource, self.directory / request.endpoint, self.journal)
        link.registered_options = request.options
        slot = str(link.socket) if self.keys_by_socket else resource
        self._slots[slot] = link  # the older link is not closed, only forgotten
        self._open.append(link)
        try:
            await link.connect(self._times.dial)
        except KubeletError:
            self._slots.pop(slot, None)
            raise
        self.links[resource] = link
        return link

    async def _read_lists(self, link: PluginLink) -> None:
        """Reads lists until the stream ends; then the holder of the slot is cut off."""
        if self.faults.unopened_lists > 0:
            self.faults.unopened_lists -= 1
            return
        try:
            async for message in link.lists():
                self.book.replace_list(link.resource, message.devices)
                link.has_list = True
                self.save()
        except (KubeletError, grpc.aio.AioRpcError):
            pass
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
        slot = str(link.socket) if self.keys_by_socket else link.resource
        holder = self._slots.pop(slot, None)
        if holder is None:
            return
        await holder.close()
        # With several links of one resource, only the one that is asked takes the devices along.
        if self.links.get(link.resource) is holder:
            holder.stopped_at = self._clock()
            self.book.mark_unhealthy(link.resource)
