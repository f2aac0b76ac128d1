"""The way of docs/moving-in.md from NVIDIA's plugin with time-slicing, and back, on a real kubelet.

A stand-in of that plugin offers replicas. No alert has a reason to fire, and no pod is harmed.
"""

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agent import METRICS_PORT, Agent, AgentDirectories, wait_for_allocatable
from tests.e2e.cluster.cluster import NODE, Cluster
from tests.e2e.cluster.node import KUBELET_DIRECTORY
from tests.e2e.cluster.processes import Program
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.conftest import FOUR_CARDS, STATE
from tests.e2e.pods import container, pod, slice_of
from tests.e2e.time_slicing_plugin import RESOURCE, SOCKET

MODE = "ack.node.gpu.schedule"
# What GpuNodeFault, GpuCardOut, GpuDriverSilent and GpuAgentNotReady look at.
TROUBLE = ("gpu_device_plugin_node_fault{", "gpu_device_plugin_card_fault{")


@pytest.fixture
def other_plugin(cluster: Cluster, results: Path) -> Iterator[Program]:
    """Four replicas of one card."""
    plugins = KUBELET_DIRECTORY / "device-plugins"
    program = [sys.executable, "-m", "tests.e2e.time_slicing_plugin", str(plugins), "4"]
    found = Program(
        "time-slicing",
        [*cluster.node.place.enter, *program],
        results / "time-slicing.log",
        {**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    yield found
    found.stop()
    (cluster.node.kubelet_directory / "device-plugins" / SOCKET).unlink(missing_ok=True)


@pytest.fixture
def moving_agent(
    cluster: Cluster, serving_agent: Agent, other_plugin: Program, results: Path
) -> Iterator[Agent]:
    """As it is installed beside another plugin: new on its node, and disabled. Not started."""
    serving_agent.stop()
    wait_for_allocatable(cluster, dict.fromkeys(FOUR_CARDS, "0"))
    cluster.kubectl("label", "node", NODE, f"{MODE}-")
    agent = Agent(
        cluster, AgentDirectories(STATE / "moving", results / "moving"), {"mode": "disabled"}
    )
    agent.prepare()
    yield agent
    agent.stop()
    other_plugin.stop()
    cluster.kubectl("uncordon", NODE)
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    cluster.kubectl("label", "node", NODE, f"{MODE}=core_mem", "--overwrite")
    cluster.restart_kubelet()
    cluster.wait_until_ready()


def counted(cluster: Cluster, side: str = "capacity") -> str:
    """How many replicas the node has."""
    return str(cluster.get("node", NODE)["status"][side].get(RESOURCE, "0"))


def offer_replicas(cluster: Cluster, plugin: Program) -> None:
    plugin.start()
    wait_for("the node has replicas", lambda: counted(cluster, "allocatable") == "4", 60, 0.3)


def start_sharing_pod(cluster: Cluster, name: str) -> None:
    limits = {"limits": {RESOURCE: "1"}}
    cluster.apply(pod(name, container("main", resources=limits), restartPolicy="Always"))
    cluster.wait_for_phase(name, "Running")


def has_not_restarted(cluster: Cluster, name: str) -> bool:
    (status,) = cluster.get("pod", name)["status"]["containerStatuses"]
    return status["restartCount"] == 0 and "running" in status["state"]


def trouble(agent: Agent) -> list[str]:
    """What an alert could fire on now."""
    address = f"http://{agent.node.place.address}:{METRICS_PORT}/metrics"
    with urllib.request.urlopen(address, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith(TROUBLE) and line.endswith(" 1.0")]
    return found + [line for line in lines if line == "gpu_device_plugin_ready 0.0"]


def test_a_node_moves_in_from_time_slicing_and_back(
    cluster: Cluster, moving_agent: Agent, other_plugin: Program
) -> None:
    offer_replicas(cluster, other_plugin)
    start_sharing_pod(cluster, "before")

    # 1. Beside the other plugin, disabled: healthy, and nobody notices.
    moving_agent.start()
    assert trouble(moving_agent) == []
    assert counted(cluster, "allocatable") == "4"
    assert has_not_restarted(cluster, "before")

    # 2. and 3. The node is emptied, and the other plugin leaves it.
    cluster.kubectl("cordon", NODE)
    cluster.kubectl("delete", "pod", "before", "--wait=true")
    other_plugin.stop()
    cluster.restart_kubelet()  # else the kubelet counts the replicas for five minutes
    wait_for("the replicas are gone", lambda: counted(cluster) == "0", 60, 0.3)
    assert trouble(moving_agent) == []

    # 4. and 5. The node offers slices.
    cluster.kubectl("label", "node", NODE, f"{MODE}=core_mem", "--overwrite")
    wait_for_allocatable(cluster, FOUR_CARDS, 60)
    assert trouble(moving_agent) == []
    cluster.kubectl("uncordon", NODE)
    cluster.apply(pod("after", container("main", resources=slice_of(2, 30))))
    cluster.wait_for_phase("after", "Running")

    move_back(cluster, other_plugin)
    assert trouble(moving_agent) == []
    assert has_not_restarted(cluster, "back")


def move_back(cluster: Cluster, other_plugin: Program) -> None:
    """Empty the node, disable it, and give it to the other plugin again."""
    cluster.kubectl("delete", "pod", "after", "--wait=true")
    cluster.kubectl("label", "node", NODE, f"{MODE}=disabled", "--overwrite")
    wait_for_allocatable(cluster, dict.fromkeys(FOUR_CARDS, "0"), 60)
    offer_replicas(cluster, other_plugin)
    start_sharing_pod(cluster, "back")
