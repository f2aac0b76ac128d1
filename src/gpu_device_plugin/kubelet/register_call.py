"""Register: the one call to the kubelet's registration server.

What a failed call means, in words for people: gRPC's own tell of addresses and subchannels.
"""

from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

_CLOSED = "Permission denied"


def rpc_words(error: grpc.aio.AioRpcError, deadline_seconds: float) -> str:
    """What the kubelet said, or that it said nothing."""
    if error.code() is grpc.StatusCode.UNAVAILABLE and _CLOSED in str(error.details()):
        return "the socket is closed to this user; run as root"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "nothing answers there; the kubelet is not running, or is starting"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {deadline_seconds:g} s"
    return str(error.details() or error.code().name)


API_VERSION = "v1beta1"
REGISTER_SECONDS = 15.0
"""More than the 10 s after which the kubelet stops dialling us, to get its own error text."""

_REGISTER = "/v1beta1.Registration/Register"
# Without its own subchannel pool, a channel to a kubelet that was away inherits the backoff
# that gRPC keeps for the address, up to two minutes.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


async def register(kubelet_socket: Path, resource: str, socket_name: str) -> None:
    """Tell the kubelet that `resource` is served on `socket_name`, in the same directory.

    The kubelet dials that socket and asks for its options before it answers, so the socket must
    be served already. KubeletError contains the kubelet's own text.
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
                f"the kubelet did not register {resource}: {rpc_words(error, REGISTER_SECONDS)}"
            ) from error
