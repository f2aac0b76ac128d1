"""A driver upgrade by NVIDIA's operator, walked with a stand-in for its driver manager on a real cluster.

The stand-in sets the labels that the driver manager sets, and unloads as the kernel does: not while a process has the driver open.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_image import AgentImage
from tests.e2e.test_image import AGENTS, NO_HOOKS, NOTHING
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import DAEMONSET, RELEASE_NAMESPACE, Helm, wait_for_rollout
from tools.harness.cluster.pods import FOUR_CARDS, container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode

DRIVER = Path("/run/gpu-device-plugin/simulator")
BEFORE, AFTER = "450.102.04", "535.309.01"
CLIENT, STATE = "nvidia.com/gpu.deploy.client", "nvidia.com/gpu-driver-upgrade-state"
HOLDINGS = "gpu-device-plugin/holdings"
OPENED = """
import pynvml, time
pynvml.nvmlInit()
print(pynvml.nvmlSystemGetDriverVersion(), flush=True)
"""
HOLDS = OPENED + "time.sleep(100000)\n"
IDLE = "import time; time.sleep(100000)"


def label(cluster: Cluster, **values: str) -> None:
    """Set the operator's labels of the node."""
    keys = {"client": CLIENT, "state": STATE}
    words = [f"{keys[name]}={value}" for name, value in values.items()]
    cluster.kubectl("label", "node", NODE, "--overwrite", *words)


def openers() -> set[str]:
    """Command lines of the processes that have the driver open, under whatever path their container knows it."""
    found, inode = set(), str((DRIVER / STATE_NAME).stat().st_ino)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text().splitlines()
            if any(line.split()[4] == inode for line in maps):
                found.add((process / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue  # it has ended
    return found


def values(image: AgentImage, driver: str) -> tuple[str, ...]:
    named = (f"image.repository={image.repository}", f"image.tag={image.tag}")
    cards = ("simulate.profile=v100", f"simulate.driverVersion={driver}")
    return (*named, *cards, "driverUpgrades=nodeSelector", *NO_HOOKS)


def program(name: str, image: AgentImage, script: str) -> Mapping[str, Any]:
    """A pod with a slice that runs Python."""
    body = container("main", resources=slice_of(2, 30))
    return pod(name, {**body, "image": image.reference, "command": ["python3", "-c", script]})


@pytest.fixture
def installed(cluster: Cluster, serving_agent: Agent, agent_image: AgentImage) -> Iterator[Helm]:
    """The chart on a node that the operator has labelled, beside no other agent."""
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    label(cluster, client="true", state="upgrade-done")
    helm = Helm(cluster)
    helm.install(*values(agent_image, BEFORE))
    wait_for_rollout(cluster, DAEMONSET)
    wait_for_allocatable(cluster, FOUR_CARDS)
    yield helm
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    cluster.kubectl("label", "node", NODE, f"{CLIENT}-", f"{STATE}-")
    helm.uninstall()


def call_of(cluster: Cluster, name: str) -> str:
    """What a new process of a running container is told by the driver."""
    return cluster.kubectl("exec", name, "--", "python3", "-c", OPENED)


def leave(cluster: Cluster) -> None:
    """What the driver manager does before it unloads, until the agent is gone."""

    def reasons() -> list[str]:
        return cluster.kubectl("get", "events", "-A", "-o=jsonpath={..reason}").split()

    label(cluster, state="pod-restart-required")
    wait_for("an Event says so", lambda: "DriverUpgrade" in reasons(), 60)
    label(cluster, client="paused-for-driver-upgrade")
    wait_for("the agent has left", lambda: not cluster.every("pod", RELEASE_NAMESPACE, AGENTS), 90)
    wait_for_allocatable(cluster, NOTHING)


def test_a_driver_is_changed_under_a_slice_and_nobody_has_to_help(
    cluster: Cluster, installed: Helm, agent_image: AgentImage
) -> None:
    """Pods of ours leave, an idle slice keeps its grant, the node comes back with the new driver, and no unit is given twice."""
    cluster.apply(program("idle", agent_image, IDLE), program("holder", agent_image, HOLDS))
    for name in ("idle", "holder"):
        cluster.wait_for_phase(name, "Running")
    wait_for("the holder has opened it", lambda: BEFORE in cluster.kubectl("logs", "holder"))
    assert BEFORE in call_of(cluster, "idle")

    leave(cluster)
    (opener,) = openers()  # what a drain has to evict
    assert opener == f"python3 -c {HOLDS}".strip()
    cluster.kubectl("delete", "pod", "holder", "--wait=true", "--grace-period=1")
    wait_for("nothing has the driver open", lambda: not openers(), 30)
    SimulatedNode(DRIVER / STATE_NAME).upgrade_driver(AFTER)
    installed.install(*values(agent_image, AFTER))
    label(cluster, client="true", state="upgrade-done")
    wait_for_rollout(cluster, DAEMONSET)
    wait_for_allocatable(cluster, FOUR_CARDS)

    cluster.apply(program("next", agent_image, HOLDS))
    cluster.wait_for_phase("next", "Running")
    wait_for("it sees the new driver", lambda: AFTER in cluster.kubectl("logs", "next"))
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.every("pod")}
    assert phases == {"idle": "Running", "next": "Running"}
    held = json.loads(cluster.get("node", NODE)["metadata"]["annotations"][HOLDINGS])["pods"]
    assert sorted(len(each["slices"]) for each in held.values()) == [1, 1]
    # The simulated driver takes libraries of another version; NVIDIA's refuses them (docs/tasks/beside-others.md).
    assert call_of(cluster, "idle") == f"{AFTER}\n"
