"""What a flood of refusals costs the node that refuses, and what it does to a pod that fits.

python -m tools.bench refusals
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from tools.bench.machine import resident_mib
from tools.bench.rows import Chapter, median, quantile, shown
from tools.harness.rig import Rig, running_rig, slice_of

PODS = 3000
FITTING_EVERY = 100
_METHOD = """\
Whether a flood of refused pods keeps a node from serving others: {pods:,} pods that fit on no card, and after each {every} of them one
that does.

The agent's process runs between the stand-in kubelet and the small API server of the tests, on 4 simulated V100. Four pods hold 10 of 15 units of each card; then the pods of one ReplicaSet ask for 8. The pod that fits asks for 5."""


async def measure() -> Chapter:
    """Refuse, and admit in between."""
    async with running_rig() as rig:
        for number in range(4):
            assert (await rig.admit(f"filler-{number}", slice_of(10, 50))).is_admitted
        assert rig.process is not None
        pid = rig.process.pid
        before, cpu = resident_mib(pid), _cpu_seconds(pid)
        refused: list[float] = []
        fitting: list[float] = []
        for number in range(PODS):
            refused.append(await _refused(rig, number))
            if number % FITTING_EVERY == 0:
                fitting.append(await _admitted(rig, number))
        cpu_ms = 1000 * (_cpu_seconds(pid) - cpu) / PODS
        after = resident_mib(pid)
    rows = (
        shown("a refusal, p50 / p99", _both(refused)),
        shown("CPU of the agent for one refusal", f"{cpu_ms:.2f} ms"),
        shown("resident before / after", f"{before:.1f} / {after:.1f} MiB"),
        shown(f"pods that fit, admitted in between, of {len(fitting)}", str(len(fitting))),
        shown("such an admission of both resources, p50 / p99", _both(fitting)),
    )
    method = _METHOD.format(pods=PODS, every=FITTING_EVERY)
    return Chapter("A flood of refusals", method, rows)


async def _refused(rig: Rig, number: int) -> float:
    """Seconds until a pod of the ReplicaSet was refused; it stays at the API server, Failed."""
    pod = rig.pod(f"too-large-{number}", slice_of(8, 20))
    value: dict[str, Any] = rig.object_of(pod)
    owner = {"kind": "ReplicaSet", "name": "too-large", "uid": "u", "controller": True}
    value["metadata"]["ownerReferences"] = [owner]
    path = f"/api/v1/namespaces/default/pods/{pod.name}"
    await rig.api.put(path, value)
    started = time.perf_counter()
    assert not (await rig.kubelet.admit(pod)).is_admitted
    seconds = time.perf_counter() - started
    failed = json.loads(json.dumps(value))
    failed["status"] = {"phase": "Failed"}
    await rig.api.put(path, failed)
    return seconds


async def _admitted(rig: Rig, number: int) -> float:
    """Seconds until a pod that fits was admitted."""
    pod = rig.pod(f"fits-{number}", slice_of(5, 20))
    await rig.api.put(f"/api/v1/namespaces/default/pods/{pod.name}", rig.object_of(pod))
    started = time.perf_counter()
    admission = await rig.kubelet.admit(pod)
    seconds = time.perf_counter() - started
    assert admission.is_admitted, admission.message
    await rig.delete(pod.uid)
    return seconds


def _both(seconds: list[float]) -> str:
    return f"{1000 * median(seconds):.1f} / {1000 * quantile(seconds, 0.99):.1f} ms"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
