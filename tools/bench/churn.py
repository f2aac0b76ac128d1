"""What 100,000 allocate and free cycles leave in memory.

    python -m tools.bench.churn [CYCLES]

A process of its own, so that what it has resident is the agent's parts and nothing else.
"""

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tools.bench.bench_node import MEMORY_DISK
from tools.bench.machine import resident_mib
from tools.bench.parts import AgentParts
from tools.bench.rows import Chapter, at_most, shown

CYCLES = 100_000
HELD_PODS = 10  # few, so that a cycle is short; what leaks would leak with any number
WARM_UP = 5_000
LOOK_EVERY = 100
_METHOD = """\
Whether the agent's memory grows with the pods that it has served.

In process, without gRPC and disk (state and slices in memory); all else is the agent's own. One cycle is a new pod:
GetPreferredAllocation and Allocate of both resources, then its slice ends. {held} other pods stay. Resident memory is read after {warm:,} cycles, then
after {cycles:,} more, with garbage collected both times. {note}"""


def run(cycles: int) -> dict[str, float]:
    """The cycles, in this process."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as directory:
        return asyncio.run(_cycles(Path(directory), cycles))


async def _cycles(directory: Path, cycles: int) -> dict[str, float]:
    parts = AgentParts(directory)
    await parts.fill(HELD_PODS)
    for number in range(WARM_UP):
        await _cycle(parts, number)
    gc.collect()
    before, started = resident_mib(os.getpid()), time.process_time()
    for number in range(WARM_UP, WARM_UP + cycles):
        await _cycle(parts, number)
    seconds = time.process_time() - started
    gc.collect()
    return {
        "before": before,
        "after": resident_mib(os.getpid()),
        "cycles": cycles,
        "cpu_ms": 1000 * seconds / cycles,
    }


async def _cycle(parts: AgentParts, number: int) -> None:
    pod = parts.add_pod(f"brief-{number}")
    await parts.admit(pod)
    parts.remove_pod(pod)
    if number % LOOK_EVERY == 0:
        await parts.look()


async def measure() -> Chapter:
    """The cycles, in a process of their own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.bench.churn"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the churn process failed"
    found = json.loads(output)
    grown = found["after"] - found["before"]
    method = _METHOD.format(
        held=HELD_PODS,
        warm=WARM_UP,
        cycles=int(found["cycles"]),
        note=f"It took {found['cpu_ms']:.2f} ms of CPU a cycle.",
    )
    return Chapter(
        "Churn",
        method,
        (
            at_most(f"growth over {int(found['cycles']):,} cycles", grown, 2, "MiB"),
            shown("resident before / after", f"{found['before']:.1f} / {found['after']:.1f} MiB"),
        ),
    )


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else CYCLES
    sys.stdout.write(json.dumps(run(wanted)) + "\n")
