"""What a connection failed of is said in words, and whether another try can help is told by its class."""

import socket
from types import SimpleNamespace

import aiohttp
import pytest

from gpu_device_plugin.errors import ClusterError, NotSentError, WrongServerError
from gpu_device_plugin.kubernetes.client.api_connections import connection_error

PLACE = SimpleNamespace(host="api.example", port=6443, ssl=True, is_ssl=True)


@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            WrongServerError,
            "cannot reach https://k8s through api.example:6443: no such host (Name or service not known)",
        ),
        (
            socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
            NotSentError,
            "Temporary failure in name resolution",
        ),
        (
            ConnectionRefusedError(111, "refused"),
            NotSentError,
            "cannot reach https://k8s through api.example:6443: connection refused",
        ),
        (
            ConnectionResetError(),
            NotSentError,
            "cannot reach https://k8s through api.example:6443: no TLS handshake; does it serve HTTPS?",
        ),
        (OSError(113, "No route to host"), NotSentError, "No route to host"),
    ],
)
def test_only_a_name_that_nobody_has_is_hopeless(
    cause: OSError, kind: type[ClusterError], text: str
) -> None:
    found = connection_error(
        "https://k8s",
        "GET /api/v1/nodes",
        aiohttp.ClientConnectorError(PLACE, cause),  # type: ignore[arg-type]
    )

    assert type(found) is kind
    assert text in str(found)


def test_the_servers_own_name_is_said_once() -> None:
    refused = aiohttp.ClientConnectorError(PLACE, ConnectionRefusedError())  # type: ignore[arg-type]
    found = connection_error("https://api.example:6443", "GET /api/v1/nodes", refused)

    assert str(found) == "cannot reach https://api.example:6443: connection refused"


def test_silence_names_what_was_asked() -> None:
    found = connection_error("https://k8s", "GET /api/v1/nodes", TimeoutError())

    assert str(found) == "https://k8s does not answer GET /api/v1/nodes in time"


def test_only_without_a_connection_it_is_certain_that_nothing_was_sent() -> None:
    """A binding that was sent may come about after all."""
    unconnected, silent = aiohttp.ConnectionTimeoutError(), aiohttp.SocketTimeoutError()
    kinds = [type(connection_error("https://k8s", "POST", each)) for each in (unconnected, silent)]
    assert kinds == [NotSentError, ClusterError]
