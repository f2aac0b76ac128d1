"""How soon after its start the kubelet has the agent's list."""

import asyncio
import time

from tools.bench.bench_node import BenchNode
from tools.bench.rows import Chapter, at_most, median, shown
from tools.harness.rig import CORE, COUNT, MEM, Rig

STARTS = 9
_LOOK_SECONDS = 0.001
_DEADLINE_SECONDS = 60
_METHOD = f"""\
How soon a node offers its units again after its agent was restarted, for instance by an upgrade.

From just before fork and exec until the stand-in kubelet has a list of all three resources, over ListAndWatch. {STARTS} starts on
the node of the chapter before, whose state directory has a grant for every pod."""


async def measure(node: BenchNode) -> Chapter:
    """Restart again and again."""
    seconds = [await _one_start(node) for _ in range(STARTS)]
    return Chapter(
        "Start",
        _METHOD,
        (
            at_most("exec to first list, median", median(seconds), 0.6, "s"),
            shown("exec to first list, best / worst", f"{min(seconds):.2f} / {max(seconds):.2f} s"),
        ),
    )


async def _one_start(node: BenchNode) -> float:
    await node.rig.stop_agent()
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while _listed(node.rig):
            await asyncio.sleep(_LOOK_SECONDS)
    started = time.perf_counter()
    await node.rig.start_agent()
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while _listed(node.rig) < 3:
            await asyncio.sleep(_LOOK_SECONDS)
    seconds = time.perf_counter() - started
    await node.rig.until_ready()
    return seconds


def _listed(rig: Rig) -> int:
    return sum(rig.kubelet.allocatable(resource) > 0 for resource in (MEM, CORE, COUNT))
