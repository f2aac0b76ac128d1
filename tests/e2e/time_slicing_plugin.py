"""A stand-in of NVIDIA's device plugin with time-slicing: replicas of a card under NVIDIA's name, or another plugin's.

python -m tests.e2e.time_slicing_plugin DIRECTORY REPLICAS [RESOURCE SOCKET]   (the kubelet's device-plugins)
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.registration import register

RESOURCE = "nvidia.com/gpu"
SOCKET = "nvidia-gpu.sock"
GPUSHARE = ("aliyun.com/gpu-mem", "aliyungpushare.sock")
"""Alibaba Cloud's open plugin: the name and the socket."""


class TimeSlicing:
    """Gives out replicas of one card, which is told by NVIDIA_VISIBLE_DEVICES."""

    def __init__(self, replicas: int) -> None:
        self._ids = [f"GPU-0::{number}" for number in range(replicas)]

    async def options(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def devices(
        self, _request: pb.Empty, _context: Any
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        listed = [pb.Device(ID=text, health="Healthy") for text in self._ids]
        yield pb.ListAndWatchResponse(devices=listed)
        await asyncio.Event().wait()

    async def allocate(self, request: pb.AllocateRequest, _context: Any) -> pb.AllocateResponse:
        answer = pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-0"})
        return pb.AllocateResponse(container_responses=[answer] * len(request.container_requests))

    def handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        calls = {
            "GetDevicePluginOptions": (unary, self.options, pb.Empty, pb.DevicePluginOptions),
            "ListAndWatch": (stream, self.devices, pb.Empty, pb.ListAndWatchResponse),
            "Allocate": (unary, self.allocate, pb.AllocateRequest, pb.AllocateResponse),
        }
        table = {
            name: kind(call, asked.FromString, answer.SerializeToString)
            for name, (kind, call, asked, answer) in calls.items()
        }
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", table)


async def start(
    directory: Path, replicas: int, resource: str = RESOURCE, socket: str = SOCKET
) -> grpc.aio.Server:
    """A server that is registered."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((TimeSlicing(replicas).handlers(),))
    (directory / socket).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{directory / socket}")
    await server.start()
    await register(directory / "kubelet.sock", resource, socket, pb.DevicePluginOptions())
    return server


async def serve(*arguments: str) -> None:
    """Register, and serve until killed."""
    directory, replicas, *names = arguments
    server = await start(Path(directory), int(replicas), *names)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
