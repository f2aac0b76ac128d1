"""That an object is gone is known only from the API server itself, not from a 404 of a proxy before it."""

from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from tools.harness.api_server import ApiRequest, StandInApiServer, running, working
from tools.harness.waiting import until

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import read
from gpu_device_plugin.kubernetes.client.patches import Patch, PatchQueue
from gpu_device_plugin.kubernetes.objects.leader_label import LeaderLabel
from gpu_device_plugin.kubernetes.objects.resource_claims import fetch_claim
from gpu_device_plugin.kubernetes.objects.resource_slices import ResourceSlices

Asked = Callable[[ApiServer], Awaitable[object]]


POD = "/api/v1/namespaces/ns/pods/p"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def of_a_proxy(_: ApiRequest) -> web.Response:
    return web.Response(status=404, text="<html>no such page</html>")


def of_nothing(_: ApiRequest) -> None:
    return None


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda api: read(api, "/api/v1/namespaces/ns/configmaps/c"), id="document"),
        pytest.param(lambda api: fetch_claim(api, "ns", "c", 5.0), id="claim"),
    ],
)
async def test_a_404_of_a_proxy_does_not_say_that_an_object_is_gone(asked: Asked) -> None:
    """What is believed gone is made again, or its grant ends."""
    async with running() as (server, api):
        assert await asked(api) is None
        server.fault = of_a_proxy
        with pytest.raises(ClusterError, match="404 <html>no such page"):
            await asked(api)


async def test_a_404_of_a_proxy_does_not_end_a_wish_for_an_object() -> None:
    """It is patched once the API server answers again."""
    async with running() as (server, api):
        await server.put(POD, {"metadata": {"name": "p", "namespace": "ns"}})
        given_up: list[str] = []
        queue = PatchQueue(api, lambda path: label(server, path), given_up.append)
        server.fault = of_a_proxy
        queue.mark(POD)
        async with working(queue.run):
            await until(lambda: len(server.seen("PATCH")) > 1)
            server.fault = of_nothing
            await until(lambda: label(server, POD) is None)
            assert not given_up
            server.objects.pop(POD)
            queue.mark(POD)
            await until(lambda: given_up == [POD])


def label(server: StandInApiServer, path: str) -> Patch | None:
    """What is missing of the label."""
    labels = server.objects.get(path, {"metadata": {}})["metadata"].get("labels", {})
    return None if "a" in labels else Patch(path, {"labels": {"a": "b"}})


async def test_a_404_of_a_proxy_does_not_say_that_our_resource_slice_is_gone() -> None:
    """It would stay, and the scheduler would place pods by it."""
    async with running() as (server, api):
        spec = {"driver": "gpu-device-plugin", "nodeName": "n1"}
        path = f"{SLICES}/n1-gpu-device-plugin"
        server.preload(path, {"metadata": {"name": "n1-gpu-device-plugin"}, "spec": spec})
        server.fault = lambda seen: of_a_proxy(seen) if seen.method == "DELETE" else None
        slices = ResourceSlices(api, "n1", lambda: "uid-n1")
        slices.offer([], "")
        async with working(slices.run):
            await until(lambda: "no such page" in slices.trouble)
            server.fault = of_nothing
            await until(lambda: path not in server.objects)


async def test_a_404_of_a_proxy_does_not_say_that_the_leaders_label_is_off() -> None:
    """A pod that is gone has none."""
    async with running() as (server, api):
        label = LeaderLabel(api, "ns", "p")
        await label.give_up()
        server.fault = of_a_proxy
        with pytest.raises(ClusterError, match="404 <html>no such page"):
            await label.give_up()
