"""What a failed call means, in words for people: gRPC's own tell of addresses and subchannels."""

import grpc

_CLOSED = "Permission denied"


def rpc_words(error: grpc.aio.AioRpcError, deadline_seconds: float) -> str:
    """What the kubelet said, or that it said nothing.

    Args:
        error: The failure.
        deadline_seconds: How long the answer was waited for.
    """
    if error.code() is grpc.StatusCode.UNAVAILABLE and _CLOSED in str(error.details()):
        return "the socket is closed to this user; run as root"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "nothing answers there; the kubelet is not running, or is starting"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {deadline_seconds:g} s"
    return str(error.details() or error.code().name)
