"""The page shows what `kubectl gpu` shows, only reads, and follows the cluster; a browser is not needed."""

import asyncio
import datetime
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tools.harness.api_server import ApiRequest, StandInApiServer, running, status, working
from tools.harness.objects import held, node, path, pod
from tools.harness.page.clusters import (
    PROMETHEUS,
    add_node,
    add_pod,
    place,
    served,
    slices_in_use,
    small,
    with_prometheus,
)
from tools.harness.waiting import until

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod
from gpu_device_plugin.overview.questions import read_cluster
from gpu_device_plugin.overview.slice_use import PREFIX
from gpu_device_plugin.overview.totals import History, NamespaceTotal
from gpu_device_plugin.page.drawing import PageParts
from gpu_device_plugin.page.rows import SliceRow
from gpu_device_plugin.page.run_page import Page, PageSettings, run_page
from gpu_device_plugin.web import http_server as web_server
from gpu_device_plugin.web.html.page_server import with_code

Cluster = tuple[StandInApiServer, ApiServer]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Eight nodes, and pods that run, wait and were refused."""
    async with running() as (server, api):
        small(server)
        yield server, api


async def text_of(url: str, status: int = 200, **options: Any) -> str:
    """A page, which is answered with that status."""
    async with aiohttp.ClientSession() as session, session.get(url, **options) as answer:
        assert answer.status == status, await answer.text()
        return await answer.text()


class Reader:
    """One reader of the events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self, wanted: str) -> dict[str, Any]:
        """The data of the next event of that name."""
        name = ""
        async with asyncio.timeout(30):
            async for line in self._answer.content:
                key, _, value = line.decode().strip().partition(": ")
                name = value if key == "event" else name
                if key == "data" and name == wanted:
                    found: dict[str, Any] = json.loads(value)
                    return found
        raise AssertionError(f"the stream ended before {wanted}")


@asynccontextmanager
async def reading(url: str, at: str = "") -> AsyncIterator[Reader]:
    """The events from where the page is now, or from a place of before."""
    if not at:
        found = re.search(r'data-at="([^"]+)"', await text_of(url))
        assert found
        at = found[1]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/events?after={at}") as answer,
    ):
        yield Reader(answer)


async def test_the_page_shows_every_slice_that_the_map_shows(cluster: Cluster) -> None:
    """With the same letter, units and state; the rules are those of `kubectl gpu map`."""
    cards = (await read_cluster(cluster[1])).cards
    async with served(cluster[1]) as url:
        page = await text_of(url)

    shown = set(re.findall(r"<title>(\S+): (\d+) of (\d+) units", page))
    views = [(card, holder) for n in cards.nodes for card in n.cards for holder in card.holders]
    assert {(str(h.pod), str(h.units), str(c.units)) for c, h in views} == shown
    assert len(shown) > 40
    for view in cards.nodes:
        for ref, letter in view.letters.items():
            shown_pod = rf'data-pod="{re.escape(str(ref))}">.*letter">{letter}</tspan>'
            assert re.search(shown_pod, page)
    assert "<title>ads/reserved-1: 5 of 15 units, reserved</title>" in page
    assert "<title>vision/finetune-1: the whole card</title>" in page
    assert "<title>vision/pretrain-2: a replica</title>" in page
    assert cards.summary in page
    for words in ("unhealthy", "not ready", "cordoned", "its cards cannot be read"):
        assert words in page
    assert re.search(r"vision/starting-1</a> \(6 units\)", page)


async def test_totals_by_namespace_are_those_of_the_map(cluster: Cluster) -> None:
    """Who holds most comes first; a line shows the last hour."""
    nodes = (await read_cluster(cluster[1])).cards.nodes
    async with served(cluster[1]) as url:
        found = re.findall(
            r"<tr.*?><th>(\w+)</th><td>(\d+)</td><td>(\d+)</td><td>([\d.]+)</td><td>(\d+)</td>",
            await text_of(url),
        )
    holders = [h for n in nodes for card in n.cards for h in card.holders]
    gib = Counter[str]()
    for holder in holders:
        gib[holder.pod.namespace] += holder.units
    *found, (name, _, held, *_) = found
    assert (name, int(held)) == ("all", gib.total())
    assert {name: int(held) for name, _, held, _, _ in found} == gib
    assert [int(held) for _, _, held, _, _ in found] == sorted(gib.values(), reverse=True)
    (vision,) = (each for each in found if each[0] == "vision")
    own = [holder for holder in holders if holder.pod.namespace == "vision"]
    assert float(vision[3]) == sum(holder.percent for holder in own) / 100
    assert (int(vision[1]), vision[4]) == (len({h.pod for h in own}) + 3, "3")


async def test_totals_by_team_are_those_of_a_label_of_the_pods(cluster: Cluster) -> None:
    """A label that changes counts at once; pods without one are a line of their own."""
    server, api = cluster
    row = r"<tr><th>([^<]+)</th><td>\d+</td><td>(\d+)</td>"
    async with served(api, {"team_label": "team"}) as url:

        async def teams() -> dict[str, int]:
            table = (await text_of(url)).partition("<th>team</th>")[2].partition("</table>")[0]
            return {t: int(gib) for t, gib in re.findall(row, table)}

        (every,) = (await teams()).values()
        assert await teams() == {"no team": every}
        value = server.objects["/api/v1/namespaces/ads/pods/reserved-1"]
        value["metadata"]["labels"] = {"team": "a<b"}
        await server.put("/api/v1/namespaces/ads/pods/reserved-1", value)

        async def is_counted() -> bool:
            return await teams() == {"no team": every - 5, "a&lt;b": 5}

        await until(is_counted)


def test_the_last_hour_is_a_line_of_steps_and_bounded() -> None:
    """A minute a step to the right, the highest at the top; nothing noted means nothing changed."""
    history = History()
    for minute, mib in ((0, 100), (10, 50), (11, 25), (11, 100)):
        history.note(minute * 60 + 5, {"ns": NamespaceTotal(mib=mib)})
    assert history.line("ns") == "48,0 49,0 49,0 59,0 59,8 60,8 60,0"
    assert set(history.line("other").split()) == {f"{x},16" for x in (48, 49, 59, 60)}
    for minute in range(1000):
        history.note(minute * 60, {f"ns-{n}": NamespaceTotal(mib=n) for n in range(1000)})
    assert len(history.line("ns-49").split()) == 121
    assert set(history.line("ns-50").split()) == {f"{x},16" for x in range(61)}


async def test_the_last_day_of_namespaces_is_that_of_prometheus(cluster: Cluster) -> None:
    """Beside the last hour, of namespaces only; a gap in what it scraped is no step."""

    def answered(seen: ApiRequest) -> web.Response | None:
        if "services/prometheus:9090" not in seen.path:
            return None
        if "[1d:24m]" not in seen.query["query"]:
            return slices_in_use(cluster[0])
        values = [[86400, "100"], [86400 + 24 * 60, "NaN"], [86400 + 2 * 24 * 60, "50"]]
        labels = {"namespace": "gpu-device-plugin", "exported_namespace": "vision"}
        return web.json_response({"data": {"result": [{"metric": labels, "values": values}]}})

    cluster[0].fault = answered
    async with served(cluster[1], {"prometheus": PROMETHEUS, "team_label": "team"}) as url:

        async def shows_the_day() -> bool:
            return "<th>memory, last day</th>" in await text_of(url)

        await until(shows_the_day)
        page = await text_of(url)
    vision = page.partition("<tr><th>vision</th>")[2].partition("</tr>")[0]
    assert 'points="57,0 58,0 58,0 60,0 60,8"' in vision
    assert "last day" not in page.partition("<th>team</th>")[2]


@pytest.mark.parametrize(
    ("name", "width", "label"),
    [
        ("asr-22", 100, "asr-22"),
        ("asr-22", 40, "asr-22"),
        ("rerank-6", 40, "rera…"),
        ("rerank-6", 20, ""),
        ("a", 2, ""),
    ],
)
def test_a_slice_shows_as_much_of_its_name_as_it_is_wide(
    name: str, width: float, label: str
) -> None:
    """A narrow one has its letter only."""
    assert SliceRow(f"ns/{name}", name, "a", "c0", 0, width, "", None).label == label


async def test_commands_look_like_commands_and_stay_text(cluster: Cluster) -> None:
    async with served(cluster[1]) as url:
        story = await text_of(f"{url}/pod/batch/big-1?part")
        page = await text_of(url)
    assert "run <code>kubectl gpu doctor</code>: it names the cure" in story
    assert "names no known mode and unit; run <code>kubectl gpu doctor</code>" in page
    assert with_code("`a` <b> `c`") == "<code>a</code> &lt;b&gt; <code>c</code>"


async def test_pods_and_nodes_link_to_grafana_where_it_is_named(cluster: Cluster) -> None:
    grafana = "https://grafana.example/d/gpu-device-plugin"
    async with served(cluster[1], {"grafana": grafana}) as url:
        assert f'"{grafana}?var-namespace=batch"' in await text_of(f"{url}/pod/batch/big-1")
        assert f'"{grafana}?var-node=gpu-000"' in await text_of(f"{url}/node/gpu-000")
    async with served(cluster[1]) as url:
        assert "Grafana" not in await text_of(f"{url}/pod/batch/big-1")
    with pytest.raises(ConfigError, match="does not begin with http"):
        await run_page(PageSettings("127.0.0.1:0", grafana="javascript:alert(1)"), cluster[1])


async def test_a_pods_story_says_who_made_it_and_when(cluster: Cluster) -> None:
    server, api = cluster
    value = place(pod("made-1", 16), "batch", "Pending")
    ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=3, minutes=5)
    owner = {"uid": "u", "kind": "ReplicaSet", "name": "web-7d4", "controller": True}
    value["metadata"] |= {"creationTimestamp": ago.isoformat(), "ownerReferences": [owner]}
    await server.put("/api/v1/namespaces/batch/pods/made-1", value)
    async with served(api) as url:
        story = await text_of(f"{url}/pod/batch/made-1?part")
    assert f"by ReplicaSet web-7d4, 3 hours ago, {ago.isoformat()[:16]}" in story


async def test_pods_without_a_card_are_listed_with_what_keeps_them(cluster: Cluster) -> None:
    async with served(cluster[1]) as url:
        page = await text_of(url)

    assert "batch/big-1</a> pending Unschedulable" in page
    assert "search/late-1</a> refused on gpu-000" in page


async def test_waiting_pods_are_parsed_when_they_change_and_not_when_the_page_is_drawn(
    cluster: Cluster,
) -> None:
    """However many wait: the page is drawn at every change of the cluster."""
    server, api = cluster
    for n in range(20):
        add_pod(server, place(pod(f"early-{n}", 16, 30), "batch", "Pending"))
    parsed = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal parsed
        parsed += event == "call" and frame.f_code is SurveyedPod.as_asking.__code__

    async with served(api) as url, reading(url) as reader:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            one = place(pod("one-more", 16, 30), "batch", "Pending")
            await server.put("/api/v1/namespaces/batch/pods/one-more", one)
            while "one-more" not in (await reader.next("parts")).get("unplaced", ""):
                pass
        finally:
            sys.setprofile(before)
    assert parsed == 1


async def test_a_node_whose_mode_offers_nothing_says_so(cluster: Cluster) -> None:
    """As a mark, and in its details."""
    add_node(cluster[0], node("gpu-off", 2, mode="disabled"))
    mark = '<strong class="mark">mode disabled offers nothing</strong>'
    async with served(cluster[1]) as url:
        assert mark in await text_of(url)
        assert mark in await text_of(f"{url}/node/gpu-off")


async def test_a_pods_story_is_that_of_why(cluster: Cluster) -> None:
    """What it asks, what was said, and what each node has for it, the fitting ones first."""
    async with served(cluster[1]) as url:
        refused = await text_of(f"{url}/pod/search/late-1?part")
        alone = await text_of(f"{url}/pod/batch/big-1")
        missing = await text_of(f"{url}/pod/ns/nobody", 404)

    assert "Allocate failed: the largest free slice is 9 units" in refused
    assert "<html" not in refused
    assert "card 1: 15 of 15 units" in refused
    assert refused.index('summary class="fits"') < refused.index('summary class="lacks"')
    assert "<html" in alone
    assert "has no card with room for it" in alone
    assert "no pod ns/nobody, and no Event about one" in missing


async def test_a_story_that_the_api_server_does_not_tell_says_so(cluster: Cluster) -> None:
    """The page goes on showing the rest; what a browser enforces goes with this answer too."""
    server, api = cluster
    async with served(api) as url, aiohttp.ClientSession() as session:
        server.fault = lambda seen: status(500, "etcd is away") if "events" in seen.path else None
        async with session.get(f"{url}/pod/batch/big-1?part") as answer:
            assert answer.status == 503
            assert "etcd is away" in await answer.text()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_names_are_input_and_never_become_markup(cluster: Cluster) -> None:
    server, api = cluster
    evil = '<img src=x onerror="alert(1)">'
    bad = node("gpu-bad")
    cards = json.loads(bad["metadata"]["annotations"]["gpu-device-plugin/cards"])
    cards["cards"][0]["model"] = evil
    bad["metadata"]["annotations"]["gpu-device-plugin/cards"] = json.dumps(cards)
    add_node(server, bad)
    add_pod(server, place(pod(evil, 2, on="gpu-bad", annotations=held(0, 2, 0)), evil))
    await server.put(
        "/api/v1/namespaces/ns/events/e",
        {
            "involvedObject": {"kind": "Pod", "name": "gone"},
            "type": "Warning",
            "reason": evil,
            "message": evil,
        },
    )
    async with served(api) as url:
        page = await text_of(url)
        story = await text_of(f"{url}/pod/ns/gone")

    for each in (page, story):
        assert "<img" not in each
        assert "&lt;img" in each


async def test_text_that_nobody_can_write_takes_the_page_from_nobody(cluster: Cluster) -> None:
    """Half of a character, by an escape of JSON inside an annotation: any tenant may write it."""
    server, api = cluster
    odd = {"gpu-device-plugin/devices": json.dumps({"0": ["\ud800"]})}
    made = pod("half", on="gpu-006", annotations=odd)
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    add_pod(server, made)
    async with served(api) as url:
        assert "half" in await text_of(f"{url}/pod/ns/half")
        assert "gpu-006" in await text_of(url)


async def test_a_node_that_cannot_be_drawn_says_so_and_takes_the_page_from_nobody(
    cluster: Cluster,
) -> None:
    """Here two figures of Prometheus whose sum is no number any more."""
    server, api = cluster
    add_pod(server, place(pod("odd", 2, 10, on="gpu-002", annotations=held(5, 2, 10)), "ns"))
    figure = "1.7e308"

    def answered(seen: ApiRequest) -> web.Response | None:
        if "services/prometheus:9090" not in seen.path:
            return None
        slices = [
            {"namespace": "ns", "pod": "odd", "card": "5", "container": container, "__name__": name}
            for container in ("a", "b")
            for name in (f"{PREFIX}memory_used_bytes", f"{PREFIX}memory_limit_bytes")
        ]
        result = [{"metric": each, "value": [1, figure]} for each in slices]
        return web.json_response({"data": {"result": result}})

    server.fault = answered
    async with served(api, {"prometheus": PROMETHEUS}, use_seconds=0.1) as url:

        async def fails_to_draw(expected: int) -> bool:
            return (await text_of(url)).count("this page cannot draw it") == expected

        await until(partial(fails_to_draw, 1))
        assert 'id="node-gpu-002"' in await text_of(url)
        figure = "1e9"
        await until(partial(fails_to_draw, 0))


async def test_a_reader_gets_the_nodes_that_have_changed_and_no_others(cluster: Cluster) -> None:
    server, api = cluster
    async with served(api) as url, reading(url) as reader:
        added = pod("new", 2, 10, on="gpu-002", annotations=held(5, 2, 10))
        await server.put(path(added), place(added, "ns"))
        parts = await reader.next("parts")
        assert {name for name in parts if name.startswith("node-")} == {"node-gpu-002"}
        assert "ns/new: 2 of 15 units" in parts["node-gpu-002"]
        assert "summary" in parts

        await server.delete("/api/v1/nodes/gpu-003")
        assert (await reader.next("parts"))["node-gpu-003"] == ""


async def test_a_reader_of_another_start_of_the_program_reads_all_of_it_again(
    cluster: Cluster,
) -> None:
    async with served(cluster[1]) as url, reading(url, "other-7") as reader:
        assert await reader.next("restart") == {}


def test_a_reader_that_was_away_while_many_nodes_came_and_went_reads_all_of_it_again() -> None:
    """What is gone is not remembered for ever."""
    parts = PageParts()
    parts.put("node-kept", "k")
    before = parts.at
    for number in range(1001):
        parts.put(f"node-{number}", "x")
        parts.put(f"node-{number}", "")

    assert parts.since(before) is None
    assert list(parts.nodes()) == ["k"]
    assert parts.since(parts.at) == {}


async def test_while_the_api_server_is_away_the_page_says_how_old_its_data_are(
    cluster: Cluster,
) -> None:
    server, api = cluster
    async with served(api) as url, reading(url) as reader:
        assert (await reader.next("age"))["trouble"] == ""
        await server.stop()
        async with asyncio.timeout(60):
            while not (told := await reader.next("age"))["trouble"] or not told["seconds"]:
                pass
        assert "gpu-000" in await text_of(url)
        await server.start()
        async with asyncio.timeout(60):
            while (await reader.next("age"))["trouble"]:
                pass


async def test_an_open_browser_does_not_hold_up_the_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is ended, however long other requests may take."""
    monkeypatch.setattr(web_server, "_SHUTDOWN_SECONDS", 600.0)
    page = served(cluster[1])
    async with reading(await page.__aenter__()) as reader:
        await reader.next("age")
        async with asyncio.timeout(60):
            await page.__aexit__(None, None, None)


async def test_use_is_shown_where_there_is_a_prometheus(cluster: Cluster) -> None:
    """In the bars, and in the story with its limits."""
    with_prometheus(cluster[0])
    async with served(cluster[1], {"prometheus": PROMETHEUS}) as url:

        async def shows_use() -> bool:
            return 'class="use"' in await text_of(url)

        await until(shows_use)
        found = re.search(
            r'data-pod="([^"]+)"><title>[^<]*uses \d+ % of its memory', await text_of(url)
        )
        assert found
        assert re.search(r"\d+ of \d+ MiB, \d+ %", await text_of(f"{url}/pod/{found[1]}?part"))


async def test_a_prometheus_may_have_an_address_of_its_own(cluster: Cluster) -> None:
    """Then the API server's proxy is not asked."""
    server, api = cluster

    async def answered(_: web.Request) -> web.Response:
        return slices_in_use(server)

    app = web.Application()
    app.router.add_get("/prom/api/v1/query", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        where = f"http://127.0.0.1:{runner.addresses[0][1]}/prom/"
        async with served(api, {"prometheus": where}) as url:

            async def shows_use() -> bool:
                return 'class="use"' in await text_of(url)

            await until(shows_use)
    finally:
        await runner.cleanup()
    assert not [seen for seen in server.requests if "proxy" in seen.path]


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (web.json_response({"data": {"result": []}}), "does it scrape the agents?"),
        (web.Response(text="<html>"), "not the answer of a Prometheus"),
        (web.Response(status=503, text="no endpoints"), "503 no endpoints"),
    ],
)
async def test_without_an_answer_of_prometheus_use_is_absent_with_a_hint(
    cluster: Cluster, answer: web.Response, hint: str
) -> None:
    server, api = cluster

    def proxied(seen: ApiRequest) -> web.Response | None:
        text = answer.text or ""
        asked = "services/prometheus" in seen.path
        return web.Response(status=answer.status, text=text) if asked else None

    server.fault = proxied
    async with served(api, {"prometheus": PROMETHEUS}) as url:

        async def hints() -> bool:
            return "use is not shown" in await text_of(url) and hint in await text_of(url)

        await until(hints)
        page = await text_of(url)
        assert 'class="use"' not in page
        assert "gpu-000" in page


async def test_without_prometheus_the_story_says_how_to_have_use(cluster: Cluster) -> None:
    async with served(cluster[1]) as url:
        assert "start the page with <code>--prometheus</code>" in await text_of(
            f"{url}/pod/batch/big-1"
        )
        assert "use is not shown" not in await text_of(url)


async def test_nothing_is_written(cluster: Cluster) -> None:
    server, api = cluster
    async with served(api) as url:
        await text_of(url)
        await text_of(f"{url}/pod/batch/big-1")

    assert {seen.method for seen in server.requests} == {"GET"}
    listed = [seen.path for seen in server.requests if "watch" not in seen.query]
    assert listed.count("/api/v1/pods") == 1


@pytest.mark.parametrize("page", ["/", "/pod/ns/nobody", "/nothing", "/static/page.js", "/healthz"])
async def test_every_answer_has_the_headers_that_a_browser_enforces(
    cluster: Cluster, page: str
) -> None:
    async with (
        served(cluster[1]) as url,
        aiohttp.ClientSession() as session,
        session.get(url + page) as answer,
    ):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"


async def test_a_name_of_another_site_that_leads_to_this_machine_is_not_served(
    cluster: Cluster,
) -> None:
    """A page of that site would be of the same origin, and could read it."""
    async with served(cluster[1]) as url:
        for host in ("evil.example", "evil.example:9448", "10.0.0.1"):
            text = await text_of(url, 421, headers={"Host": host})
            assert "gpu-000" not in text
        await text_of(url, headers={"Host": "localhost:9448"})
        await text_of(url, headers={"Host": "[::1]:9448"})


async def test_until_the_cluster_was_read_the_page_is_not_ready_and_says_why() -> None:
    async with running(is_up=False) as (_, api):
        page = Page(PageSettings("127.0.0.1:0"), api)
        async with working(page.run):
            await until(lambda: page.server.port)
            url = f"http://127.0.0.1:{page.server.port}"

            async def says_why() -> bool:
                return "connection refused" in await text_of(f"{url}/readyz", 503)

            await until(says_why)
            assert "connection refused" in await text_of(url)
