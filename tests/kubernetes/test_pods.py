"""The view of the node's pods is right again after anything the API server does."""

import socket
import time
from typing import Any

import pytest
from tools.harness.api_server import ApiRequest, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.pod_watch import PodWatch

LIST = "/api/v1/pods"


def path(name: str) -> str:
    """Where the pod `name` lives."""
    return f"/api/v1/namespaces/ns/pods/{name}"


def pod(name: str, *, mem: int = 2, uid: str = "", node: str = "n1", **fields: Any) -> Any:
    """A pod that asks for `mem` units."""
    limits = {"aliyun.com/gpu-mem": str(mem)}
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "a", "resources": {"limits": limits}}]},
        **fields,
    }


async def test_pods_are_listed_then_followed_and_others_nodes_are_not_ours() -> None:
    """Added, changed and deleted pods show, each change calls back once; a finished one is gone."""
    changed: list[PodRequest] = []
    gone: list[PodRef] = []
    async with running() as (server, api):
        await server.put(path("old"), pod("old"))
        await server.put(path("far"), pod("far", node="n2"))
        watch = PodWatch(api, "n1", on_change=changed.append, on_gone=gone.append)
        async with working(watch.run):
            await until(lambda: watch.is_synced)
            assert set(watch.pods) == {("ns", "old")}

            await server.put(path("new"), pod("new", mem=4))
            await until(lambda: ("ns", "new") in watch.pods)
            await server.put(path("new"), pod("new", mem=4, status={"phase": "Running"}))
            await server.put(path("new"), pod("new", mem=4, status={"phase": "Succeeded"}))
            await until(lambda: ("ns", "new") not in watch.pods)
            await server.delete(path("old"))
            await until(lambda: ("ns", "old") not in watch.pods)

    assert [p.ref.name for p in changed] == ["old", "new"]
    assert [ref.uid for ref in gone] == ["uid-new", "uid-old"]


async def test_a_dropped_connection_goes_on_where_it_was() -> None:
    """No second list, and what happened meanwhile is seen."""
    async with running() as (server, api):
        watch = PodWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: any("watch" in s.query for s in server.requests))
            await server.drop_watches()
            await server.put(path("p"), pod("p"))
            await until(lambda: ("ns", "p") in watch.pods)

        lists = [s for s in server.seen("GET", LIST) if "watch" not in s.query]
        assert len(lists) == 1


async def test_a_watch_that_is_open_again_ends_the_outage_though_nothing_happens() -> None:
    """`get` fails at once while the server is away, so silence must not look like that."""
    async with running() as (server, api):
        watch = PodWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: any("watch" in s.query for s in server.requests))
            await server.drop_watches()
            await until(lambda: api.availability.is_away)
            await until(lambda: not api.availability.is_away)

            assert not watch.trouble
            assert await watch.get("ns", "p", 30.0) is None


@pytest.mark.parametrize("how", ["refusal", "error line"])
async def test_after_410_everything_is_listed_again(how: str) -> None:
    """Both forms of "too old": the refused watch, and the error inside a running one."""
    gone: list[PodRef] = []
    async with running() as (server, api):
        await server.put(path("lost"), pod("lost"))
        watch = PodWatch(api, "n1", on_gone=gone.append)
        async with working(watch.run):
            await until(lambda: any("watch" in s.query for s in server.requests))
            if how == "refusal":
                server.fault = lambda seen: status(503, "later") if seen.query else None
                await server.drop_watches()
                await server.delete(path("lost"))
                await server.put(path("new"), pod("new"))
                await server.compact()
                server.fault = lambda _: None
            else:
                server.objects.pop(path("lost"))
                server.objects[path("new")] = pod("new")
                error = {"kind": "Status", "code": 410, "message": "too old resource version"}
                await server.send_raw(path("x"), "ERROR", error)
            await until(lambda: set(watch.pods) == {("ns", "new")})

        assert gone == [PodRef("ns", "lost", "uid-lost")]
        last = [s for s in server.seen("GET", LIST) if "watch" not in s.query][-1]
        assert "resourceVersion" not in last.query, "a list from the cache may be as old again"


async def test_a_pod_made_again_under_its_name_is_first_gone() -> None:
    """A StatefulSet's pod keeps its name; the old uid is reported gone also after a relist."""
    told: list[str] = []
    async with running() as (server, api):
        await server.put(path("p"), pod("p", uid="1"))
        watch = PodWatch(
            api,
            "n1",
            on_change=lambda p: told.append(f"+{p.ref.uid}"),
            on_gone=lambda ref: told.append(f"-{ref.uid}"),
        )
        async with working(watch.run):
            await until(lambda: watch.pods)
            await server.put(path("p"), pod("p", uid="2"))
            await until(lambda: watch.pods["ns", "p"].ref.uid == "2")

    assert told == ["+1", "-1", "+2"]


async def test_bookmarks_move_the_version_on() -> None:
    """After a quiet time the watch resumes behind what has been compacted."""
    async with running() as (server, api):
        watch = PodWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: any("watch" in s.query for s in server.requests))
            bookmark = {"kind": "Bookmark"}
            await server.send_raw("/api/v1/namespaces/ns/pods/x", "BOOKMARK", bookmark)
            version = bookmark["metadata"]["resourceVersion"]  # type: ignore[index]
            await until(lambda: watch._reflection._version == version)
            await server.drop_watches()
            await until(
                lambda: any(s.query.get("resourceVersion") == version for s in server.requests)
            )

        assert not watch.pods


async def test_the_watch_survives_an_api_server_that_is_away_at_first() -> None:
    """Nothing crashes while it is away; within the pace after it is back, all is known."""
    told: list[bool] = []
    async with running(is_up=False) as (server, api):
        api.availability.subscribe(lambda: told.append(api.availability.is_away))
        watch = PodWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: api.availability.is_away)
            assert not watch.is_synced
            server.objects[path("p")] = pod("p")
            await server.start()
            await until(lambda: ("ns", "p") in watch.pods)

        assert told == [True, False]


async def test_an_object_longer_than_any_buffer_arrives() -> None:
    """A megabyte of annotations does not break the watch."""
    async with running() as (server, api):
        watch = PodWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: watch.is_synced)
            big = pod("p")
            big["metadata"]["annotations"] = {"a": "x" * 1_000_000}
            await server.put(path("p"), big)
            await until(lambda: ("ns", "p") in watch.pods)


async def test_get_asks_once_and_knows_absent_from_unknown() -> None:
    """None is "not on this node"; an API server that cannot tell raises."""
    async with running() as (server, api):
        await server.put(path("p"), pod("p"))
        await server.put(path("far"), pod("far", node="n2"))
        watch = PodWatch(api, "n1")

        found = await watch.get("ns", "p", 30.0)
        assert found is not None
        assert found.ref.uid == "uid-p"
        assert await watch.get("ns", "far", 30.0) is None
        assert await watch.get("ns", "none", 30.0) is None
        assert len(server.requests) == 3

        server.fault = lambda _: status(500, "etcd has no leader")
        with pytest.raises(ClusterError, match="etcd has no leader"):
            await watch.get("ns", "p", 30.0)
        await server.stop()
        # By the connection of before, or a new one where its end was seen already.
        with pytest.raises(ClusterError, match=r"pods/p|connection refused"):
            await watch.get("ns", "p", 30.0)


async def test_get_gives_up_at_its_deadline() -> None:
    """A server that accepts and says nothing costs no more than the deadline."""
    async with running(is_up=False) as (server, api):
        # The kernel completes the connection; nobody ever accepts it.
        with (
            socket.create_server(("127.0.0.1", server.port)),
            pytest.raises(ClusterError, match="GET /api/v1/namespaces/ns/pods/p"),
        ):
            await PodWatch(api, "n1").get("ns", "p", 0.05)


async def test_a_refused_list_is_told_until_it_is_served() -> None:
    """Missing rights are no outage: other requests go on, and the reason can be read."""
    async with running() as (server, api):
        server.fault = lambda _: status(403, 'User "agent" cannot list resource "pods"')
        watch = PodWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: "cannot list" in watch.trouble)
            assert not api.availability.is_away
            assert not watch.is_synced

            server.fault = lambda _: None
            await until(lambda: watch.is_synced)
            assert not watch.trouble


async def test_a_node_asks_at_most_once_a_turn_while_the_api_is_away() -> None:
    """Three loops that share one client do not make three times the requests."""
    async with running() as (server, api):
        turns: list[ApiRequest] = []

        def refuse(seen: ApiRequest) -> Any:
            turns.append(seen)
            return status(503, "starting")

        server.fault = refuse
        watches = [PodWatch(api, "n1") for _ in range(3)]
        # From the first request on: on a slow machine turns that are past come close together.
        began = time.monotonic()
        async with working(*(w.run for w in watches)):
            await until(lambda: len(turns) >= 15)
            spent, asked = time.monotonic() - began, len(turns)

    # Each loop's first request went out before anybody knew.
    assert spent >= (asked - len(watches)) * api.availability.pace.away_seconds
