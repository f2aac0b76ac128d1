"""The stand-in kubelet's registration server and the links it makes.

One slot for each resource name, as in kubelets up to 1.36.2: the plugin that registers last
takes the slot, and when an older stream of the same name ends, the newer one is
disconnected with it. With `keys_by_socket` links are told apart by socket, as later
kubelets do (kubernetes #135437).
"""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.simulation.kubelet_book import Book
from gpu_device_plugin.simulation.kubelet_link import PluginLink, is_being_cancelled
from gpu_device_plugin.simulation.kubelet_pods import Call, KubeletFaults, KubeletTimes

SOCKET_NAME = "kubelet.sock"
CHECKPOINT_NAME = "kubelet_internal_checkpoint"
_VERSION = "v1beta1"
_NAME = re.compile(r"^(?!requests\.)(?!kubernetes\.io/)[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][\w.-]*$")


class PluginRegistry:
    """Which plugins serve which resource, and the book their lists go into.

    Attributes:
        links: Resource -> the plugin that is asked for it.
        journal: Every call made to a plugin.
        faults: Faults of the next registrations.
    """

    def __init__(self, directory: Path, clock: Callable[[], float], times: KubeletTimes) -> None:
        self.directory = directory
        self.links: dict[str, PluginLink] = {}
        self.journal: list[Call] = []
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
        self.links = {name: self._stopped_link(name) for name in book.healthy}
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)  # its plugin may be faster
        register = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),)
        )
        self._server.add_insecure_port(f"unix:{self.directory / SOCKET_NAME}")
        await self._server.start()

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

    def _stopped_link(self, resource: str) -> PluginLink:
        link = PluginLink(resource, self.directory, self.journal)
        link.stopped_at = self._clock()
        return link
