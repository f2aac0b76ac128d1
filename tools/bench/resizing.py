"""How soon a resize is in effect, and what a call costs in a slice that was resized."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.bench.bench_node import bench_node
from tools.bench.rows import Chapter, Row, at_most, median, quantile, shown
from tools.harness.boxes import Boxes
from tools.harness.isolation.box import MIB, Box, Node, Program
from tools.harness.isolation.compile import compile_programs
from tools.harness.rig import Rig, slice_of

from gpu_device_plugin.disk.region import tell_revision
from gpu_device_plugin.domain.fractions.pod_annotations import GROWTH, RESIZE

_PAIRS, _APART_SECONDS, _LOOK_SECONDS, _DEADLINE_SECONDS = 30, 1.2, 0.001, 60
_BYTES = {2: 2154 * MIB, 8: 8618 * MIB}
_ROUNDS = 15
_CALLS = {"a launch": ("launch", "40000"), "an allocation": ("alloc", "20000")}
_METHOD = f"""\
How soon a running program has what its pod's annotation asks for, and whether a resized slice costs its programs more.

The agent, a V100 and a slice that goes from 2 to 8 units and back, {_PAIRS} times; a process in it asks cuMemGetInfo
each millisecond. From the write of the annotation at the API server until the process is told the new size, which its next allocation is judged by. At
once: the next annotation follows when the last one is in effect, and the agent makes one decision a second for a pod.

Costs: the same C program in a slice that was resized and in one that was not, on one card, in turn, {_ROUNDS} rounds, one to warm
up; medians.

What the feature costs every slice is not in that ratio. On 2026-11-30 its first commit was compared with the commit before, in turn, 9 rounds, at a
load of 15. A launch took 191 ns instead of 181, under a compute cap 564 instead of 533. An allocation took 2,573 ns instead of 2,554."""


async def measure() -> Chapter:
    """Resize again and again; then compare."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        programs = compile_programs(Path(directory))
        rows = [*await _effects(programs), *await asyncio.to_thread(_costs, programs)]
    return Chapter("Resizes", _METHOD, tuple(rows))


async def _effects(programs: Path) -> Sequence[Row]:
    boxes = Boxes(programs)
    async with bench_node("v100") as node:
        namespace = {"metadata": {"name": "default", "annotations": {GROWTH: "mem:8,core:100"}}}
        await node.rig.api.put("/api/v1/namespaces/default", namespace)
        await node.rig.admit("a", slice_of(2, 30))
        program = await boxes.start(node.rig, "a")
        try:
            apart = await _series(node.rig, program, _APART_SECONDS)
            at_once = await _series(node.rig, program, 0)
        finally:
            boxes.close()
    return (
        at_most("annotation to effect, p50", median(apart), 1, "s", 3),
        at_most("annotation to effect, p99", quantile(apart, 0.99), 1, "s", 3),
        shown("the same, asked at once after another, p50", f"{median(at_once):.3f} s"),
        at_most("the same, asked at once after another, p99", quantile(at_once, 0.99), 1, "s", 3),
    )


async def _series(rig: Rig, program: Program, apart_seconds: float) -> list[float]:
    """Seconds to each effect."""
    path, found = "/api/v1/namespaces/default/pods/a", list[float]()
    for units in (8, 2) * _PAIRS:
        await asyncio.sleep(apart_seconds)
        pod = rig.api.objects[path]
        asked = {**pod["metadata"].get("annotations", {}), RESIZE: f"main-0=mem:{units}"}
        began = time.perf_counter()
        await rig.api.put(path, {**pod, "metadata": {**pod["metadata"], "annotations": asked}})
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while program("info")[2] != _BYTES[units]:
                await asyncio.sleep(_LOOK_SECONDS)
        found.append(time.perf_counter() - began)
    return found


def _costs(programs: Path) -> Sequence[Row]:
    node = Node.create(programs, "h200")
    boxes = [Box(programs / name, node, programs) for name in ("resized", "as-it-was")]
    rows = []
    for box in boxes:
        box.allow(8 << 30, 100)
    assert boxes[0].run("bench", "init").returncode == 0  # lays out the region
    boxes[0].allow(16 << 30, 100, revision=1)
    assert tell_revision(boxes[0].root / "state" / "region", 1)
    for call, words in _CALLS.items():
        rounds = [
            [float(box.run("bench", *words).stdout.split()[0]) for box in boxes]
            for _ in range(_ROUNDS + 1)
        ]
        resized, other = (median(each) for each in zip(*rounds[1:], strict=True))
        rows.append(
            at_most(
                f"{call} in a resized slice, against one that was not", resized / other, 1.05, "x"
            )
        )
    return rows
