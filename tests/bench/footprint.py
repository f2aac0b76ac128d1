"""What the agent takes of a node while nothing happens."""

import asyncio
import time

from tests.bench.bench_node import HELD_PODS, BenchNode
from tests.bench.machine import children, cpu_seconds, resident_mib
from tests.bench.rows import Chapter, at_most, shown

IDLE_SECONDS = 60.0
_QUIET_SECONDS = 10.0
_METHOD = """\
The same node, {pods} pods on it, its watches of the API server open, nobody asking anything for
{seconds:.0f} s. CPU is utime + stime from the process's CPU clock, of the agent and of its NVML
child; the simulated NVML answers at once, a driver may take longer. Resident is VmRSS afterwards,
shared pages of the interpreter and libraries included."""


async def measure(node: BenchNode) -> Chapter:
    """Wait and read the clocks."""
    await asyncio.sleep(_QUIET_SECONDS)
    pids = (node.agent_pid, children(node.agent_pid)[0])
    started, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(IDLE_SECONDS)
    elapsed, after = time.monotonic() - started, [cpu_seconds(pid) for pid in pids]
    agent, child = (1000 * (b - a) / elapsed for a, b in zip(before, after, strict=True))
    return Chapter(
        "Footprint",
        _METHOD.format(pods=HELD_PODS, seconds=IDLE_SECONDS),
        (
            at_most("agent, resident", resident_mib(pids[0]), 80, "MiB", 1),
            at_most("NVML child, resident", resident_mib(pids[1]), 20, "MiB", 1),
            at_most("idle, agent and child together", agent + child, 2, "milli-cores"),
            shown("of which agent / child", f"{agent:.2f} / {child:.2f} milli-cores"),
        ),
    )
