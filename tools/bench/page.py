"""How soon a browser shows a large cluster, and how soon it shows a change."""

import asyncio
import time

from tools.bench.rows import Chapter, at_most, median, quantile, shown
from tools.harness.api_server import StandInApiServer, running
from tools.harness.objects import held, pod
from tools.harness.page.browser import Browser, browser
from tools.harness.page.clusters import fill, place, served

NODES, CARDS, OPENINGS, CHANGES = 500, 8, 9, 50
_METHOD = """\
How fast the page of a cluster of {nodes} nodes of {cards} cards with {pods} slices appears, and how soon it shows a change.

A headless Chromium of 1440 x 900 pixels, on the same cores as the page's server and the small API server of the tests. No Prometheus.
- Render: from the navigation's start until the first contentful paint, which shows all nodes as a heat map. Complete: until the script
  has filled in the filters, and a frame after that is drawn.
- Update: from just before a pod is written to the API server until its slice stands in the browser's document; then one pod on each of the
  {nodes} nodes at once."""
_DRAWN = """new Promise(done => new PerformanceObserver(list => {
    const paint = list.getEntriesByName("first-contentful-paint")[0];
    if (paint) requestAnimationFrame(() => requestAnimationFrame(() => done([paint.startTime, performance.now()])));
}).observe({type: "paint", buffered: true}))"""


async def measure() -> Chapter:
    """Open the page again and again, then change what it shows."""
    async with running() as (server, api), browser() as tab:
        pods = fill(server, NODES, CARDS)
        async with served(api) as url:
            await tab.looks(1440, 900, "light")
            opened = []
            for _ in range(OPENINGS):
                await tab.open(url + "/")
                opened.append(await tab.value(_DRAWN))
            changes = [await _one_change(server, tab, number) for number in range(CHANGES)]
            all_at_once = await _all_nodes(server, tab)
    paints, drawn = ([each[at] / 1000 for each in opened] for at in (0, 1))
    return Chapter(
        "The page",
        _METHOD.format(nodes=NODES, cards=CARDS, pods=pods),
        (
            at_most("render: first contentful paint, median", median(paints), 1, "s"),
            at_most("render: complete, median", median(drawn), 1, "s"),
            shown("render: complete, best / worst", f"{min(drawn):.2f} / {max(drawn):.2f} s"),
            at_most("update of one node, p99", quantile(changes, 0.99), 2, "s"),
            shown("update of one node, median", f"{median(changes):.2f} s"),
            at_most(f"update of all {NODES} nodes at once", all_at_once, 2, "s"),
        ),
    )


async def _one_change(server: StandInApiServer, tab: Browser, number: int) -> float:
    on = f"gpu-{(number * 37) % NODES:03}"
    began = time.perf_counter()
    await _write(server, f"one-{number}", on)
    await _seen(tab, f"document.querySelector('[data-pod=\"bench/one-{number}\"]') ? 1 : 0", 1)
    return time.perf_counter() - began


async def _all_nodes(server: StandInApiServer, tab: Browser) -> float:
    began = time.perf_counter()
    for number in range(NODES):
        await _write(server, f"all-{number}", f"gpu-{number:03}")
    await _seen(tab, "document.querySelectorAll('[data-pod^=\"bench/all-\"]').length", NODES)
    return time.perf_counter() - began


async def _write(server: StandInApiServer, name: str, on: str) -> None:
    value = place(pod(name, 1, on=on, annotations=held(7, 1, 0)), "bench")
    await server.put(f"/api/v1/namespaces/bench/pods/{name}", value)


async def _seen(tab: Browser, expression: str, count: int) -> None:
    async with asyncio.timeout(60):
        while await tab.value(expression) < count:
            await asyncio.sleep(0.005)
