"""What a pod with a whole card costs from its creation until it runs, on a real cluster.

    tests/e2e/run.sh -- .venv/bin/python -m tools.bench.pod_start

That starts a real control plane, kubelet and containerd, and prints what it saw as JSON.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from pathlib import Path

from tools.bench.bench_node import DISK
from tools.bench.rows import median
from tools.harness.cluster.agent import Agent, AgentDirectories
from tools.harness.cluster.binaries import nvidia_path
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.layout import Layout
from tools.harness.cluster.pods import container, pod
from tools.harness.cluster.processes import Program
from tools.harness.cluster.waiting import wait_for

PODS = 10
WHAT = "a pod's start as a whole, median"
METHOD = f"""\
- A pod's start as a whole: on a real cluster on this machine (tests/e2e), first with NVIDIA's plugin, then with the agent. {PODS} pods of
  one card, one after the other, from `kubectl create` to the end of `kubectl wait` for Ready."""
_STATE = Path("/run/gpu-device-plugin-bench")
_GPU = "nvidia.com/gpu"


async def medians() -> tuple[float, float]:
    """Seconds with NVIDIA's plugin, and with the agent."""
    process = await asyncio.create_subprocess_exec(
        *("tests/e2e/run.sh", "--", sys.executable, "-m", "tools.bench.pod_start"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the cluster could not be measured"
    found = json.loads(output.splitlines()[-1])
    return median(found["theirs"]), median(found["ours"])


def main() -> None:
    """Inside the namespaces of tests/e2e/run.sh."""
    logs = DISK.absolute() / "pod-start"
    shutil.rmtree(logs, ignore_errors=True)
    with Cluster(Layout(_STATE, logs)) as cluster:
        cluster.kubectl("label", "node", NODE, "ack.node.gpu.schedule=default")
        agent = Agent(cluster, AgentDirectories(_STATE / "agent", logs), {"mode": "default"})
        agent.prepare(profile="dgx-a100")
        library = str(agent.directories.simulated_node)
        environment = {**os.environ, "LD_LIBRARY_PATH": library}
        command = [str(nvidia_path("nvidia-device-plugin"))]
        theirs = Program("nvidia-device-plugin", command, logs / "nvidia.log", environment)
        found = {"theirs": _measured(cluster, theirs), "ours": _measured(cluster, agent.program)}
    sys.stdout.write(f"{json.dumps(found)}\n")


def _measured(cluster: Cluster, plugin: Program) -> list[float]:
    plugin.start()
    try:
        wait_for("eight cards are offered", lambda: _offered(cluster) == "8")
        return [_seconds(cluster, f"{plugin.name}-{number}") for number in range(PODS)]
    finally:
        plugin.stop()
        wait_for("no card is offered", lambda: _offered(cluster) == "0")


def _offered(cluster: Cluster) -> str:
    return str(cluster.get("node", NODE)["status"]["allocatable"].get(_GPU, "0"))


def _seconds(cluster: Cluster, name: str) -> float:
    body = json.dumps(pod(name, container("main", resources={"limits": {_GPU: "1"}})))
    started = time.monotonic()
    cluster.kubectl("create", "-f", "-", stdin=body)
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    seconds = time.monotonic() - started
    cluster.kubectl("delete", "pod", name, "--wait=true", "--grace-period=1")
    return seconds


if __name__ == "__main__":
    main()
