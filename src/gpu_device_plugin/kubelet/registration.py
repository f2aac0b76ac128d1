"""The one call that we make to the kubelet's registration server."""

from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

API_VERSION = "v1beta1"
REGISTER_SECONDS = 15.0
"""More than the 10 s the kubelet takes to give up dialling us, so that we read its own words."""

_REGISTER = "/v1beta1.Registration/Register"
# Without a pool of its own, a channel to a kubelet that was away inherits the waiting
# time that gRPC keeps for the address, up to two minutes.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


async def register(kubelet_socket: Path, resource: str, socket_name: str) -> None:
    """Tells the kubelet that `resource` is served on `socket_name`, in the same directory.

    The kubelet dials that socket and asks its options before it answers, so it must be
    served already.

    Raises:
        KubeletError: The kubelet is not there, or refuses; the text has its words.
    """
    # The options are sent for completeness: kubelets read only GetDevicePluginOptions.
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=socket_name,
        resource_name=resource,
        options=pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        ),
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
                f"the kubelet did not register {resource}: {error.details()} ({error.code().name})"
            ) from error
