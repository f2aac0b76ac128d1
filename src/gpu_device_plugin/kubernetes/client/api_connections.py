"""Connections to the Kubernetes API: sessions, bodies as they arrive, and failures in words."""

import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from gpu_device_plugin.errors import ClusterError, NotSentError, TooLongError, WrongServerError

# The resolver knows that there is no such name; any other trouble of it may pass.
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
_BROKEN_OFF = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError)


def open_session(tls: ssl.SSLContext | None, connections: int = 16) -> aiohttp.ClientSession:
    """A pool without a connection yet; None for TLS by the system's authorities."""
    connector = aiohttp.TCPConnector(
        ssl=tls or True, limit=connections, socket_factory=_keepalive_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": "gpu-device-plugin", "Accept": "application/json"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within about 30 s that its peer is gone."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length (`readline` refuses objects longer than its buffer)."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        if b"\n" in chunk:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                if line.strip():
                    yield line


async def content(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The whole answer; TooLongError once it has more bytes than that (0 is any length)."""
    chunks, size = list[bytes](), 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if 0 < most_bytes < size:
            raise TooLongError(f"{response.url.path}: the answer has more than {most_bytes} bytes")
    return b"".join(chunks)


def connection_error(server: str, asked: str, error: Exception) -> ClusterError:
    """What a failed request means, in words; a WrongServerError where no retry can help."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        why = getattr(cause, "verify_message", "") or str(cause)
        return WrongServerError(
            f"the certificate of {server} is not trusted: {why}; is the kubeconfig's "
            f"certificate-authority the one of this cluster?"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return _unconnected(server, error)
    if isinstance(error, _BROKEN_OFF):
        return ClusterError(f"{server} broke off its answer to {asked}")
    if isinstance(error, TimeoutError):
        is_connected = not isinstance(error, aiohttp.ConnectionTimeoutError)
        kind = ClusterError if is_connected else NotSentError
        return kind(f"{server} does not answer {asked} in time")
    return ClusterError(f"{asked}: {str(error) or type(error).__name__}")


def _unconnected(server: str, error: aiohttp.ClientConnectorError) -> ClusterError:
    place, cause = f"cannot reach {server}", error.os_error
    if error.host not in server:
        place += f" through {error.host}:{error.port}"  # a proxy
    if isinstance(cause, socket.gaierror) and cause.errno in _NO_SUCH_NAME:
        return WrongServerError(f"{place}: no such host ({cause.strerror})")
    if isinstance(cause, ConnectionRefusedError):
        return NotSentError(f"{place}: connection refused")
    if server.startswith("https") and isinstance(cause, ssl.SSLError | ConnectionResetError):
        return NotSentError(f"{place}: no TLS handshake; does it serve HTTPS?")
    return NotSentError(f"{place}: {cause.strerror or cause}")
