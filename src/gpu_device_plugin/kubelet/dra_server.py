"""The sockets by which the kubelet finds the driver of claims, and asks it.

The kubelet watches `plugins_registry/`. It calls a socket that it finds there, at its own start as
well, and forgets the driver when the socket goes. It deletes the ResourceSlices of a driver that is
away for 30 s, and at its own start those of all.

The kubelet's calls about claims: protobuf in, domain values through, protobuf out.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import structlog

from gpu_device_plugin.domain.grants.claims import DRIVER, ClaimRef, PoolHealth, PreparedDevice
from gpu_device_plugin.errors import GpuPluginError, KubeletError
from gpu_device_plugin.kubelet._proto import dra_pb2, drahealth_pb2, pluginregistration_pb2
from gpu_device_plugin.kubelet.device_plugin_servicer import encode, unary
from gpu_device_plugin.kubelet.plugin_directory import is_socket

SERVICE_NAME = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
REGISTRATION_NAME = "pluginregistration.Registration"
HEALTH_NAMES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Both have the same messages. Kubelets before 1.37 know the second one only."""
VERSIONS = ("v1.DRAPlugin", *HEALTH_NAMES)
"""What the registration names: from 1.37 on a kubelet watches health only where it is named."""
CALL_DEADLINE_SECONDS = 20.0
"""The kubelet's own is 45; it calls again after an error."""
HEALTH_SECONDS = 10.0
"""How often health is repeated; the kubelet takes what is older than 30 s for unknown."""
_log = structlog.get_logger(__name__)


class ClaimService(Protocol):
    """Answers the kubelet's calls about claims, or raises a GpuPluginError for that claim."""

    async def prepare(self, ref: ClaimRef) -> Sequence[PreparedDevice]:
        """The claim's devices, ready for its containers; the same ones if asked again."""
        ...

    async def unprepare(self, ref: ClaimRef) -> None:
        """The claim's containers have ended; also for a claim that is not known."""
        ...

    def health(self) -> PoolHealth:
        """The health of the devices that claims can get."""
        ...


@dataclass(eq=False)
class ClaimServicer:
    """Serves registration, claims and health."""

    service: ClaimService
    endpoint: str
    changed: Callable[[], asyncio.Event]
    on_registered: Callable[[bool, str], None]

    def registration_table(self) -> grpc.GenericRpcHandler:
        pb = pluginregistration_pb2
        return grpc.method_handlers_generic_handler(
            REGISTRATION_NAME,
            {
                "GetInfo": unary(self._info, pb.InfoRequest),
                "NotifyRegistrationStatus": unary(self._registered, pb.RegistrationStatus),
            },
        )

    def method_tables(self) -> tuple[grpc.GenericRpcHandler, ...]:
        claims = {
            "NodePrepareResources": unary(self._prepare, dra_pb2.NodePrepareResourcesRequest),
            "NodeUnprepareResources": unary(self._unprepare, dra_pb2.NodeUnprepareResourcesRequest),
        }
        health = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self._watch, drahealth_pb2.NodeWatchResourcesRequest.FromString, encode
            )
        }
        return (
            grpc.method_handlers_generic_handler(SERVICE_NAME, claims),
            *(grpc.method_handlers_generic_handler(name, health) for name in HEALTH_NAMES),
        )

    async def _info(self, _request: Any, _context: Any) -> Any:
        return pluginregistration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=self.endpoint, supported_versions=VERSIONS
        )

    async def _registered(self, request: Any, _context: Any) -> Any:
        self.on_registered(request.plugin_registered, request.error)
        return pluginregistration_pb2.RegistrationStatusResponse()

    async def _prepare(self, request: Any, _context: Any) -> Any:
        response = dra_pb2.NodePrepareResourcesResponse()
        refs = [_ref(claim) for claim in request.claims]
        # Side by side: each asks the API server, and the kubelet waits 45 s for all of them.
        tried = await asyncio.gather(*(_try(self.service.prepare(ref)) for ref in refs))
        for ref, (error, devices) in zip(refs, tried, strict=True):
            answer = response.claims[ref.uid]
            answer.error = error
            for each in devices or ():
                answer.devices.add(
                    request_names=[each.of.request] if each.of.request else [],
                    pool_name=each.of.pool,
                    device_name=each.of.device,
                    cdi_device_ids=each.cdi_ids,
                    share_id=each.of.share_id or None,
                )
        return response

    async def _unprepare(self, request: Any, _context: Any) -> Any:
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for ref in map(_ref, request.claims):
            response.claims[ref.uid].error, _ = await _try(self.service.unprepare(ref))
        return response

    async def _watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """All devices now, at every change, and every 10 s."""
        while True:
            changed = self.changed()
            yield self._health()
            try:
                async with asyncio.timeout(HEALTH_SECONDS):
                    await changed.wait()
            except TimeoutError:
                continue

    def _health(self) -> Any:
        pb, now = drahealth_pb2, int(time.time())
        response = pb.NodeWatchResourcesResponse()
        pool, devices = self.service.health()
        for name, fault in devices:
            response.devices.add(
                device=pb.DeviceIdentifier(pool_name=pool, device_name=name),
                health=pb.UNHEALTHY if fault else pb.HEALTHY,
                last_updated_time=now,
                message=fault,
            )
        return response


async def _try(answer: Awaitable[Any]) -> tuple[str, Any]:
    """The error of one claim, which leaves the others alone, or its answer."""
    try:
        async with asyncio.timeout(CALL_DEADLINE_SECONDS):
            return "", await answer
    except TimeoutError:
        return f"no answer within {CALL_DEADLINE_SECONDS:g} s", None
    except GpuPluginError as error:
        return str(error), None


def _ref(claim: Any) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)


LOOK_SECONDS = 1.0
RETRY_SECONDS = 2.0
CLOSE_SECONDS = 1.0


class ClaimServer:
    """Serves claims to the kubelet for as long as `run` runs."""

    def __init__(self, kubelet_dir: Path, service: ClaimService) -> None:
        self._socket, self._registry_socket = _sockets(kubelet_dir)
        self._service = service
        self._health_changed = asyncio.Event()
        self.trouble = "not served yet"
        """Why the kubelet cannot reach the driver; empty once it has taken it."""

    def tell_health(self) -> None:
        self._health_changed.set()
        self._health_changed = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled; made again where somebody removes a socket."""
        while True:
            try:
                await self._serve_once()
            except KubeletError as error:
                if self.trouble != str(error):
                    self.trouble = str(error)
                    _log.warning("claims are not served", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _serve_once(self) -> None:
        servicer = ClaimServicer(
            self._service, str(self._socket), lambda: self._health_changed, self._registered
        )
        servers: list[Any] = []
        try:
            # The kubelet dials the second one as soon as it finds the first.
            servers.append(await _listen(self._socket, *servicer.method_tables()))
            servers.append(await _listen(self._registry_socket, servicer.registration_table()))
            while is_socket(self._socket) and is_socket(self._registry_socket):
                await asyncio.sleep(LOOK_SECONDS)
            self.trouble = "a socket was removed"
        finally:
            for server, path in zip(servers, (self._socket, self._registry_socket), strict=False):
                path.unlink(missing_ok=True)
                await server.stop(CLOSE_SECONDS)

    def _registered(self, is_taken: bool, why: str) -> None:  # noqa: FBT001 - as the kubelet tells it
        self.trouble = "" if is_taken else why
        _log.info("claims registered" if is_taken else "claims not registered", error=why)


def remove_sockets(kubelet_dir: Path) -> None:
    """Remove those that a killed agent has left: the kubelet takes them for a driver."""
    for path in _sockets(kubelet_dir):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise KubeletError(f"{path}: cannot be removed: {error.strerror}") from error
    with suppress(OSError):  # it is not there, or a mount
        _sockets(kubelet_dir)[0].parent.rmdir()


def _sockets(kubelet_dir: Path) -> tuple[Path, Path]:
    """That of the driver, and that by which the kubelet finds it."""
    driver = kubelet_dir / "plugins" / DRIVER / "dra.sock"
    return driver, kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"


async def _listen(path: Path, *tables: grpc.GenericRpcHandler) -> Any:
    """A server on a socket; one that a killed agent has left there is replaced."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers(tables)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    except (OSError, RuntimeError) as error:
        raise KubeletError(f"cannot listen on {path}: {error}") from error
    return server
