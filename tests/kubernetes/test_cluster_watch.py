"""The view of all nodes and pods: what a GET has shown is never undone by older news."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from tools.harness.api_server import ApiRequest, running, working
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.processors import Processors
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.reflector import ObjectListener, Reflection, Source
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.kubernetes.objects.cluster_watch import Changes, ClusterPod, ClusterWatch

_PATH = "/api/v1/namespaces/ns/pods/"
_LIMITS = {"limits": {"aliyun.com/gpu-mem": "2"}}


def a_pod(name: str, *, on: str = "") -> dict[str, object]:
    """A pod with a slice that waits for a node, or is on one."""
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": name},
        "spec": {"nodeName": on, "containers": [{"name": "a", "resources": _LIMITS}]},
    }


class View:
    """What the watch called back with."""

    def __init__(self) -> None:
        self.pods: dict[str, ClusterPod | None] = {}

    def pod(self, ref: PodRef, pod: ClusterPod | None) -> None:
        self.pods[ref.name] = pod

    @property
    def changes(self) -> Changes:
        return Changes(lambda _name, _node: None, self.pod)


async def test_news_from_before_a_read_are_passed_over() -> None:
    """A watch that is behind tells that a bound pod waits for a node."""
    view = View()
    async with running() as (server, api):
        watch = ClusterWatch(api, view.changes)
        await server.put(_PATH + "new", a_pod("new"))
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: view.pods.get("new"))
            before = view.pods["new"]
            assert before is not None
            bound = ClusterPod(before.request, "n1", before.annotations, "1000000")
            watch.learn(before.request.ref, bound)
            await server.put(_PATH + "new", a_pod("new"))
            await server.put(_PATH + "fence", a_pod("fence"))
            await until(lambda: "fence" in view.pods)
            assert view.pods["new"] is bound


async def test_a_pod_that_was_read_while_a_list_was_under_way_outlives_that_list() -> None:
    """The list is from before the pod; a later one without it ends it."""
    view = View()
    async with running() as (server, api):
        watch = ClusterWatch(api, view.changes)
        await server.put(_PATH + "old", a_pod("old"))
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: view.pods.get("old"))
            old = view.pods["old"]
            assert old is not None
            ref = PodRef("ns", "new", "new")
            learned = ClusterPod(old.request, "n1", {}, "1")

            def fault(seen: ApiRequest) -> None:
                if seen.path == "/api/v1/pods" and "watch" not in seen.query:
                    watch.learn(ref, learned)

            server.fault = fault
            await watch.catch_up()
            assert view.pods.pop("new") is learned
            server.fault = lambda _: None
            await watch.catch_up()
            assert view.pods.pop("new") is None
            assert view.pods["old"] is not None


class SlowAnswer(web.Response):
    """An answer that was made long before it is sent."""

    def __init__(self, value: object) -> None:
        super().__init__(text=json.dumps(value), content_type="application/json")
        self.go_on = asyncio.Event()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        await self.go_on.wait()
        return await super().prepare(request)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_an_answer_that_comes_after_newer_news_changes_nothing(*, is_deleted: bool) -> None:
    """The pod is bound, or ends, while the answer of a GET is under way."""
    view, path = View(), _PATH + "new"
    async with running() as (server, api):
        watch = ClusterWatch(api, view.changes)
        await server.put(path, a_pod("new"))
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: view.pods.get("new"))
            answer = SlowAnswer(server.objects[path])
            server.fault = lambda seen: answer if seen.path == path else None
            read = asyncio.ensure_future(watch.read(api, PodRef("ns", "new", "new"), 60))
            await until(lambda: server.seen("GET", path))
            if is_deleted:
                await server.delete(path)
            else:
                await server.put(path, a_pod("new", on="n1"))
            await until(lambda: (each := view.pods["new"]) is None or each.node)
            known = view.pods["new"]
            answer.go_on.set()
            assert await read is not None
            assert view.pods["new"] is known


async def test_a_pod_that_ended_while_the_watch_was_away_gives_its_processors_back() -> None:
    """Also one without a slice: after 410 the list counts, and nobody tells of its end."""
    processors = Processors()
    plain = {
        "metadata": {"namespace": "ns", "name": "plain", "uid": "plain"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1500m"}}}],
        },
    }
    cards = {"annotations": {"gpu-device-plugin/cards": "{}"}, "name": "n1"}
    async with running() as (server, api):
        watch = ClusterWatch(api, View().changes, processors)
        node = {"metadata": cards, "status": {"allocatable": {"cpu": "4"}}}
        await server.put("/api/v1/nodes/n1", node)
        await server.put(_PATH + "plain", plain)
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: processors.free("n1") == 2500)
            server.fault = lambda _: web.json_response({"message": "away"}, status=503)
            await server.drop_watches()
            await server.delete(_PATH + "plain")
            await server.compact()
            server.fault = lambda _: None
            await until(lambda: processors.free("n1") == 4000)


async def test_a_list_in_pages_is_whole_and_followed_from_the_version_of_its_pages() -> None:
    """As a large cluster answers; past the server's cache, which ignores the size of a page."""
    view = View()
    async with running() as (server, api):
        server.page_size = 2
        for name in "abcde":
            server.preload(_PATH + name, a_pod(name))
        watch = ClusterWatch(api, view.changes)
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: len(view.pods) == 5)
            await server.put(_PATH + "late", a_pod("late"))
            await until(lambda: "late" in view.pods)
    lists = [s.query for s in server.seen("GET", "/api/v1/pods") if "watch" not in s.query]

    assert [query.get("continue") for query in lists] == [None, *(f"{at}@105" for at in (2, 4))]
    assert all("resourceVersion" not in query for query in lists)


class Drip(web.Response):
    """An answer that comes byte by byte for half a second."""

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 aiohttp names it
        body = self.body
        assert isinstance(body, bytes)
        writer = self._payload_writer
        assert writer is not None
        for at in range(len(body)):
            await writer.write(body[at : at + 1])
            await asyncio.sleep(0.5 / len(body))
        await writer.write_eof()


async def test_a_list_may_take_longer_than_a_call_while_bytes_keep_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list of a large cluster over a slow line."""
    for method in (ApiServer.call, ApiServer.call_in_turn):
        monkeypatch.setattr(method, "__kwdefaults__", {"deadline_seconds": 0.2})
    body = {"metadata": {"resourceVersion": "100"}, "items": [a_pod("slow")]}

    def fault(seen: ApiRequest) -> web.Response | None:
        is_list = seen.path == "/api/v1/pods" and "watch" not in seen.query
        return Drip(body=json.dumps(body).encode()) if is_list else None

    view = View()
    async with running() as (server, api):
        server.fault = fault
        watch = ClusterWatch(api, view.changes)
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: view.pods.get("slow"))


async def test_a_list_under_way_begins_again_for_who_wants_all_that_is_written() -> None:
    """A new leader takes over no list that it has to ask for again: of a large cluster each takes long."""
    replaced: list[int] = []
    listener: ObjectListener[Bare] = ObjectListener(
        lambda items: replaced.append(len(items)), lambda _: None, lambda _: None
    )
    asked = asyncio.Event()

    def never_in_time(_: ApiRequest) -> float:
        asked.set()
        return 60.0

    async with running() as (server, api):
        server.preload(_PATH + "a", a_pod("a"))
        followed = Reflection(api, Source("/api/v1/pods", ""), Bare, listener)
        server.latency = never_in_time
        async with working(followed.run), asyncio.timeout(30):
            await asked.wait()
            server.latency = lambda _: 0.0
            await followed.relist()

    assert replaced == [1]
