"""Bindings under API servers of different speed: how many come about, and what kube-scheduler is told."""

import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tools.bench.extender import end_controller, start_controller
from tools.bench.rows import Chapter, Row, at_most, quantile, shown
from tools.harness.api_server import StandInApiServer, kubeconfig, running
from tools.harness.objects import Json, node, path, pod

from gpu_device_plugin.controller.binder import MOST_BINDINGS
from gpu_device_plugin.web.extender_server import PREFIX

_LATENCIES = (0.05, 0.3, 1.0, 3.0)
_OFFERED, _SECONDS, _STEADY_SECONDS = 60, 30.0, 20.0
_FIRST_AGAIN_SECONDS, _LAST_AGAIN_SECONDS = 1.0, 10.0
_NODES, _CARDS = 80, 8
_CALLERS = 200
_MOST_FAILED_PERCENT, _LEAST_SHARE = 1.0, 0.9
_UNSENT = "nothing was sent"
_TITLE = "A slow API server"
_METHOD = """\
Whether the controller stays the leader, tells the truth and keeps going while each request to the API server takes 0.05, 0.3, 1 or 3 s.
At most {bound} bindings are under way at a time, so {bound} divided by that time can come about in a second.

The controller is a process of its own with the default times of its Lease; the API server is the small one of the tests. It takes the
given time for every request, and carries it out half way; watches tell at once. {offered} pods a second are sent to `bind` for
{seconds:.0f} s, without filter, at most {callers} at a time. A pod that was refused before anything was sent is sent again as kube-scheduler's queue does it; one that was called failed is not. Bound a second: answers of the last {steady:.0f} s of
these. Called failed: of the pods that are bound at the end, those whose answer was an error."""


@dataclass
class _Run:
    """What has been answered so far."""

    bound: list[tuple[float, float]] = field(default_factory=list)  # when, and after how long
    failed: list[Json] = field(default_factory=list)
    refused: int = 0
    led: list[bool] = field(default_factory=list)


async def measure() -> Chapter:
    """One controller after the other."""
    rows: list[Row] = []
    for latency in _LATENCIES:
        rows += await _under(latency)
    amounts = {"bound": MOST_BINDINGS, "offered": _OFFERED, "seconds": _SECONDS}
    method = _METHOD.format(**amounts, steady=_STEADY_SECONDS, callers=_CALLERS)
    return Chapter(_TITLE, method, tuple(rows))


async def _under(latency: float) -> list[Row]:
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(running())
        for number in range(_NODES):
            server.preload(f"/api/v1/nodes/n{number}", node(f"n{number}", _CARDS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = kubeconfig(folder / "k", server.url, {"token": "t"})
        process, ports = await start_controller(config)
        stack.push_async_callback(end_controller, process)
        connector = aiohttp.TCPConnector(limit=_CALLERS)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        server.latency = lambda _: latency
        run = await _play(server, session, ports)
        server.latency = lambda _: 0.0
        carried = [each for each in run.failed if server.get(path(each))["spec"]["nodeName"]]
    return _rows(latency, run, len(carried))


def _rows(latency: float, run: _Run, carried: int) -> list[Row]:
    name = f"{latency:g} s"
    percent = 100 * carried / max(1, len(run.bound) + carried)
    goal = min(_OFFERED, MOST_BINDINGS / latency)
    steady = [took for at, took in run.bound if at > _SECONDS - _STEADY_SECONDS]
    rate = len(steady) / _STEADY_SECONDS
    failed = f"API server of {name}: carried-out bindings called failed"
    return [
        Row(f"API server of {name}: the lead", "kept", _led(run), all(run.led)),
        at_most(failed, percent, _MOST_FAILED_PERCENT, "%"),
        Row(
            f"API server of {name}: bound a second, of {_OFFERED} offered",
            f"{goal:.1f} ± 10 %",
            f"{rate:.1f}",
            rate >= _LEAST_SHARE * goal,
        ),
        shown(
            f"API server of {name}: answer of a binding, median", f"{quantile(steady, 0.5):.2f} s"
        ),
        shown(f"API server of {name}: refused before sending", str(run.refused)),
    ]


def _led(run: _Run) -> str:
    return "kept" if all(run.led) else f"away in {run.led.count(False)} of {len(run.led)} looks"


async def _play(
    server: StandInApiServer, session: aiohttp.ClientSession, ports: tuple[int, int]
) -> _Run:
    run, loop = _Run(), asyncio.get_running_loop()
    began = loop.time()
    watching = asyncio.ensure_future(_watch_lead(run, session, ports[1]))
    url = f"http://127.0.0.1:{ports[0]}{PREFIX}/bind"
    async with asyncio.TaskGroup() as group:
        for number in range(int(_OFFERED * _SECONDS)):
            await asyncio.sleep(max(0.0, began + number / _OFFERED - loop.time()))
            each = pod(f"p{number}", 1, 5)
            await server.put(path(each), each)
            caller = _send(run, session, url, each, lambda: loop.time() - began)
            group.create_task(caller)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return run


async def _send(
    run: _Run, session: aiohttp.ClientSession, url: str, each: Json, now: Callable[[], float]
) -> None:
    """Ask for one pod until it is bound, called failed, or the time is over."""
    meta = each["metadata"]
    names = {"PodName": meta["name"], "PodNamespace": "ns", "PodUID": meta["uid"]}
    body = json.dumps({**names, "Node": f"n{int(meta['name'][1:]) % _NODES}"})
    again = _FIRST_AGAIN_SECONDS
    while True:
        began = now()
        try:
            async with session.post(url, data=body) as response:
                text = await response.text()
            error = json.loads(text)["Error"] if response.status == 200 else text
        except aiohttp.ClientError as broken:
            error = str(broken)
        if not error:
            if now() < _SECONDS:
                run.bound.append((now(), now() - began))
            return
        if _UNSENT not in error:
            run.failed.append(each)
            return
        run.refused += 1
        if now() > _SECONDS:
            return
        await asyncio.sleep(again)
        again = min(2 * again, _LAST_AGAIN_SECONDS)


async def _watch_lead(run: _Run, session: aiohttp.ClientSession, port: int) -> None:
    while True:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            run.led.append("; leads" in await response.text())
        await asyncio.sleep(0.5)
