"""The way of docs/tasks/moving-in.md from NVIDIA's plugin with time-slicing, and back, on a real kubelet.

A stand-in of that plugin offers replicas; the agent comes with the chart. At each step no alert has a
reason to fire, `kubectl gpu doctor` finds no problem, and no pod is harmed. Settings by node label
(`nodeSettings.map`) are chosen and given up in the same way.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_image import AgentImage
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.test_image import AGENTS, NOTHING
from tests.e2e.time_slicing_plugin import RESOURCE, SOCKET
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import DAEMONSET, RELEASE, RELEASE_NAMESPACE, Helm, wait_for_rollout
from tools.harness.cluster.node import KUBELET_DIRECTORY
from tools.harness.cluster.pods import CORE, COUNT, FOUR_CARDS, MEMORY, container, pod, slice_of
from tools.harness.cluster.processes import Program, ProgramError
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.node.modes import SETTINGS_LABEL

MODE = "ack.node.gpu.schedule"
# What GpuNodeFault, GpuCardOut and GpuDriverSilent look at.
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
    cluster.restart_kubelet()  # which forgets the replicas
    cluster.wait_until_ready()


@pytest.fixture(scope="module")
def release(cluster: Cluster, serving_agent: Agent) -> Iterator[Helm]:
    """The chart, not yet installed, for a node without an agent; each test brings it to its values."""
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    helm = Helm(cluster)
    yield helm
    helm("uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout=280s")
    cluster.kubectl("label", "node", NODE, f"{MODE}=core_mem", "--overwrite")
    cluster.restart_kubelet()
    cluster.wait_until_ready()


@pytest.fixture
def moving(cluster: Cluster, release: Helm) -> Iterator[Helm]:
    """The same for a node without a label and without a pod."""
    cluster.kubectl("label", "node", NODE, f"{MODE}-", f"{SETTINGS_LABEL}-")
    yield release
    cluster.kubectl("uncordon", NODE)
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")


def install(cluster: Cluster, helm: Helm, image: AgentImage, *values: str) -> None:
    """As step 1 of the page has it, on simulated cards."""
    names = (f"image.repository={image.repository}", f"image.tag={image.tag}")
    helm.install("mode=disabled", "simulate.profile=v100", *names, *values)
    wait_for_rollout(cluster, DAEMONSET)


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


def is_ready(found: dict[str, Any]) -> bool:
    """Whether the kubelet says so of a pod."""
    conditions = found["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def metrics_lines(cluster: Cluster) -> list[str]:
    """The metrics of the only agent; none while it does not listen: it may have been started just now."""
    found = cluster.every("pod", RELEASE_NAMESPACE, AGENTS)
    if len(found) != 1 or not is_ready(found[0]):
        return []
    name = found[0]["metadata"]["name"]
    page = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/pods/{name}:9445/proxy/metrics"
    try:
        lines = cluster.kubectl("get", "--raw", page).splitlines()
    except ProgramError:
        return []
    return lines if "gpu_device_plugin_ready 1.0" in lines else []


def check_healthy(cluster: Cluster) -> None:
    """Nothing that an alert could fire on, and nothing that `kubectl gpu doctor` calls a problem."""
    lines = wait_for("the agent answers", lambda: metrics_lines(cluster))
    assert not [line for line in lines if line.startswith(TROUBLE) and line.endswith(" 1.0")]
    wait_for("doctor finds no problem", lambda: has_no_problem(cluster), every=1)


def has_no_problem(cluster: Cluster) -> bool:
    """By doctor; a kubelet that has just started calls pods not ready until it has probed them."""
    try:
        return "1 agent, 1 node with cards: 0 problems" in kubectl_gpu(cluster, "doctor")
    except AssertionError:  # it ends with 1
        return False


def test_a_node_moves_in_from_time_slicing_and_back(
    cluster: Cluster, moving: Helm, agent_image: AgentImage, other_plugin: Program
) -> None:
    offer_replicas(cluster, other_plugin)
    start_sharing_pod(cluster, "before")

    # 1. Beside the other plugin, disabled: healthy, and nobody notices.
    install(cluster, moving, agent_image)
    check_healthy(cluster)
    assert counted(cluster, "allocatable") == "4"
    assert has_not_restarted(cluster, "before")

    # 2. and 3. The node is emptied, and the other plugin leaves it.
    cluster.kubectl("cordon", NODE)
    cluster.kubectl("delete", "pod", "before", "--wait=true")
    other_plugin.stop()
    cluster.restart_kubelet()  # else the kubelet counts the replicas for five minutes
    wait_for("the replicas are gone", lambda: counted(cluster) == "0", 60, 0.3)
    wait_for_rollout(cluster, DAEMONSET)
    check_healthy(cluster)

    # 4. and 5. The node offers slices.
    cluster.kubectl("label", "node", NODE, f"{MODE}=core_mem", "--overwrite")
    wait_for_allocatable(cluster, FOUR_CARDS, 60)
    check_healthy(cluster)
    cluster.kubectl("uncordon", NODE)
    cluster.apply(pod("after", container("main", resources=slice_of(2, 30))))
    cluster.wait_for_phase("after", "Running")
    check_healthy(cluster)

    move_back(cluster, other_plugin)
    check_healthy(cluster)
    assert has_not_restarted(cluster, "back")


def move_back(cluster: Cluster, other_plugin: Program) -> None:
    """Empty the node, disable it, and give it to the other plugin again."""
    cluster.kubectl("delete", "pod", "after", "--wait=true")
    cluster.kubectl("label", "node", NODE, f"{MODE}=disabled", "--overwrite")
    wait_for_allocatable(cluster, NOTHING, 60)
    offer_replicas(cluster, other_plugin)
    start_sharing_pod(cluster, "back")


def test_a_node_label_chooses_settings_of_the_chart(
    cluster: Cluster, moving: Helm, agent_image: AgentImage
) -> None:
    """Its agent restarts with that unit and mode, and again without them when the label goes."""
    small = "nodeSettings.map.small"
    install(
        *(cluster, moving, agent_image),
        *(f"{small}.mode=share", f"{small}.gpuMemoryUnit=128MiB", f"{small}.recoverySeconds=60"),
    )
    check_healthy(cluster)
    cluster.kubectl("label", "node", NODE, f"{SETTINGS_LABEL}=small")
    wait_for_allocatable(cluster, {MEMORY: "504", CORE: "0", COUNT: "4"}, 120)
    wait_for_rollout(cluster, DAEMONSET)
    check_healthy(cluster)
    limits = {"limits": {MEMORY: "16"}}
    cluster.apply(pod("small", container("main", resources=limits)))
    cluster.wait_for_phase("small", "Running")
    # floor(16160 x 16 / 126)
    assert "2052 MiB of card 0" in kubectl_gpu(cluster, "why", "default/small")

    cluster.kubectl("delete", "pod", "small", "--wait=true", "--grace-period=1")
    cluster.kubectl("label", "node", NODE, f"{SETTINGS_LABEL}-")
    wait_for_allocatable(cluster, NOTHING, 240)
    wait_for_rollout(cluster, DAEMONSET)
    check_healthy(cluster)


def test_helm_test_looks_for_the_card_of_a_pod_where_whole_cards_are_offered(
    cluster: Cluster, moving: Helm, agent_image: AgentImage
) -> None:
    """And has nothing to ask for where nothing is offered."""
    install(cluster, moving, agent_image)
    assert "Phase:" not in moving("test", RELEASE, "--timeout=60s")
    install(cluster, moving, agent_image, "mode=default")
    wait_for("the node offers its cards", lambda: counted(cluster, "allocatable") == "4", 120, 0.3)
    assert "Phase:          Succeeded" in moving("test", RELEASE, "--timeout=240s")
