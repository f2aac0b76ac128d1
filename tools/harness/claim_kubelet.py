"""A kubelet's side of claims: finds the driver by its socket, and prepares claims and gives them back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.kubelet._proto import dra_pb2, pluginregistration_pb2
from gpu_device_plugin.kubelet.dra_servicer import REGISTRATION_NAME, SERVICE_NAME
from tools.harness.waiting import until


@dataclass
class ClaimKubelet:
    """What a kubelet does with the sockets in its directory."""

    root: Path

    @property
    def registry_socket(self) -> Path:
        return next((self.root / "plugins_registry").glob("*"), Path("/none"))

    async def info(self) -> Any:
        """Calls the driver as soon as its socket appears, as a kubelet that watches the directory."""
        await until(lambda: self.registry_socket.exists())
        pb = pluginregistration_pb2
        path = f"/{REGISTRATION_NAME}/GetInfo"
        return await call(self.registry_socket, path, pb.InfoRequest(), pb.PluginInfo)

    async def register(self) -> Path:
        """Takes the driver; returns the socket on which it serves."""
        pb, info = pluginregistration_pb2, await self.info()
        status = pb.RegistrationStatus(plugin_registered=True)
        path = f"/{REGISTRATION_NAME}/NotifyRegistrationStatus"
        await call(self.registry_socket, path, status, pb.RegistrationStatusResponse)
        return Path(info.endpoint)

    async def prepare(self, *names: str) -> Any:
        request = dra_pb2.NodePrepareResourcesRequest(claims=[claim(name) for name in names])
        path, kind = f"/{SERVICE_NAME}/NodePrepareResources", dra_pb2.NodePrepareResourcesResponse
        return (await call(await self.register(), path, request, kind)).claims

    async def unprepare(self, *names: str) -> Any:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[claim(name) for name in names])
        path = f"/{SERVICE_NAME}/NodeUnprepareResources"
        kind = dra_pb2.NodeUnprepareResourcesResponse
        return (await call(await self.register(), path, request, kind)).claims


def claim(name: str) -> Any:
    return dra_pb2.Claim(namespace="default", name=name, uid=f"uid-{name}")


async def call(socket: Path, path: str, request: Any, answer: Any) -> Any:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        method = channel.unary_unary(
            path, request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=answer.FromString,
        )  # fmt: skip
        return await method(request, timeout=60, wait_for_ready=True)
