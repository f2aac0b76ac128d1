"""Silence is no news: a watch that tells nothing is opened again, and says for how long it told nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.kubernetes.test_cluster_watch import View, a_pod
from tools.harness.api_server import QUICK, StandInApiServer, running, working
from tools.harness.forwarder import Forwarder, forwarding
from tools.harness.objects import node
from tools.harness.waiting import until

from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.credentials import Credentials
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterWatch
from gpu_device_plugin.overview.questions import FollowedCards, follow_cards

_PATH = "/api/v1/namespaces/ns/pods/"


@asynccontextmanager
async def behind_a_proxy(
    silence_seconds: float,
) -> AsyncIterator[tuple[StandInApiServer, Forwarder, ApiServer]]:
    """A stand-in, the proxy before it, and a client that bears silence for so long."""
    async with running() as (server, _), forwarding(server.port) as proxy:

        async def load() -> Credentials:
            return Credentials(f"http://127.0.0.1:{proxy.port}")

        api = ApiServer(load, pace=replace(QUICK, silence_seconds=silence_seconds))
        try:
            yield server, proxy, api
        finally:
            await api.close()


async def test_a_watch_on_which_nothing_comes_is_continued_from_its_version() -> None:
    """The connection is there and dead: nobody ends it, and a list would be a peak of the cluster."""
    view = View()
    async with behind_a_proxy(0.3) as (server, proxy, api):
        watch = ClusterWatch(api, view.changes)
        await server.put(_PATH + "old", a_pod("old"))
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: "old" in view.pods)
            await until(lambda: sum("watch" in seen.query for seen in server.requests) >= 2)
            proxy.hang()
            await server.put(_PATH + "new", a_pod("new"))
            await until(lambda: "new" in view.pods)
            # The other list's watch may be about to be opened again.
            await until(lambda: not watch.trouble, tell=lambda: watch.trouble)
    lists = [s for s in server.seen("GET", "/api/v1/pods") if "watch" not in s.query]
    assert len(lists) == 1


async def test_bookmarks_keep_a_quiet_watch_open() -> None:
    """In a quiet cluster nothing else comes for hours."""
    loop = asyncio.get_running_loop()
    async with behind_a_proxy(2.0) as (server, proxy, api):
        watch = ClusterWatch(api, View().changes)
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: sum("watch" in seen.query for seen in server.requests) == 2)
            opened, end = proxy.accepted, loop.time() + 3.5

            async def is_over() -> bool:
                for kind in ("nodes", "pods"):
                    await server.send_raw(f"/api/v1/{kind}/b", "BOOKMARK", {"kind": "Bookmark"})
                return loop.time() > end

            await until(is_over)
            assert proxy.accepted == opened
            assert watch.doubt == ("", 0.0)


async def test_a_proxy_that_passes_nothing_on_is_a_trouble_as_old_as_the_last_news() -> None:
    """Connections come about, and no answer: what is known is from before the first silence."""
    async with behind_a_proxy(0.3) as (_, proxy, api):
        watch = ClusterWatch(api, View().changes)
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: watch.is_synced and not watch.trouble)
            proxy.is_passing = False
            await until(lambda: "nothing has come for" in watch.trouble)
            await until(lambda: watch.news_seconds - watch.trouble_seconds < 0.05)
            proxy.is_passing = True
            await until(lambda: not watch.trouble)


async def test_who_looks_is_told_that_a_watch_is_silent_though_it_is_open() -> None:
    """The page and `map -w` then show how old their map is."""
    told: list[FollowedCards] = []
    async with (
        behind_a_proxy(0.3) as (server, _, api),
        working(lambda: follow_cards(api, told.append)),
    ):
        await until(lambda: told and told[-1].cards is not None)
        server.is_mute = True
        await until(lambda: told[-1].trouble == "a watch of the API server is silent")
        assert told[-1].trouble_seconds > 0.2
        await server.put("/api/v1/nodes/gpu-a", node("gpu-a", 2))
        await server.put(_PATH + "new", a_pod("new"))
        server.speak()
        await until(lambda: told[-1].cards and told[-1].cards.nodes)
