"""The kubelet's calls about claims: protobuf in, domain values through, protobuf out."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from gpu_device_plugin.domain.grants.claims import DRIVER, ClaimRef, PoolHealth, PreparedDevice
from gpu_device_plugin.errors import GpuPluginError
from gpu_device_plugin.kubelet._proto import dra_pb2, drahealth_pb2, pluginregistration_pb2
from gpu_device_plugin.kubelet.device_plugin_servicer import encode, unary

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
