"""What the agent takes of a node while nothing happens."""

import asyncio
import time
from dataclasses import dataclass

from tools.bench.bench_node import HELD_PODS, BenchNode, bench_node
from tools.bench.machine import children, cpu_seconds, grpc_cpu_seconds, resident_mib
from tools.bench.rows import Chapter, at_most, shown

IDLE_SECONDS = 60.0
_QUIET_SECONDS = 100.0  # in the first minute no absence counts, so each pass compares all
_METHOD = f"""\
What an idle agent takes of its node: one with 4 V100 and no pod, and one with 8 H200 and {HELD_PODS} pods. The agent is two processes: the
NVML child calls the driver, which may hang.
- Most of the memory is imported libraries: 60 MiB of the agent.
- About half of the CPU is threads of gRPC that wake by themselves; no option was found that stops them.

Both nodes run at once and were started at least {_QUIET_SECONDS:.0f} s before; the figures are of {IDLE_SECONDS:.0f} s without a call or
a scrape. CPU is utime + stime. Resident is VmRSS, shared pages included."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """Of one node: milli-cores and MiB."""

    agent_cpu: float
    child_cpu: float
    grpc_cpu: float
    agent_mib: float
    child_mib: float

    @property
    def cpu(self) -> float:
        """Of both processes."""
        return self.agent_cpu + self.child_cpu

    @property
    def parts(self) -> str:
        """Which of them takes how much."""
        return f"{self.agent_cpu:.2f} ({self.grpc_cpu:.2f}) / {self.child_cpu:.2f} milli-cores"


async def measure(node: BenchNode) -> Chapter:
    """Wait and read the clocks."""
    async with bench_node("v100") as empty_node:
        empty, full = await asyncio.gather(_idle(empty_node), _idle(node))
    return Chapter(
        "Footprint",
        _METHOD,
        (
            at_most("agent, resident, no pods", empty.agent_mib, 58, "MiB", 1),
            at_most(f"agent, resident, {HELD_PODS} pods", full.agent_mib, 58, "MiB", 1),
            at_most("NVML child, resident", max(empty.child_mib, full.child_mib), 15, "MiB", 1),
            at_most("idle, agent and child together, no pods", empty.cpu, 1.2, "milli-cores"),
            shown("of which agent (its gRPC threads) / child", empty.parts),
            at_most(f"the same, {HELD_PODS} pods", full.cpu, 1.2, "milli-cores"),
            shown("of which agent (its gRPC threads) / child", full.parts),
        ),
    )


async def _idle(node: BenchNode) -> _Idle:
    await asyncio.sleep(_QUIET_SECONDS)
    pids = (node.agent_pid, children(node.agent_pid)[0])
    started, before = time.monotonic(), _spent(*pids)
    await asyncio.sleep(IDLE_SECONDS)
    elapsed, after = time.monotonic() - started, _spent(*pids)
    agent, child, grpc = (1000 * (b - a) / elapsed for a, b in zip(before, after, strict=True))
    return _Idle(agent, child, grpc, resident_mib(pids[0]), resident_mib(pids[1]))


def _spent(agent: int, child: int) -> tuple[float, float, float]:
    return cpu_seconds(agent), cpu_seconds(child), grpc_cpu_seconds(agent)
