"""A controller ends after its callers know of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from tests.controller.replica import Running, a_replica
from tests.controller.test_leader import _LASTING, controller_pod, holder, labelled
from tests.controller.test_webhook import S0_POD, mutated
from tests.kubernetes.test_cluster_watch import SlowAnswer
from tools.harness.api_server import StandInApiServer, running
from tools.harness.objects import node, path, pod
from tools.harness.waiting import until

from gpu_device_plugin.web.extender_server import PREFIX


@asynccontextmanager
async def an_ending_leader(
    folder: Path, slow: SlowAnswer
) -> AsyncIterator[tuple[StandInApiServer, Running, "asyncio.Future[str]"]]:
    """A leader that was told to end while the answer of a binding is under way; with that binding's end."""
    new = pod("new", 2, 30)
    async with running() as (server, _), contextlib.AsyncExitStack() as stack:
        for each in (new, controller_pod("one")):
            await server.put(path(each), each)
        await server.put("/api/v1/nodes/n1", node("n1"))
        times = replace(_LASTING, ending_seconds=3600)
        one = await stack.enter_async_context(a_replica(server, folder, "one", times))
        await until(lambda: labelled(server) == ["one"])
        server.fault = lambda seen: slow if seen.path.endswith("/binding") else None
        binding = asyncio.ensure_future(one.bind(new, "n1"))
        await until(lambda: server.seen("POST", "/binding"))
        ending = asyncio.ensure_future(stack.aclose())
        try:
            yield server, one, binding
        finally:
            ending.cancel()  # a second signal: nobody waits an hour
            await asyncio.gather(ending, return_exceptions=True)


async def test_it_ends_its_bindings_then_its_lead_and_serves_the_webhook_for_a_while(
    tmp_path: Path,
) -> None:
    """/readyz says so at once; kube-scheduler is sent away, and the API server still answered."""
    slow = SlowAnswer({})
    async with an_ending_leader(tmp_path, slow) as (server, one, binding):

        async def is_told() -> bool:
            told = await one.get("/readyz", port=one.controller.pages.port)
            return told == (503, "this replica is ending\n")

        await until(is_told)
        assert (holder(server), labelled(server)) == ("one", ["one"])
        slow.go_on.set()
        assert await binding == ""
        await until(lambda: (holder(server), labelled(server)) == ("", []))
        url = f"http://127.0.0.1:{one.controller.server.port}{PREFIX}/filter"
        async with one.session.post(url, json={}) as response:
            assert (response.status, response.headers["Connection"]) == (503, "close")
        assert (await mutated(one, S0_POD))["spec"]["affinity"]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url)
