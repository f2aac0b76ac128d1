"""The floor: a grpc.aio server whose Allocate does nothing at all.

python -m tools.bench.empty_server SOCKET
"""

import asyncio
import sys
from typing import Any

import grpc

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb


async def _allocate(_request: pb.AllocateRequest, _context: Any) -> pb.AllocateResponse:
    return pb.AllocateResponse()


async def serve(socket: str) -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        _allocate, pb.AllocateRequest.FromString, pb.AllocateResponse.SerializeToString
    )
    table = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {"Allocate": handler})
    server.add_generic_rpc_handlers((table,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
