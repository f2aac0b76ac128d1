"""What happens without the controller when the node has room and no card has.

kube-scheduler counts the node's units only. So it binds a pod that fits no single card, the
agent refuses it, the kubelet fails it for good, and a ReplicaSet makes the next one.

    tests/e2e/run.sh -- .venv/bin/python -m tools.bench.rejections

That starts a real control plane, kubelet and containerd, and prints what it saw as JSON.
"""

import asyncio
import datetime
import json
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tools.bench.bench_node import DISK
from tools.bench.rows import Chapter, Row, shown
from tools.harness.cluster.agent import Agent, AgentDirectories, wait_for_allocatable
from tools.harness.cluster.binaries import cache_directory, kubernetes_version
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.layout import Layout
from tools.harness.cluster.pods import CORE, COUNT, MEMORY, container, pod, slice_of

MINUTES = 2
_STATE = Path("/run/gpu-device-plugin-bench")
_PROGRAMS = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_TITLE = "Without the controller"
_METHOD = """\
How many pods fail where kube-scheduler does not see cards, which the [controller](controller.md) and [claims](dra.md) prevent. On
a node of 4 V100, 20 units are free, at most 5 on a card. A ReplicaSet of one pod asks for 8: kube-scheduler sees 20 and binds it, the
agent refuses it, the kubelet fails it, and the ReplicaSet makes another.

A real cluster on this machine: Kubernetes {version} with default settings, etcd, containerd. Four pods hold 10 of 15 units of each
simulated card. Failed pods are counted by their creation times."""


async def measure() -> Chapter:
    """Count on a real cluster, where one can be started; else say why not."""
    missing = missing_programs()
    if missing:
        row = Row("Failed pods of one ReplicaSet a minute", "told", f"not measured: {missing}")
        return Chapter(_TITLE, _METHOD.format(version=f"v{kubernetes_version()}"), (row,))
    process = await asyncio.create_subprocess_exec(
        *("tests/e2e/run.sh", "--", sys.executable, "-m", "tools.bench.rejections"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the cluster could not be measured"
    found = json.loads(output.splitlines()[-1])
    rows = tuple(
        shown(f"Failed pods of one ReplicaSet in minute {number}", str(count))
        for number, count in enumerate(found["by_minute"], 1)
    )
    method = _METHOD.format(version=f"v{found['version']}")
    return Chapter(_TITLE, method, rows)


def missing_programs() -> str:
    """What keeps a cluster from being started at once; empty where nothing does."""
    if os.geteuid() != 0:
        return "needs root"
    programs = cache_directory() / f"kubernetes-{kubernetes_version()}" / "bin"
    lacking = [name for name in _PROGRAMS if not (programs / name).exists()]
    lacking += [name for name in ("etcd", "runc", "unshare") if shutil.which(name) is None]
    return f"run `make e2e` first, which brings {', '.join(lacking)}" if lacking else ""


def main() -> None:
    """Inside the namespaces of tests/e2e/run.sh."""
    logs = DISK.absolute() / "cluster"
    shutil.rmtree(logs, ignore_errors=True)
    with Cluster(Layout(_STATE, logs)) as cluster:
        cluster.kubectl("label", "node", NODE, "ack.node.gpu.schedule=core_mem")
        agent = Agent(cluster, AgentDirectories(_STATE / "agent", logs))
        agent.prepare()
        agent.start()
        try:
            found = _count(cluster)
        finally:
            agent.stop()
    sys.stdout.write(f"{json.dumps(found)}\n")


def _count(cluster: Cluster) -> dict[str, Any]:
    wait_for_allocatable(cluster, {MEMORY: "60", CORE: "400", COUNT: "4"})
    fillers = [f"filler-{number}" for number in range(4)]
    cluster.apply(*(pod(n, container("main", resources=slice_of(10, 50))) for n in fillers))
    for name in fillers:
        cluster.wait_for_phase(name, "Running")
    cluster.apply(_replica_set())
    started = time.time()
    time.sleep(MINUTES * 60 + 1)
    failed = [
        one
        for one in cluster.every("pod")
        if one["metadata"]["name"].startswith("too-large-") and one["status"]["phase"] == "Failed"
    ]
    ages = [_created(one) - started for one in failed]
    by_minute = Counter(int(max(0.0, age) // 60) for age in ages)
    return {
        "by_minute": [by_minute[minute] for minute in range(MINUTES)],
        "version": cluster.binaries.kubernetes_version,
    }


def _created(one: dict[str, Any]) -> float:
    stamp = one["metadata"]["creationTimestamp"]
    return datetime.datetime.fromisoformat(stamp).timestamp()


def _replica_set() -> dict[str, Any]:
    made = pod("too-large", container("main", resources=slice_of(8, 20)), restartPolicy="Always")
    labels = {"app": "too-large"}
    template = {"metadata": {"labels": labels}, "spec": made["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "too-large"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


if __name__ == "__main__":
    main()
