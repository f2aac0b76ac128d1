"""In a real browser: what is drawn, filters, keys, themes, updates; no error and no refused script.

In Chromium, what depends on the browser in Firefox too; skipped where there is none. With GPU_DEVICE_PLUGIN_PICTURES=DIRECTORY pictures are left there.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tools.harness.api_server import StandInApiServer, running, working
from tools.harness.objects import held, node, path, pod
from tools.harness.page.browser import Browser, browser
from tools.harness.page.clusters import PROMETHEUS, fill, place, served, small, with_prometheus
from tools.harness.waiting import until

from gpu_device_plugin.page.run_page import Page, PageSettings, PageTimes

pytestmark = pytest.mark.long

PICTURES = os.environ.get("GPU_DEVICE_PLUGIN_PICTURES", "")
SHOWN = "[...document.querySelectorAll('.node:not([hidden])')].map(n => n.dataset.name).join(' ')"
FOCUS = (
    "document.activeElement.id || document.activeElement.dataset.pod || document.activeElement.name"
)
Seen = tuple[StandInApiServer, Browser, str]
BOTH = pytest.mark.parametrize("seen", ["chromium", "firefox"], indirect=True)


@pytest.fixture
async def seen(request: pytest.FixtureRequest) -> AsyncIterator[Seen]:
    """The small cluster in a browser."""
    async with running() as (server, api), browser(getattr(request, "param", "chromium")) as tab:
        small(server)
        with_prometheus(server)
        async with served(api, {"prometheus": PROMETHEUS}) as url:
            await tab.looks(1440, 900, "light")
            await tab.open(url + "/")
            await holds(tab, "document.querySelectorAll('.use').length > 40")
            yield server, tab, url
            assert tab.complaints == []


async def holds(tab: Browser, expression: str) -> None:
    """It becomes true, and is drawn."""
    await until(lambda: tab.value(f"Boolean({expression})"), tell=lambda: expression)
    await tab.drawn()


async def becomes(tab: Browser, expression: str, wanted: object) -> None:
    """It has that value at last, and is drawn."""
    found: object = None

    async def is_it() -> bool:
        nonlocal found
        found = await tab.value(expression)
        return found == wanted

    await until(is_it, tell=lambda: f"{expression} is {found!r} and not {wanted!r}")
    await tab.drawn()


async def fits_across(tab: Browser) -> None:
    """Nothing needs scrolling to the side."""
    await holds(tab, "document.documentElement.scrollWidth <= innerWidth")


async def pictured(tab: Browser, name: str) -> None:
    """Leave a picture, where they are wanted."""
    if PICTURES:
        await tab.picture(Path(PICTURES) / name)


async def typed(tab: Browser, name: str, value: str) -> None:
    """Fill in a filter."""
    await tab.value(
        f"(f => {{ f.value = {value!r}; f.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.querySelector('#filters [name={name}]'))"
    )


@BOTH
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [2560, 1280, 390])
async def test_everything_fits_the_window(seen: Seen, width: int, scheme: str) -> None:
    """No scrolling to the side, the heading is one row where there is room, and the colours are those of the system."""
    _, tab, _ = seen
    await tab.looks(width, 900, scheme)

    await fits_across(tab)
    if width > 900:
        same_row = (
            "#theme').offsetTop < document.querySelector('h1').getBoundingClientRect().bottom"
        )
        await holds(tab, f"document.querySelector('{same_row}")
    dark = "getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'"
    await becomes(tab, dark, scheme == "dark")
    await pictured(tab, f"page-{width}-{scheme}.png")


@BOTH
async def test_filters_leave_the_nodes_that_match_all_of_them(seen: Seen) -> None:
    _, tab, url = seen
    for state, names in (("closed", "gpu-005"), ("unhealthy", "gpu-004 gpu-007")):
        await typed(tab, "state", state)
        await becomes(tab, SHOWN, names)
    await typed(tab, "text", "u-004")
    await becomes(tab, SHOWN, "gpu-004")
    await typed(tab, "text", "no such thing")
    await becomes(tab, SHOWN, "")
    await holds(tab, "!document.querySelector('#none').hidden")
    await holds(tab, "document.querySelector('#unplaced').hidden")
    await typed(tab, "sort", "free")
    await holds(tab, "document.querySelector('#none a').href.endsWith('/?sort=free')")

    await tab.open(f"{url}/?state=waiting")
    await becomes(tab, SHOWN, "gpu-005")
    await typed(tab, "state", "")
    await typed(tab, "namespace", "ads")
    other = "[...document.querySelectorAll('.node:not([hidden]) .slice:not(.dim)')]"
    await holds(tab, f"{other}.every(s => s.dataset.pod.startsWith('ads/'))")
    await becomes(tab, "location.search", "?namespace=ads")

    await typed(tab, "text", "Asr")
    named = "[...document.querySelectorAll('.slice:not(.dim)')].map(s => s.dataset.pod)"
    both = f"{named}.length > 0 && {named}.every(p => p.startsWith('ads/asr'))"
    await holds(tab, both.replace(".slice", ".node:not([hidden]) .slice"))
    lit = ".every(n => n.querySelector('.slice:not(.dim)'))"
    await holds(tab, f"[...document.querySelectorAll('.node:not([hidden])')]{lit}")


@BOTH
async def test_in_the_heat_map_cards_without_a_pod_that_matches_are_pale(seen: Seen) -> None:
    _, tab, _ = seen
    await typed(tab, "view", "heat")
    held_by = "[...document.querySelectorAll('.node:not([hidden]) .card')].map(card => [{}])"
    opacity = "getComputedStyle(card.querySelector('.bar')).opacity"
    pods = "...[...card.querySelectorAll('.slice')].map(slice => slice.dataset.pod)"
    await typed(tab, "namespace", "ads")
    await holds(tab, "document.querySelector('.other')")
    cards = await tab.value(held_by.format(f"{opacity}, {pods}"))
    has_ads = [any(pod.startswith("ads/") for pod in held_pods) for _, *held_pods in cards]
    assert [shown for shown, *_ in cards] == ["1" if has else "0.2" for has in has_ads]
    assert {*has_ads} == {True, False}
    await typed(tab, "namespace", "")
    await becomes(tab, "document.querySelectorAll('.other').length", 0)


async def test_filters_leave_the_waiting_pods_that_match(seen: Seen) -> None:
    """Their namespaces are offered too: here nobody in `batch` or `late` holds anything else."""
    server, tab, _ = seen
    late = place(pod("late-2", 16, 30), "late", "Pending")
    await server.put("/api/v1/namespaces/late/pods/late-2", late)
    await holds(tab, "[...document.querySelectorAll('option')].some(o => o.value === 'late')")
    waiting = (
        "[...document.querySelectorAll('#unplaced li:not([hidden]) a')].map(a => a.dataset.pod)"
        ".join(' ')"
    )
    await typed(tab, "namespace", "late")
    await becomes(tab, waiting, "late/late-2")
    await typed(tab, "namespace", "")
    await typed(tab, "text", "big")
    await becomes(tab, waiting, "batch/big-1")


async def test_of_many_waiting_pods_some_of_each_namespace_are_searched(seen: Seen) -> None:
    """The heading counts those that match, and a line says how many more there are."""
    server, tab, _ = seen
    for n in range(250):
        more = place(pod(f"many-{n}", 16, 30), "aaa", "Pending")
        await server.put(f"/api/v1/namespaces/aaa/pods/many-{n}", more)
    shown = "document.querySelectorAll('#unplaced li:not([hidden])').length"
    told = "document.querySelector('#unplaced h2').textContent"
    rest = "document.querySelector('#unplaced .hint').textContent"
    await becomes(tab, told, "Without a card: 252 pods")
    await becomes(tab, rest, "and 202 more")
    await becomes(tab, shown, 50)
    await typed(tab, "namespace", "batch")
    await becomes(tab, shown, 1)
    await becomes(tab, told, "Without a card")
    await becomes(tab, rest, "52 more are not searched")
    await typed(tab, "text", "nobody")
    await becomes(tab, shown, 0)
    await becomes(tab, rest, "52 more are not searched")


async def test_who_has_room_is_answered_card_by_card(seen: Seen) -> None:
    """Unhealthy cards, those of closed nodes, those given whole, and those whose mode refuses what is asked have none."""
    _, tab, _ = seen
    await typed(tab, "units", "15")
    await typed(tab, "percent", "5")
    lit = "[...document.querySelectorAll('.node:not([hidden]) .room')].map(c => c.title.slice(-9))"
    await holds(tab, f"{lit}.length")
    assert not await tab.value(f"{lit}.some(card => card.startsWith('gpu-004'))")
    await typed(tab, "percent", "")
    # As `kubectl gpu capacity` counts: mode core_mem refuses who asks for no percent.
    await holds(tab, f"{lit}.length && {lit}.every(card => card.startsWith('gpu-004'))")
    empty = await tab.value(f"{lit}.join(' ')")
    assert "gpu-004-2" in empty.split()
    assert "gpu-004-1" not in empty.split()
    assert "gpu-005-0" not in empty.split()
    told = f" of 8 nodes, {len(empty.split())} cards with room"
    await holds(tab, f"document.querySelector('#shown').value.endsWith('{told}')")
    await typed(tab, "percent", "100")
    await typed(tab, "units", "")
    # Node gpu-004 does not divide compute.
    await holds(tab, f"{lit}.length && !{lit}.some(card => card.startsWith('gpu-004'))")


async def test_an_unhealthy_card_is_crossed_out_over_its_slices(seen: Seen) -> None:
    """A full one too, in bars and compact; a search for its UUID marks it and no other."""
    server, tab, _ = seen
    full = pod("full-1", 15, 100, on="gpu-004", annotations=held(1, 15, 100))
    await server.put("/api/v1/namespaces/ads/pods/full-1", place(full, "ads"))
    card = "document.querySelector('#node-gpu-004 [data-uuid=gpu-gpu-004-1]')"
    await holds(tab, f"{card} && {card}.querySelector('.slice')")
    last = f"{card}.querySelector('.bar').lastElementChild"
    for view in ("bars", "compact"):
        await typed(tab, "view", view)
        await holds(tab, f"{last}.matches('.sick') && {last}.getClientRects().length")
    # From one corner to the other, however wide the bar is.
    width = "getBoundingClientRect().width"
    await holds(tab, f"Math.abs({last}.{width} - {last}.closest('svg').{width}) < 4")
    await becomes(tab, "document.querySelectorAll('.card:not(.out) .sick').length", 0)
    await typed(tab, "text", "GPU-gpu-004-1")
    await becomes(
        tab, "[...document.querySelectorAll('.found')].map(c => c.dataset.uuid)", ["gpu-gpu-004-1"]
    )
    await typed(tab, "text", "")
    await becomes(tab, "document.querySelectorAll('.found').length", 0)


async def test_pods_of_one_owner_without_a_card_are_one_line(seen: Seen) -> None:
    """With what they ask; of those that match the link is the first, and line and heading count no others."""
    server, tab, _ = seen
    heading = "document.querySelector('#unplaced h2').textContent"
    owner = {"uid": "u", "kind": "ReplicaSet", "name": "web", "controller": True}
    for n in range(120):
        more = place(pod(f"web-{n}", 16, 30), "late", "Pending")
        more["metadata"]["ownerReferences"] = [owner]
        await server.put(f"/api/v1/namespaces/late/pods/web-{n}", more)
    await becomes(tab, heading, "Without a card: 122 pods")
    lines = "[...document.querySelectorAll('#unplaced li:not([hidden])')]"
    await becomes(tab, f"{lines}.length", 3)
    of_web = "and 119 more of ReplicaSet web pending, asks 16 units, 30 %"
    await holds(tab, f"{lines}.some(l => l.textContent.replace(/  /g, ' ').includes('{of_web}'))")
    link = (
        "(a => [a.dataset.pod, a.pathname])(document.querySelector('#unplaced li:not([hidden]) a'))"
    )
    for text, first, head, others in (
        ("web-17", "late/web-17", "Without a card", ""),
        ("web-11", "late/web-11", "Without a card: 11 pods", " and 10 more of ReplicaSet web"),
    ):
        await typed(tab, "text", text)
        await becomes(tab, heading, head)
        await becomes(
            tab, f"{lines}.map(l => l.innerText)", [f"{first}{others} pending, asks 16 units, 30 %"]
        )
        await becomes(tab, link, [first, f"/pod/{first}"])
    await typed(tab, "text", "")
    await becomes(tab, heading, "Without a card: 122 pods")
    await holds(tab, f"{lines}.some(l => l.innerText.includes('late/web-0 and 119 more of '))")


async def test_nodes_are_sorted_and_grouped(seen: Seen) -> None:
    server, tab, _ = seen
    await server.put("/api/v1/nodes/gpu-008", node("gpu-008", 2, mode="disabled"))
    # A card, not ready and cordoned, unreadable, offers nothing.
    await holds(tab, f"{SHOWN}.startsWith('gpu-004 gpu-005 gpu-007 gpu-008 gpu-000 ')")
    await typed(tab, "sort", "name")
    await holds(tab, f"{SHOWN}.startsWith('gpu-000 gpu-001 ')")
    await typed(tab, "sort", "free")
    free = "[...document.querySelectorAll('.node')].map(n => Number(n.dataset.free))"
    await holds(tab, f"{free}.every((each, at, list) => !at || list[at - 1] >= each)")
    await typed(tab, "group", "zone")
    groups = "[...document.querySelectorAll('.group:not([hidden])')].map(g => g.textContent)"
    names = f"{groups}.map(text => text.split(',')[0])"
    await becomes(tab, names, ["eu-1a: 1 node", "no zone: 8 nodes"])
    await typed(tab, "text", "gpu-000")
    await becomes(tab, f"{groups}.length", 1)


async def test_a_node_that_is_opened_tells_of_its_cards_and_moves_nothing(seen: Seen) -> None:
    """With the Event that says why a card is unhealthy."""
    server, tab, _ = seen
    about = {"kind": "Node", "name": "gpu-004"}
    said = "card 1 (GPU-gpu-004-1): XID 79, the card has fallen off the bus"
    event = {"involvedObject": about, "reason": "XID79", "message": said, "type": "Warning"}
    await server.put("/api/v1/namespaces/default/events/e", event)
    where = "JSON.stringify([...document.querySelectorAll('.node')].map(n => n.getBoundingClientRect()))"
    before = await tab.value(where)
    await tab.value("document.querySelectorAll('#node-gpu-004 .card')[3].click()")
    await holds(tab, "document.querySelector('#detail article')")

    assert await tab.value(where) == before
    told = await tab.value("document.querySelector('#detail').textContent")
    assert "XID79 since 2026-11-24T02:51:07Z" in told
    assert said in told
    assert "GPU-gpu-004-3" in told
    await tab.value("document.querySelector('#detail li a').click()")
    await holds(tab, "document.querySelector('#detail h2').textContent.includes('/')")

    await tab.looks(1440, 300, "light")
    await tab.value("document.querySelectorAll('#node-gpu-000 .card')[7].click()")
    last = "[...document.querySelectorAll('#detail h3')].find(h => h.textContent === 'card 7')"
    await holds(tab, f"{last}?.getBoundingClientRect().top < innerHeight")
    await tab.value("document.querySelectorAll('#node-gpu-000 .card')[0].click()")
    await holds(tab, "document.querySelector('#detail').scrollTop === 0")


@BOTH
async def test_a_person_without_a_mouse_gets_everywhere(seen: Seen) -> None:
    """/ to the text, j and k to pods without a card and nodes, h and l over slices, Enter opens, Esc closes."""
    _, tab, _ = seen
    await typed(tab, "sort", "name")
    await holds(tab, f"{SHOWN}.startsWith('gpu-000 ')")
    await tab.press("/")
    await becomes(tab, FOCUS, "text")
    await tab.press("Escape", "j", "l", "l")
    await becomes(tab, FOCUS, "search/late-1")
    await tab.press("j", "ArrowDown", "k")
    await becomes(tab, FOCUS, "node-gpu-000")
    chosen = await tab.value("document.querySelectorAll('#node-gpu-000 .slice')[1].dataset.pod")
    await tab.press("l", "ArrowRight")
    await becomes(tab, FOCUS, chosen)
    await tab.press("Enter")
    await holds(tab, "document.querySelector('#detail article')")
    await becomes(tab, "document.querySelector('#detail h2').textContent", chosen)
    await holds(tab, "document.querySelector('#detail').textContent.includes('MiB')")
    await holds(tab, "document.querySelector('.slice.open')")
    await pictured(tab, "page.png")
    await tab.press("Escape")
    await holds(tab, "document.querySelector('#detail').hidden")
    await becomes(tab, FOCUS, chosen)


@BOTH
async def test_the_tab_key_reaches_the_nodes_and_comes_back_to_the_same_one(seen: Seen) -> None:
    """One stop for all of them: nobody presses it five hundred times."""
    _, tab, _ = seen
    await typed(tab, "sort", "name")
    await holds(tab, f"{SHOWN}.startsWith('gpu-000 ')")
    await tab.value("document.querySelector('.totals summary').focus()")
    await tab.press("Tab")
    await becomes(tab, FOCUS, "unplaced")
    await tab.press("j", "j")
    await becomes(tab, FOCUS, "node-gpu-001")
    stops = "[...document.querySelectorAll('#unplaced, .node')].filter(n => n.tabIndex === 0)"
    await becomes(tab, f"{stops}.map(n => n.id).join(' ')", "node-gpu-001")
    await typed(tab, "text", "gpu-003")
    await becomes(tab, f"{stops}.map(n => n.id).join(' ')", "node-gpu-003")


@BOTH
@pytest.mark.parametrize("width", [2560, 901])
async def test_in_the_compact_view_a_node_of_eight_cards_is_one_line(
    seen: Seen, width: int
) -> None:
    """Its name beside its bars, cut where nodes of a pool are the same; on a telephone above its bars."""
    server, tab, _ = seen
    name = "gke-prod-eu-gpu-pool-4f1d2c3b-x7k2.europe-west1-b.c.prod-eu.internal"
    await server.put(f"/api/v1/nodes/{name}", node(name, 8))
    await tab.looks(width, 900, "light")
    await typed(tab, "view", "compact")

    long = f"document.getElementById('node-{name}')"
    await holds(tab, f"document.querySelector('#all').className === 'compact' && {long}")
    await holds(tab, "document.querySelector('#node-gpu-000').offsetHeight <= 30")
    await holds(tab, f"{long}.offsetHeight <= 30")
    heading, bars = (f"{long}.querySelector('{part}')" for part in ("h2", ".cards"))
    edges = "getBoundingClientRect()"
    await holds(tab, f"{heading}.innerText.endsWith('-x7k2')")
    ends = f"{heading}.firstChild.{edges}.right <= {heading}.{edges}.right"
    await holds(tab, ends)
    await holds(tab, f"{heading}.{edges}.right <= {bars}.{edges}.left")
    await tab.looks(390, 900, "light")
    await fits_across(tab)
    await holds(tab, f"{heading}.{edges}.bottom <= {bars}.{edges}.top")
    await holds(tab, f"{bars}.offsetHeight <= 60")  # two lines of four


VIEW = "document.querySelector('#all').classList[0]"
CHOSEN = "document.querySelector('[name=view]').selectedOptions[0].text"
VIEW_AND_CHOICE = f"[{VIEW}, {CHOSEN}]"


@BOTH
async def test_the_view_that_a_person_has_chosen_stays_until_they_go_back(seen: Seen) -> None:
    """It is in the address; one that does not exist is none."""
    _, tab, url = seen
    await becomes(tab, VIEW_AND_CHOICE, ["bars", "auto: bars"])
    await typed(tab, "view", "heat")
    await tab.open(url + await tab.value("location.pathname + location.search"))
    await becomes(tab, VIEW_AND_CHOICE, ["heat", "heat map"])
    await typed(tab, "view", "")
    await becomes(tab, VIEW, "bars")
    await tab.open(f"{url}/?view=circles")
    await becomes(tab, VIEW_AND_CHOICE, ["bars", "auto: bars"])


@pytest.mark.parametrize("kind", ["chromium", "firefox"])
async def test_where_nobody_chose_a_view_the_number_of_nodes_decides(kind: str) -> None:
    """A few nodes more or fewer change nothing, even where the page is opened again."""
    async with running() as (server, api), browser(kind) as tab:
        fill(server, 101, 1)

        async def goes(before: int, after: int, *view: str) -> None:
            paths = [f"/api/v1/nodes/gpu-{n:03}" for n in range(*sorted((before, after)))]
            for each in paths:
                if after > before:
                    await server.put(each, node(each[-7:], 1))
                else:
                    await server.delete(each)
            await holds(tab, f"document.querySelectorAll('.node').length === {after}")
            await becomes(tab, VIEW_AND_CHOICE, [*view])

        async with served(api) as url:
            await tab.open(url + "/")
            await goes(101, 81, "heat", "auto: heat map")
            await tab.open(url + "/")
            await becomes(tab, VIEW, "heat")
            await goes(81, 80, "compact", "auto: compact")
            await goes(80, 100, "compact", "auto: compact")
            await goes(100, 17, "compact", "auto: compact")
            await goes(17, 16, "bars", "auto: bars")
            assert tab.complaints == []


@BOTH
async def test_in_the_heat_map_arrows_move_as_the_eye_does(seen: Seen) -> None:
    """To the sides by nodes, up and down by rows; Enter opens the node."""
    _, tab, _ = seen
    await typed(tab, "sort", "name")
    await holds(tab, f"{SHOWN}.startsWith('gpu-000 ')")
    await typed(tab, "view", "heat")
    await tab.looks(600, 900, "light")
    row = "getComputedStyle(document.querySelector('#all')).gridTemplateColumns.split(' ').length"
    await holds(tab, f"{row} === 2")
    await tab.press("j", "j", "ArrowRight")
    await becomes(tab, FOCUS, "node-gpu-001")
    await tab.press("ArrowDown")
    await becomes(tab, FOCUS, "node-gpu-003")
    await tab.press("Enter")
    await holds(tab, "document.querySelector('#detail h2')?.textContent === 'gpu-003'")


async def test_the_focus_is_seen(seen: Seen) -> None:
    _, tab, _ = seen
    await tab.press("j", "j")
    await becomes(tab, "getComputedStyle(document.activeElement).outlineStyle", "solid")
    await tab.press("l")
    first = "document.activeElement.querySelector('rect')"
    await becomes(tab, f"getComputedStyle({first}).strokeWidth", "4px")


@BOTH
async def test_a_change_of_the_cluster_is_seen_and_the_focus_stays(seen: Seen) -> None:
    """The node is drawn again below the person's hands."""
    server, tab, _ = seen
    await typed(tab, "sort", "name")
    await holds(tab, f"{SHOWN}.startsWith('gpu-000 ')")
    await tab.press("j", "j", "l")
    chosen = await tab.value("document.querySelector('#node-gpu-000 .slice').dataset.pod")
    await becomes(tab, FOCUS, chosen)
    added = place(pod("added", 1, 10, on="gpu-000", annotations=held(6, 1, 10)), "ns")
    await server.put(path(added), added)
    await holds(tab, "document.querySelector('[data-pod=\"ns/added\"]')")

    await becomes(tab, FOCUS, chosen)
    await server.delete("/api/v1/nodes/gpu-001")
    await holds(tab, "!document.querySelector('#node-gpu-001')")


async def test_what_is_open_follows_its_pod(seen: Seen) -> None:
    server, tab, _ = seen
    await tab.value("document.querySelector('[data-pod=\"batch/big-1\"]').focus()")
    await tab.press("Enter")
    await holds(tab, "document.querySelector('#detail .state')?.textContent.startsWith('Pending')")
    bound = place(pod("big-1", 15, 30, on="gpu-000", annotations=held(2, 15, 30)), "batch")
    await server.put("/api/v1/namespaces/batch/pods/big-1", bound)

    await holds(tab, "document.querySelector('#detail .state')?.textContent.startsWith('Running')")


async def test_what_a_person_has_unfolded_stays_so_when_the_story_changes(seen: Seen) -> None:
    """The third node of the pod's story, which begins folded; the first, which was folded."""
    server, tab, _ = seen
    await tab.value("document.querySelector('[data-pod=\"batch/big-1\"]').focus()")
    await tab.press("Enter")
    await holds(tab, "document.querySelectorAll('#detail details').length > 3")
    folds = (
        "[...document.querySelectorAll('#detail details')].slice(0, 4).map(d => d.open).join(' ')"
    )
    await becomes(tab, folds, "true false false false")
    for n in (0, 2):
        await tab.value(f"document.querySelectorAll('#detail summary')[{n}].click()")
    text = "document.querySelector('#detail').textContent"
    before = await tab.value(text)
    added = place(pod("added", 1, 10, on="gpu-000", annotations=held(6, 1, 10)), "ns")
    await server.put(path(added), added)
    await until(lambda: differs(tab, text, before))

    await becomes(tab, folds, "false false true false")


async def differs(tab: Browser, expression: str, before: str) -> bool:
    """Whether it is another than before."""
    return bool(await tab.value(expression) != before)


async def test_the_theme_that_was_chosen_stays(seen: Seen) -> None:
    _, tab, url = seen
    await tab.value("document.querySelector('#theme').click()")
    await tab.open(url + "/")

    await becomes(tab, "document.documentElement.dataset.theme", "dark")
    await becomes(tab, "getComputedStyle(document.body).backgroundColor", "rgb(20, 23, 26)")


async def test_while_the_api_server_is_away_the_page_says_so(seen: Seen) -> None:
    server, tab, _ = seen
    await server.stop()
    await holds(
        tab, "document.querySelector('#age.stale')?.textContent.includes('not current for')"
    )
    await server.start()
    await holds(tab, "document.querySelector('#age').textContent === 'live'")


async def test_a_browser_that_came_before_the_cluster_was_read_sees_all_of_it_afterwards() -> None:
    """Until then it says that it reads, and not that there is nothing."""
    async with running(is_up=False) as (server, api), browser() as tab:
        small(server)
        page = Page(PageSettings("127.0.0.1:0"), api, PageTimes(beat_seconds=0.5))
        async with working(page.run):
            await until(lambda: page.server.port)
            await tab.open(f"http://127.0.0.1:{page.server.port}/")
            await holds(tab, "document.querySelector('#nothing').hidden")
            await server.start()
            await holds(tab, "document.querySelectorAll('#all .node').length === 8")
            summary = "document.querySelector('.top #summary').textContent"
            await holds(tab, f"{summary}.startsWith('8 nodes (1 unreadable)')")
            await becomes(tab, "document.querySelectorAll('main > #unplaced li').length", 2)
            await becomes(tab, "document.querySelectorAll('.key #legend button').length", 6)


@pytest.mark.parametrize("kind", ["chromium", "firefox"])
async def test_five_hundred_nodes_of_eight_cards_are_drawn_and_followed(kind: str) -> None:
    """How fast is measured by `python -m tools.bench page`."""
    async with running() as (server, api), browser(kind) as tab:
        count = fill(server, 500, 8)
        async with served(api) as url:
            await tab.open(url + "/")
            await becomes(tab, "document.querySelectorAll('.card').length", 4000)
            await becomes(tab, "document.querySelectorAll('.slice').length", count)
            await typed(tab, "view", "heat")
            fits = "document.documentElement.scrollHeight <= innerHeight"
            for scheme in ("light", "dark") if kind == "chromium" else ("light",):
                for width in (2560, 1280, 390):
                    await tab.looks(width, 900, scheme)
                    named = "document.querySelector('#all').matches('.named')"
                    await holds(tab, f"{named} === {str(width != 1280).lower()}")
                    await becomes(tab, fits, width > 390)
                    await fits_across(tab)
                    await pictured(tab, f"page-heat-{width}-{scheme}.png")
            for width in (1000, 1100, 1366, 1440, 1920, 2048):
                await tab.looks(width, 900, "light")
                await holds(tab, fits)
            await asyncio.gather(*(server.delete(f"/api/v1/nodes/gpu-{n:03}") for n in range(300)))
            await holds(tab, "document.querySelectorAll('.node').length === 200")
            await typed(tab, "view", "compact")
            for width in (1280, 390):
                await tab.looks(width, 900, "light")
                await fits_across(tab)
            assert tab.complaints == []


async def test_of_sixty_nodes_the_one_with_an_unhealthy_gpu_stands_first() -> None:
    """Without a filter, in the view that the page chooses; its pods are drawn below the cross."""
    async with running() as (server, api), browser("chromium") as tab:
        fill(server, 60, 8, sick=(37, 6))
        async with served(api) as url:
            await tab.looks(1280, 900, "light")
            await tab.open(url + "/")
            await becomes(tab, "document.querySelectorAll('.node').length", 60)
            await holds(tab, "document.querySelector('#all').matches('.compact')")
            await becomes(tab, f"{SHOWN}.split(' ')[0]", "gpu-037")
            card = "document.querySelector('#node-gpu-037 [data-uuid=gpu-gpu-037-6]')"
            await holds(tab, f"{card}.querySelectorAll('.slice').length > 1")
            await holds(tab, f"{card}.querySelector('.sick')")
            for width in (1280, 390):
                await tab.looks(width, 900, "light")
                await fits_across(tab)
                await pictured(tab, f"page-compact-{width}-light.png")
            assert tab.complaints == []
