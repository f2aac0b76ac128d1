"""The pool of connections to the API server."""

import socket
import ssl
from typing import Any

import aiohttp


def open_session(tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A pool without a connection yet; None for TLS by the system's authorities."""
    connector = aiohttp.TCPConnector(ssl=tls or True, limit=16, socket_factory=_keepalive_socket)
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
