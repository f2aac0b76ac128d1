"""The stand-in API server is no kinder, and no more forgetful, than its callers are told."""

import asyncio
import json
from typing import Any

from tools.harness.api_server import running
from tools.harness.waiting import until

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import Request


async def test_a_watch_that_is_being_opened_when_all_are_dropped_is_dropped_too() -> None:
    """A fault that is set before then meets every watch: none lasts that was let in earlier."""
    async with running() as (server, api):
        server.latency = lambda _: 0.4

        async def follow() -> None:
            async for _ in api.watch(Request("GET", "/api/v1/pods"), seconds=240):
                pass

        watch = asyncio.ensure_future(follow())
        await until(lambda: server.requests)
        await server.drop_watches()
        await asyncio.wait((watch,), timeout=30)
        assert watch.done(), "it is still open"
        assert watch.exception() is None or isinstance(watch.exception(), ClusterError)


async def test_all_pages_of_a_list_are_of_the_moment_of_the_first() -> None:
    """A change in between is for the watch, from the version that every page names."""
    async with running() as (server, api):
        for name in "abc":
            server.store(f"/api/v1/nodes/{name}", {})
        server.page_size = 2

        async def page(**query: str) -> Any:
            answer = await api.call(Request("GET", "/api/v1/nodes", {"limit": "500", **query}))
            return json.loads(answer.body)

        first = await page()
        server.remove("/api/v1/nodes/a")
        server.store("/api/v1/nodes/d", {})
        second = await page(**{"continue": first["metadata"]["continue"]})

    assert [each["metadata"]["name"] for each in second["items"]] == ["c"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
