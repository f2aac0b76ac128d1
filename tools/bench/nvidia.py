"""NVIDIA's own device plugin and the agent, side by side in one run."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tools.bench import pod_start
from tools.bench.bench_node import AS_IN_IMAGE, CallerProcess
from tools.bench.machine import children, cpu_seconds, resident_mib
from tools.bench.rows import Chapter, Row, quantile, shown
from tools.harness.cluster.binaries import NVIDIA, NVIDIA_COMMANDS, nvidia_path
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_registry import PluginLink
from tools.harness.nvidia_plugin.programs import NvidiaPlugin, both
from tools.harness.nvidia_plugin.seen import counted, listed
from tools.harness.rig import Rig

_GPU = "nvidia.com/gpu"
_ALLOCATES, _LISTS, _STARTS = 500, 200, 9
_QUIET_SECONDS, _IDLE_SECONDS = 10.0, 30.0
_LOOK_SECONDS, _DEADLINE_SECONDS = 0.001, 60
_REPLICAS = """
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 10}]
"""
_TITLE = "NVIDIA's device plugin beside the agent"
_METHOD = f"""\
The same whole cards offered by NVIDIA's plugin (k8s-device-plugin {NVIDIA}, in Go) and by the agent in mode `default` (in Python), in this
order in each row. The agent's memory and CPU include its NVML child, metrics, Events and a watch of the API server, which
NVIDIA's plugin does not have.

Both run at once on the same 8 simulated A100 of a DGX, each with a stand-in kubelet of its own. NVIDIA's is built from Go modules
(tests/side_by_side).
- Memory and CPU: VmRSS, and utime + stime over {_IDLE_SECONDS:.0f} s with nothing to do.
- Allocate of one whole card: {_ALLOCATES} calls each, in turn, by a grpcio client in a process of its own.
- First list: from just before fork and exec until the stand-in kubelet has 8 devices, {_STARTS} starts each in turn, everything in the
  page cache.
- List: from opening ListAndWatch until the first message of 80 replicas has come, {_LISTS} streams each in turn.
{pod_start.METHOD}"""
Two = tuple[float, float]


async def measure() -> Chapter:
    """Both at once; says why not where NVIDIA's cannot run."""
    missing = [name for name in NVIDIA_COMMANDS if not nvidia_path(name).exists()]
    if missing or os.geteuid() != 0:
        reason = f"no {', '.join(missing)}: run tests/e2e/install.sh" if missing else "needs root"
        return Chapter(_TITLE, _METHOD, (Row("Allocate of a whole card", "told", reason),))
    rows: list[Row] = []
    async with both("dgx-a100", {}) as (theirs, rig):
        rig.environment |= AS_IN_IMAGE
        await _offered(theirs.kubelet, 8)
        await _offered(rig.kubelet, 8)
        rows += await _idle(theirs, rig)
        rows += await _allocates(theirs, rig)
        rows += await _starts(theirs, rig)
    rows += await _lists()
    theirs_seconds, ours_seconds = await pod_start.medians()
    rows.append(_row(pod_start.WHAT, (theirs_seconds, ours_seconds), "s", 2))
    return Chapter(_TITLE, _METHOD, tuple(rows))


async def _offered(kubelet: StandInKubelet, devices: int) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while sum(counted(kubelet).values()) != devices:
            await asyncio.sleep(_LOOK_SECONDS)


async def _idle(theirs: NvidiaPlugin, rig: Rig) -> Sequence[Row]:
    assert theirs.process is not None
    assert rig.process is not None
    pids = ([theirs.process.pid], [rig.process.pid, *children(rig.process.pid)])
    await asyncio.sleep(_QUIET_SECONDS)
    before = [sum(map(cpu_seconds, group)) for group in pids]
    started = time.monotonic()
    await asyncio.sleep(_IDLE_SECONDS)
    seconds = time.monotonic() - started
    after = [sum(map(cpu_seconds, group)) for group in pids]
    used = [1000 * (b - a) / seconds for a, b in zip(before, after, strict=True)]
    resident = [sum(map(resident_mib, group)) for group in pids]
    return (
        _row("resident", (resident[0], resident[1]), "MiB", 1),
        _row("idle CPU", (used[0], used[1]), "milli-cores", 2),
    )


async def _allocates(theirs: NvidiaPlugin, rig: Rig) -> Sequence[Row]:
    links = (theirs.kubelet.registry.links[_GPU], rig.kubelet.registry.links[_GPU])
    cards = [card.uuid for card in rig.cards.view().cards]
    times: tuple[list[float], list[float]] = ([], [])
    async with _caller(rig.root) as caller:
        for number in range(_ALLOCATES):
            for link, found in zip(links, times, strict=True):
                ids = [cards[number % len(cards)]]
                answer = await caller.ask(socket=str(link.socket), method="Allocate", ids=ids)
                found.append(answer["ns"] / 1e6)
    return tuple(
        _row(f"Allocate of a whole card, p{percent}", _quantiles(times, percent / 100), "ms", 2)
        for percent in (50, 99)
    )


@asynccontextmanager
async def _caller(root: Path) -> AsyncIterator[CallerProcess]:
    socket, pipe = root / "empty.sock", asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.bench.empty_server", str(socket)
    )
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.bench.caller"), stdin=pipe, stdout=pipe
    )
    try:
        yield CallerProcess(client, empty=socket)
    finally:
        for child in (client, server):
            child.kill()
            await child.wait()


async def _starts(theirs: NvidiaPlugin, rig: Rig) -> Sequence[Row]:
    async def start_theirs() -> None:
        await theirs.start({})

    async def start_ours() -> None:
        await rig.start_agent(mode="default")

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_STARTS):
        await theirs.stop()
        times[0].append(await _first_list(theirs.kubelet, start_theirs))
        await rig.stop_agent()
        times[1].append(await _first_list(rig.kubelet, start_ours))
        await rig.until_ready()
    return (_row("first list after start, median", _quantiles(times, 0.5), "s", 2),)


async def _first_list(kubelet: StandInKubelet, start: Callable[[], Awaitable[None]]) -> float:
    await _offered(kubelet, 0)
    started = time.perf_counter()
    await start()
    await _offered(kubelet, 8)
    return time.perf_counter() - started


async def _lists() -> Sequence[Row]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_REPLICAS)
        file.flush()
        async with both("dgx-a100", {"config_file": file.name}) as (theirs, rig):
            await _offered(theirs.kubelet, 80)
            await _offered(rig.kubelet, 80)
            links = (theirs.kubelet.registry.links[_GPU], rig.kubelet.registry.links[_GPU])
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(_LISTS):
                for link, found in zip(links, times, strict=True):
                    found.append(await _list(link))
    return (_row("list of 80 replicas, p50", _quantiles(times, 0.5), "ms", 2),)


async def _list(link: PluginLink) -> float:
    started = time.perf_counter()
    devices = await listed(link)
    assert len(devices) == 80
    return 1000 * (time.perf_counter() - started)


def _quantiles(times: tuple[list[float], list[float]], part: float) -> Two:
    return quantile(times[0], part), quantile(times[1], part)


def _row(what: str, pair: Two, unit: str, digits: int) -> Row:
    """NVIDIA's figure, this plugin's, and their ratio."""
    theirs, ours = pair
    ratio = f" ({ours / theirs:.2f} x)" if theirs else ""
    return shown(what, f"{theirs:.{digits}f} and {ours:.{digits}f} {unit}{ratio}")
