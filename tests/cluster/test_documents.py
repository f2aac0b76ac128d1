"""Single objects: that there is none is known only from the API server itself."""

from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from tests.fakes.api_server import running

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.claims import fetch_claim
from gpu_device_plugin.cluster.documents import read
from gpu_device_plugin.errors import ClusterError

Asked = Callable[[ApiServer], Awaitable[object]]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda api: read(api, "/api/v1/namespaces/ns/configmaps/c"), id="document"),
        pytest.param(lambda api: fetch_claim(api, "ns", "c", 5.0), id="claim"),
    ],
)
async def test_a_404_of_a_proxy_does_not_say_that_an_object_is_gone(asked: Asked) -> None:
    """What is believed gone is made anew, or its grant ends."""
    async with running() as (server, api):
        assert await asked(api) is None
        server.fault = lambda _: web.Response(status=404, text="<html>no such page</html>")
        with pytest.raises(ClusterError, match="404 <html>no such page"):
            await asked(api)
