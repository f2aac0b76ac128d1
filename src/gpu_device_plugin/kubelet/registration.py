"""One resource's socket, served and registered, and registered again after a kubelet restart.

    WITHDRAWN -> publish -> UNREGISTERED -> Register -> REGISTERED -> list sent -> SERVING
                                 ^--- stream ended, kubelet restarted, socket wiped ---'

The kubelet never dials a plugin twice. So whatever ends the stream of device lists, the
endpoint has to register again. It closes the old server before the next Register, because on
kubelets up to 1.36.2 the end of an old stream also ends the new one.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import grpc
import structlog

from gpu_device_plugin.domain.node.state import DeviceGroup
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.device_list import DeviceList
from gpu_device_plugin.kubelet.device_plugin_servicer import (
    DevicePluginServicer,
    DeviceService,
    StreamWatch,
)
from gpu_device_plugin.kubelet.plugin_directory import PluginDirectory
from gpu_device_plugin.kubelet.podresources import rpc_words
from gpu_device_plugin.kubelet.unix_sockets import SocketIdentity, is_socket, listen

FIRST_LIST_SECONDS = 5.0
"""Register succeeds even if the kubelet then fails to open the list, which it only logs."""
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 8.0
STEADY_SECONDS = 10.0
"""After a registration that lasted this long, the next failure is retried fast again."""
SELDOM_SECONDS = 30.0
"""How often an endpoint checks its registration without a change in the directory."""
CLOSE_SECONDS = 1.0
"""How long a call in flight may still answer when a server closes."""

API_VERSION = "v1beta1"
REGISTER_SECONDS = 15.0
"""More than the 10 s after which the kubelet stops dialling us, to get its own error text."""

_REGISTER = "/v1beta1.Registration/Register"
# Without its own subchannel pool, a channel to a kubelet that was away inherits the backoff
# that gRPC keeps for the address, up to two minutes.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
_SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a preference request names every free unit
    ("grpc.so_reuseport", 0),
)
_log = structlog.get_logger(__name__)


class EndpointPhase(Enum):
    """How far a resource's registration with the kubelet has come."""

    WITHDRAWN = "withdrawn"
    UNREGISTERED = "unregistered"
    REGISTERED = "registered"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What /readyz shows of one resource."""

    resource: str
    phase: EndpointPhase
    detail: str  # why it is not further; empty when serving
    registrations: int  # how often the kubelet has accepted it so far


@dataclass(eq=False)
class Endpoint:
    """Serves one resource to the kubelet for as long as `run` runs.

    Where it checks no start, containers that hold the resource start again while the agent is away.
    """

    resource: str
    service: DeviceService
    directory: PluginDirectory
    checks_start: bool = True
    on_change: Callable[[EndpointState], None] = lambda _state: None

    def __post_init__(self) -> None:
        self._list = DeviceList()
        self._look = asyncio.Event()
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._server: Any = None
        self._streams = StreamWatch(self._look)
        self._socket: Path | None = None
        self.state = EndpointState(self.resource, EndpointPhase.WITHDRAWN, "nothing offered yet", 0)
        self.directory.subscribe(self._look)

    @property
    def is_ready(self) -> bool:
        return self.state.phase is EndpointPhase.SERVING

    def publish(self, groups: Sequence[DeviceGroup]) -> bool:
        """Offer `groups` from now on. A change is sent at once; False if there is none."""
        is_change = self._list.publish(groups)
        self._look.set()
        return is_change

    def withdraw(self) -> None:
        """End the list, so that nothing more is given away; `publish` starts again.

        The kubelet then shows allocatable 0, and the old capacity for five minutes.
        """
        self._list.withdraw()
        self._look.set()

    def send_again(self) -> None:
        """Send the same list once more, which makes the kubelet write its checkpoint again.

        It writes it with each list, and otherwise only when it gives units away. Without this
        the checkpoint of an idle node would name pods that are long gone (docs/adr/0005).
        """
        self._list.wake()

    async def run(self) -> None:
        """Keep the resource registered until cancelled, then close its socket."""
        try:
            while True:
                if self._list.is_offered:
                    await self._serve_once()
                else:
                    self._enter(EndpointPhase.WITHDRAWN, "nothing is offered")
                    await self._until_looked(SELDOM_SECONDS)
        finally:
            await self._close(grace_seconds=0)

    async def _serve_once(self) -> None:
        """One registration from beginning to end, and the pause after a failed one."""
        started = asyncio.get_running_loop().time()
        identity = self.directory.kubelet_identity()
        try:
            await self._register()
            self._enter(EndpointPhase.SERVING, "")
            why = await self._until_lost(identity)
        except (KubeletError, OSError) as error:
            why = str(error)
        if self._list.is_offered:
            self._enter(EndpointPhase.UNREGISTERED, why)
        await self._close(grace_seconds=CLOSE_SECONDS)
        if asyncio.get_running_loop().time() - started > STEADY_SECONDS:
            self._retry_seconds = FIRST_RETRY_SECONDS
        await self._pause(identity)

    async def _register(self) -> None:
        """Serve on a new socket and register it; returns when the kubelet has the list."""
        if self.directory.kubelet_identity() is None:
            raise KubeletError(f"{self.directory.kubelet_socket} is not there")
        self._streams = streams = StreamWatch(self._look)
        options = pb.DevicePluginOptions(
            pre_start_required=self.checks_start, get_preferred_allocation_available=True
        )
        servicer = DevicePluginServicer(self.resource, self.service, options, self._list, streams)
        self._socket = self.directory.fresh_socket(self.resource)
        self.directory.remove_stale()
        # Kept in an attribute: a server that is garbage collected closes its socket.
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((servicer.method_table(),))
        await listen(self._server, self._socket)
        await register(self.directory.kubelet_socket, self.resource, self._socket.name, options)
        self._enter(EndpointPhase.REGISTERED, "the kubelet has not asked for the list", is_new=True)
        await self._first_list()

    async def _first_list(self) -> None:
        try:
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                await self._streams.has_begun.wait()
        except TimeoutError as error:
            raise KubeletError(
                f"the kubelet registered {self.resource} and asked for no list"
                f" within {FIRST_LIST_SECONDS:g} s"
            ) from error
        if not self._streams.has_listened:
            raise KubeletError(
                f"the kubelet did not take the list of {self.resource},"
                f" {len(self._list.message)} bytes"
            )

    async def _until_lost(self, identity: SocketIdentity | None) -> str:
        """Wait until the registration is over, and return why."""
        while True:
            if not self._list.is_offered:
                return "withdrawn"
            if self._streams.is_lost:
                return "the kubelet ended the device list"
            now = self.directory.kubelet_identity()
            # No kubelet.sock, but the list is still open: leave what works alone.
            if now is not None and (now != identity or not is_socket(self._socket)):
                self._retry_seconds = FIRST_RETRY_SECONDS
                return "the kubelet has restarted" if now != identity else "our socket was removed"
            await self._until_looked(SELDOM_SECONDS)

    async def _pause(self, identity: SocketIdentity | None) -> None:
        """Wait before the next attempt; shorter if there is another kubelet.sock."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_seconds
        while self._list.is_offered and self.directory.kubelet_identity() == identity:
            remaining = deadline - loop.time()
            if identity is not None and remaining <= 0:
                self._retry_seconds = min(self._retry_seconds * 2, LAST_RETRY_SECONDS)
                return
            await self._until_looked(SELDOM_SECONDS if identity is None else remaining)

    async def _until_looked(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # gRPC waits for a server's end with wait_for, which in Python 3.11 loses a cancellation
            # that comes at the same time, when kubelet and agent end together.
            raise asyncio.CancelledError
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look.wait()
        self._look.clear()

    async def _close(self, *, grace_seconds: float) -> None:
        self._streams.is_closing = True
        self._list.wake()
        if self._server is not None:
            await self._server.stop(grace_seconds)
            self._server = None
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            self._socket = None

    def _enter(self, phase: EndpointPhase, detail: str, *, is_new: bool = False) -> None:
        before = self.state
        self.state = EndpointState(
            self.resource, phase, detail, before.registrations + (1 if is_new else 0)
        )
        if (phase, detail) == (before.phase, before.detail):
            return
        log = _log.debug if phase is EndpointPhase.REGISTERED else _log.info
        log("endpoint", resource=self.resource, phase=phase.value, detail=detail)
        self.on_change(self.state)


async def register(
    kubelet_socket: Path, resource: str, socket_name: str, options: pb.DevicePluginOptions
) -> None:
    """Tell the kubelet that `resource` is served on `socket_name`, in the same directory.

    The kubelet dials that socket and asks for its options before it answers, so the socket must
    be served already. KubeletError contains the kubelet's own text.
    """
    # The options are sent for completeness: kubelets read only GetDevicePluginOptions.
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=socket_name, resource_name=resource, options=options
    )
    async with grpc.aio.insecure_channel(
        f"unix:{kubelet_socket}", options=_CHANNEL_OPTIONS
    ) as channel:
        call: Any = channel.unary_unary(
            _REGISTER,
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        try:
            await call(request, timeout=REGISTER_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise KubeletError(
                f"the kubelet did not register {resource}: {rpc_words(error, REGISTER_SECONDS)}"
            ) from error
