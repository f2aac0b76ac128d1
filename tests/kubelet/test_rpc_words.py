"""What reaches people of a failed call is in words: no address, no status code of gRPC's own."""

import grpc
import pytest

from gpu_device_plugin.kubelet.podresources import rpc_words

RAW = "failed to connect to all addresses; last error: UNKNOWN: unix:/x.sock: Connection refused"

CLOSED = RAW.replace("Connection refused", "Permission denied")


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, RAW, "nothing answers there"),
        (grpc.StatusCode.UNAVAILABLE, CLOSED, "the socket is closed to this user; run as root"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "no answer within 2 s"),
        (grpc.StatusCode.UNKNOWN, "pod a not found", "pod a not found"),
        (grpc.StatusCode.INTERNAL, "", "INTERNAL"),
    ],
)
def test_a_failed_call_is_told_in_words(code: grpc.StatusCode, details: str, expected: str) -> None:
    """The kubelet's own words are kept; what gRPC says when there were none is not."""
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(code, nothing, nothing, details)

    told = rpc_words(error, 2.0)
    assert told.startswith(expected)
    assert "addresses" not in told
