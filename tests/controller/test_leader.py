"""Of several controllers one serves kube-scheduler, and it knows what the one before it bound."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from tests.controller.replica import Running, a_replica
from tests.controller.test_webhook import S0_POD, mutated
from tools.harness.api_server import QUICK, ApiRequest, StandInApiServer, running
from tools.harness.forwarder import forwarding
from tools.harness.objects import UNITS, Json, node, path, pod
from tools.harness.waiting import PATIENCE, until

from gpu_device_plugin.controller.binder import MOST_BINDINGS
from gpu_device_plugin.controller.lease_pace import LeasePace
from gpu_device_plugin.controller.run_controller import LEASE, Times
from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION
from gpu_device_plugin.kubernetes.objects.leader_label import LEADER_LABEL
from gpu_device_plugin.web.extender_server import MUTATE, PREFIX

_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/ns/leases/{LEASE}"
Fault = Callable[[ApiRequest], web.Response | None]
# Longer than a busy machine keeps a leader from renewing it.
_QUICK = Times(
    LeasePace(lease_seconds=4.0, renew_seconds=3.0, retry_seconds=0.05), ending_seconds=0
)
_LASTING = Times(
    LeasePace(lease_seconds=600, renew_seconds=400, retry_seconds=0.05), ending_seconds=0
)
"""Leases that do not run out within a test, however busy the machine is."""


def controller_pod(name: str) -> Json:
    """The pod in which a replica runs."""
    return {"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"containers": []}}


@asynccontextmanager
async def two_replicas(
    folder: Path, nodes: tuple[Json, ...], pods: tuple[Json, ...] = (), times: Times = _QUICK
) -> AsyncIterator[tuple[StandInApiServer, Running, Running]]:
    """Two controllers of one cluster; the first one leads."""
    async with running() as (server, _):
        for each in nodes:
            await server.put(f"/api/v1/nodes/{each['metadata']['name']}", each)
        for each in (*pods, controller_pod("one"), controller_pod("two")):
            await server.put(path(each), each)
        async with a_replica(server, folder, "one", times) as one:
            await until(lambda: one.controller.leadership.leads())
            async with a_replica(server, folder, "two", times) as two:
                yield server, one, two


def holder(server: StandInApiServer) -> str:
    """Who holds the Lease."""
    return str(server.objects[_LEASE]["spec"]["holderIdentity"])


def labelled(server: StandInApiServer) -> list[str]:
    """Pods that the Service of the leader selects."""
    return [
        value["metadata"]["name"]
        for value in server.objects.values()
        if (value["metadata"].get("labels") or {}).get(LEADER_LABEL) == "true"
    ]


def cut_off(name: str, *, also: Callable[[ApiRequest], bool] = lambda _: True) -> Fault:
    """A network that lets nothing of this replica through."""

    def fault(seen: ApiRequest) -> web.Response | None:
        is_its = seen.authorization == f"Bearer {name}" and also(seen)
        return web.json_response({}, status=503) if is_its else None

    return fault


async def test_only_the_leader_serves_kube_scheduler_and_every_replica_is_ready(
    tmp_path: Path,
) -> None:
    """The other one says who leads; what it knows it shows."""
    async with two_replicas(tmp_path, (node("n1"),), times=_LASTING) as (server, one, two):
        assert (await one.filter(pod("new", 2, 30), "n1"))["NodeNames"] == ["n1"]
        refused = (503, "two does not lead: one does\n")

        async def knows_who_leads() -> bool:
            return bool(await two.call("filter", {}) == refused)

        await until(knows_who_leads)
        for verb in ("prioritize", "preempt", "bind"):
            assert await two.call(verb, {}) == refused
        assert (await two.get("/gpushare-scheduler/inspect"))[0] == 200
        assert (await two.get("/readyz", port=two.controller.pages.port))[0] == 200
        await until(lambda: (holder(server), labelled(server)) == ("one", ["one"]))


async def test_a_client_that_keeps_its_connection_gets_to_the_next_leader(tmp_path: Path) -> None:
    """The former leader lives, and a Service sends only new connections to the next one."""
    async with (
        two_replicas(tmp_path, (node("n1"),)) as (server, one, two),
        forwarding(one.controller.server.port) as service,
        aiohttp.ClientSession() as session,
    ):

        async def ask() -> int:
            url = f"http://127.0.0.1:{service.port}{PREFIX}/filter"
            body = {"Pod": pod("new", 2, 30), "NodeNames": ["n1"]}
            try:
                async with session.post(url, json=body) as response:
                    await response.read()
                    return response.status
            except aiohttp.ClientConnectionError:  # closed when the lead ended
                return 0

        assert [await ask(), await ask(), service.accepted] == [200, 200, 1]
        server.fault = cut_off("one", also=lambda seen: "leases" in seen.path)
        service.target = two.controller.server.port
        # Asked over and over, it is never idle when the lead ends.
        while await ask() == 200 and service.accepted == 1:
            pass

        async def is_served() -> bool:
            return await ask() == 200

        await until(is_served)
        assert two.controller.leadership.leads()


async def test_when_its_lead_ends_a_replica_closes_the_connections_of_kube_scheduler_alone(
    tmp_path: Path,
) -> None:
    """kube-scheduler's next call goes to the next leader; the API server's to anyone."""
    async with two_replicas(tmp_path, (node("n1"),)) as (server, one, _):
        with contextlib.ExitStack() as stack:

            async def kept(path: str, body: Json) -> asyncio.StreamReader:
                """An idle connection that had an answer."""
                port = one.controller.server.port
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                text = json.dumps(body).encode()
                head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(text)}\r\n\r\n"
                writer.write(head.encode() + text)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert b"connection: close" not in answer
                await reader.readexactly(int(answer.partition(b"content-length: ")[2].split()[0]))
                return reader

            question = {"Pod": pod("new", 2, 30), "NodeNames": ["n1"]}
            scheduler = await kept(f"{PREFIX}/filter", question)
            webhook = await kept(MUTATE, {})
            server.fault = cut_off("one", also=lambda seen: "leases" in seen.path)
            await until(scheduler.at_eof)
            assert not one.controller.leadership.leads()
            assert not webhook.at_eof()


async def test_whoever_does_not_lead_closes_the_connection_with_every_answer(
    tmp_path: Path,
) -> None:
    """Whatever the answer is."""
    async with two_replicas(tmp_path, (node("n1"),), times=_LASTING) as (_, one, two):
        for replica, closes in ((one, False), (two, True)):
            url = f"http://127.0.0.1:{replica.controller.server.port}{PREFIX}"
            for verb in ("filter", "prioritize", "preempt", "bind"):
                async with replica.session.post(f"{url}/{verb}", json={}) as response:
                    assert (response.headers.get("Connection") == "close") is closes, verb


async def test_at_its_end_a_leader_gives_the_lead_away_at_once(tmp_path: Path) -> None:
    """The label goes with it, from the pod that has it to the one that leads."""
    async with running() as (server, _):
        for name in ("one", "two"):
            await server.put(path(controller_pod(name)), controller_pod(name))
        async with contextlib.AsyncExitStack() as first:
            one = await first.enter_async_context(a_replica(server, tmp_path, "one", _LASTING))
            await until(lambda: one.controller.leadership.leads())
            async with a_replica(server, tmp_path, "two", _LASTING) as two:
                await first.aclose()
                await until(lambda: two.controller.leadership.leads())
                await until(lambda: labelled(server) == ["two"])
        assert (holder(server), labelled(server)) == ("", [])


async def test_a_leader_that_died_loses_lead_and_label_to_the_next(tmp_path: Path) -> None:
    """Nobody took the label off the dead one's pod."""
    async with two_replicas(tmp_path, (node("n1"),)) as (server, one, two):
        await until(lambda: labelled(server) == ["one"])
        server.fault = cut_off("one")
        await until(lambda: two.controller.leadership.leads())
        assert not one.controller.leadership.leads()
        await until(lambda: labelled(server) == ["two"])


async def test_a_new_leader_knows_what_was_bound_though_its_watch_is_silent(tmp_path: Path) -> None:
    """It reads the cluster past every cache before it answers."""
    late = pod("late", 15, 100)
    async with two_replicas(tmp_path, (node("n1", 1),), (late,)) as (server, one, two):
        mute = cut_off("two", also=lambda seen: "watch" in seen.query)
        server.fault = mute
        await server.drop_watches()
        new = pod("new", 15, 100)
        await server.put(path(new), new)
        assert await one.bind(new, "n1") == ""

        def fault(seen: ApiRequest) -> web.Response | None:
            is_one = seen.authorization == "Bearer one"
            return web.json_response({}, status=503) if is_one else mute(seen)

        server.fault = fault
        await until(lambda: two.controller.leadership.leads())
        lists = [
            seen.query for seen in server.seen("GET", "/api/v1/pods") if "watch" not in seen.query
        ]
        assert "resourceVersion" not in lists[-1]
        assert "no longer fits node n1" in await two.bind(late, "n1")


_LASTS = re.compile("fits node|is bound")
"""kube-scheduler asks again after any other error: on a busy machine a call may come too late."""


async def tried(replica: Running, each: Json, at: int) -> str:
    """Ask a replica to bind a pod to one of ten nodes; why not, or ""."""
    meta = each["metadata"]
    body = {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": f"n{at % 10}",
    }
    try:
        answer = await replica.call("bind", body)
    except aiohttp.ClientConnectionError:  # closed when the lead ended
        return "503"
    return str(answer["Error"]) if isinstance(answer, dict) else "503"


async def bound_by(
    replica: Running, lanes: asyncio.Semaphore, each: Json, at: int, most_tries: int = 1000
) -> str:
    """Ask a replica again while it says that another try may help; why not, or ""."""
    error = ""
    async with lanes:
        for _ in range(most_tries):
            error = await tried(replica, each, at)
            if not error or _LASTS.search(error) or most_tries == 1:
                break
            await until(lambda: replica.controller.leadership.leads())
    return error


@pytest.mark.long
async def test_a_thousand_binds_and_a_leader_that_is_cut_off_give_nothing_twice(
    tmp_path: Path,
) -> None:
    """Both replicas are asked for every pod, over and over, until the second one leads (R-541)."""
    nodes = tuple(node(f"n{number}", 4) for number in range(10))
    pods = tuple(pod(f"p{number}", 2, 10) for number in range(500))
    # Five hundred calls at once keep a busy machine from renewing a Lease of a second.
    pace = LeasePace(lease_seconds=8, renew_seconds=6, retry_seconds=0.05)
    times = replace(_QUICK, lease=pace)
    async with two_replicas(tmp_path, nodes, pods, times) as (server, one, two):
        lanes = asyncio.Semaphore(MOST_BINDINGS)  # more are refused at once
        first = [
            asyncio.ensure_future(bound_by(one, lanes, each, at, most_tries=1))
            for at, each in enumerate(pods)
        ]
        leadership = one.controller.leadership  # which a busy machine may take from it before
        await until(
            lambda: len(server.seen("POST", "/binding")) > 100 or not leadership.leads(), 20
        )
        server.fault = cut_off("one")
        await until(lambda: two.controller.leadership.leads())
        assert await tried(one, pods[0], 0) == "503"
        # On a busy machine the second one may lose the lead for a moment; kube-scheduler asks again.
        async with asyncio.timeout(60 * PATIENCE):
            second = await asyncio.gather(
                *(bound_by(two, lanes, each, at) for at, each in enumerate(pods))
            )
        await asyncio.gather(*first)
        objects = [server.objects[path(each)] for each in pods]

    given: Counter[tuple[str, str]] = Counter()
    for each in objects:
        if each["spec"]["nodeName"]:
            for card, units in json.loads(each["metadata"]["annotations"][ALLOCATION])["0"].items():
                given[each["spec"]["nodeName"], card] += units
    # Seven pods of 2 units on each of forty cards of 15.
    assert set(given.values()) == {14}
    assert len(given) == 40
    assert any("fits node" in error for error in second)


async def test_a_leader_whose_time_is_up_while_it_reads_a_pod_does_not_bind_it(
    tmp_path: Path,
) -> None:
    """The call came in time; by the time of the binding another replica may lead."""
    new = pod("new", 2, 30)
    async with two_replicas(tmp_path, (node("n1"),)) as (server, one, _):
        server.fault = cut_off("one", also=lambda seen: "watch" in seen.query)
        await server.drop_watches()
        await server.put(path(new), new)

        def fault(seen: ApiRequest) -> web.Response | None:
            if seen.method == "GET" and seen.path == path(new):
                one.controller.leadership.until = 0.0
            return cut_off("one", also=lambda seen: "leases" in seen.path)(seen)

        server.fault = fault
        assert "one is about to lead" in await one.bind(new, "n1")
        assert not server.seen("POST", "/binding")


async def test_what_was_reserved_for_a_pod_that_ended_unseen_is_free_again(tmp_path: Path) -> None:
    """It was bound by an answer that got lost and deleted while the watch was cut."""
    new = pod("new", 15, 100)
    async with two_replicas(tmp_path, (node("n1", 1),)) as (server, one, _):
        server.fault = cut_off("one", also=lambda seen: "watch" in seen.query)
        await server.drop_watches()
        await server.put(path(new), new)
        assert await one.bind(new, "n1") == ""
        ledger = one.controller.ledger
        assert ledger.rooms("n1")[0].free_mem == 0
        await server.delete(path(new))
        await server.compact()
        server.fault = lambda _: None
        await until(lambda: ledger.rooms("n1")[0].free_mem == UNITS)


async def test_behind_a_proxy_that_passes_nothing_on_a_leader_does_not_go_on_answering(
    tmp_path: Path,
) -> None:
    """Its watches are open and silent; /readyz says for how long, and a metric does."""
    api = replace(QUICK, silence_seconds=0.5)
    times = replace(_LASTING, stale_seconds=0.1, api=api)
    async with (
        running() as (server, _),
        forwarding(server.port) as proxy,
        a_replica(server, tmp_path, "one", times, api_port=proxy.port) as one,
    ):
        await server.put("/api/v1/nodes/n1", node("n1"))
        await until(lambda: one.controller.leadership.leads())

        async def says(words: str) -> bool:
            return words in (await one.get("/readyz", port=one.controller.pages.port))[1]

        await until(lambda: says("; leads; the watch has been silent for 0 s"))
        proxy.is_passing = False
        # Of another list that is silent it says so too, perhaps before.
        await until(lambda: says("the ledger is not current: watch of"))
        assert (await one.filter(pod("new", 2, 30), "n1"))[0] == 503
        _, metrics = await one.get("/metrics", port=one.controller.pages.port)
        assert "gpu_controller_watch_silent_seconds " in metrics
        proxy.is_passing = True
        await until(lambda: says("; leads"))


async def test_a_view_that_nothing_renews_counts_as_none_after_a_while(tmp_path: Path) -> None:
    """kube-scheduler gets 503 and the page says why; the webhook needs no pods and goes on."""
    times = replace(_QUICK, stale_seconds=0.2)
    async with running() as (server, _), a_replica(server, tmp_path, "one", times) as one:
        await until(lambda: one.controller.leadership.leads())

        seen_last = ""

        async def page() -> tuple[int, str]:
            nonlocal seen_last
            status, seen_last = await one.get("/readyz", port=one.controller.pages.port)
            return status, seen_last

        server.fault = lambda seen: (
            web.json_response({"message": "no rights"}, status=403)
            if seen.path == "/api/v1/pods"
            else None
        )
        await server.drop_watches()

        async def is_stale() -> bool:
            status, text = await page()
            return status == 200 and "not current: watch of /api/v1/pods: 403 no rights" in text

        await until(is_stale, tell=lambda: seen_last)
        assert (await one.get("/gpushare-scheduler/inspect"))[0] == 503
        assert (await one.filter(pod("new", 2, 30), "n1"))[0] == 503
        assert (await mutated(one, S0_POD))["spec"]["affinity"]
        server.fault = lambda _: None

        async def leads_again() -> bool:
            return "; leads" in (await page())[1]

        await until(leads_again, tell=lambda: seen_last)
