"""The pages answer with the right status and text, and a bad address is named."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tools.harness.ports import free_port

from gpu_device_plugin.errors import ConfigError, EdgeError
from gpu_device_plugin.web.http_server import ReadyState, WebServer, parse_address


class Node:
    """What the pages tell; tests change it while the server runs."""

    readiness = ReadyState(
        is_ready=False, text="no list sent for aliyun.com/gpu-mem\nnot registered"
    )

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The page says how it was asked for."""
        return f"accept {accept}\n".encode(), "text/plain; version=0.0.4"

    def server(self, address: str) -> WebServer:
        """Its pages tell this node's state."""
        return WebServer(address, self.metrics, lambda: self.readiness)


@asynccontextmanager
async def serving(node: Node, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """The URL of a running server."""
    server = node.server(address)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def get(url: str, accept: str = "*/*") -> tuple[int, str, str]:
    """Status, content type and text."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Accept": accept}) as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_come_with_their_content_type() -> None:
    """Prometheus 3 refuses a page whose content type it does not know."""
    async with serving(Node()) as url:
        page = await get(url + "/metrics", accept="text/plain")

    assert page == (200, "text/plain; version=0.0.4", "accept text/plain; version=0.0.4\n")


async def test_readyz_says_why_not() -> None:
    """503 with the reasons, 200 once there are none."""
    node = Node()
    async with serving(node) as url:
        status, _, text = await get(url + "/readyz")
        assert (status, text) == (503, "no list sent for aliyun.com/gpu-mem\nnot registered\n")

        node.readiness = ReadyState(is_ready=True, text="ready: mode core_mem")
        status, _, text = await get(url + "/readyz")
        assert (status, text) == (200, "ready: mode core_mem\n")


async def test_healthz_is_about_life_only() -> None:
    """A node that is not ready is alive."""
    async with serving(Node()) as url:
        assert (await get(url + "/healthz"))[::2] == (200, "ok\n")


async def test_every_interface_is_served_where_no_host_is_given() -> None:
    """On IPv4, and on IPv6 where the machine has it."""
    port = free_port()
    async with serving(Node(), f":{port}"):
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200


async def test_an_address_in_use_is_named() -> None:
    """The operator sees which address, and why it cannot be had."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        server = Node().server(address)

        with pytest.raises(EdgeError, match=rf"metrics address {address}: Address already in use$"):
            await server.start()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (":9445", ("", 9445)),
        ("127.0.0.1:9445", ("127.0.0.1", 9445)),
        ("[::1]:0", ("::1", 0)),
        ("[::]:9445", ("::", 9445)),
        ("node.example:80", ("node.example", 80)),
    ],
)
def test_addresses_are_read_as_go_programs_write_them(
    address: str, expected: tuple[str, int]
) -> None:
    """The forms of `net.Listen`."""
    assert parse_address(address, "address") == expected


@pytest.mark.parametrize("address", ["", "9445", "host", "host:", "host:http", "::1:80", ":65536"])
def test_any_other_address_is_a_config_error(address: str) -> None:
    """With the key and the text that was given."""
    with pytest.raises(ConfigError, match=re.escape(f"--page-address: {address!r} is not")):
        parse_address(address, "--page-address")
