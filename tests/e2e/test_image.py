"""The DaemonSet's pod comes from the image, with the chart's security, and serves its node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_image import ROOT, AgentImage
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import DAEMONSET, RELEASE_NAMESPACE, Helm, wait_for_rollout
from tools.harness.cluster.pods import FOUR_CARDS, container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

AGENTS = "app.kubernetes.io/name=gpu-device-plugin"
NONROOT = 65532
NO_HOOKS = ("hooks.uninstall.enabled=false", "hooks.upgrade.enabled=false")
NOTHING = dict.fromkeys(FOUR_CARDS, "0")
PACKAGE = "import gpu_device_plugin; print(gpu_device_plugin.__file__)"
INSTALLED = "/usr/local/lib/python3.11/dist-packages/gpu_device_plugin/__init__.py"


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster, serving_agent: Agent, agent_image: AgentImage
) -> Iterator[dict[str, Any]]:
    """The agent's pod, once the chart is installed and the DaemonSet is ready everywhere."""
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    helm = Helm(cluster)
    repository, tag = agent_image.repository, agent_image.tag
    image = (f"image.repository={repository}", f"image.tag={tag}")
    # The hooks have tests of their own.
    helm.install("simulate.profile=v100", *image, *NO_HOOKS)
    wait_for_rollout(cluster, DAEMONSET)
    yield the_agent(cluster)
    helm.uninstall()
    wait_for("the agent's pod is gone", lambda: not cluster.every("pod", RELEASE_NAMESPACE, AGENTS))


def the_agent(cluster: Cluster) -> dict[str, Any]:
    """The only pod of the release that is no hook's."""
    (found,) = cluster.every("pod", RELEASE_NAMESPACE, AGENTS)
    return found


def process_of(cluster: Cluster, agent: dict[str, Any]) -> Path:
    """The /proc directory of the agent's first process, as the node sees it."""
    (status,) = agent["status"]["containerStatuses"]
    identity = status["containerID"].removeprefix("containerd://")
    for line in cluster.node.containerd_command("tasks", "ls").splitlines()[1:]:
        name, pid, *_ = line.split()
        if name == identity:
            return Path("/proc") / pid
    raise AssertionError(f"containerd runs no {identity}")


def test_the_running_container_is_of_the_image_that_was_built(
    installed: dict[str, Any], agent_image: AgentImage
) -> None:
    (container,) = installed["spec"]["containers"]
    assert container["image"] == agent_image.reference
    (status,) = installed["status"]["containerStatuses"]
    assert status["imageID"].rpartition("@")[2] in agent_image.digests
    assert status["ready"]
    assert status["restartCount"] == 0


def test_the_process_runs_what_the_image_holds_and_nothing_of_the_checkout(
    cluster: Cluster, installed: dict[str, Any]
) -> None:
    name = installed["metadata"]["name"]
    told = cluster.kubectl(
        "exec", "-n", RELEASE_NAMESPACE, name, "-c", "agent", "--", "python3", "-c", PACKAGE
    )
    assert told.strip() == INSTALLED
    process = process_of(cluster, installed)
    assert not (process / "root").samefile("/")
    assert b"gpu-device-plugin\0agent\0" in (process / "cmdline").read_bytes()
    mapped = {
        line.split()[5] for line in (process / "maps").read_text().splitlines() if "/" in line
    }
    assert any("/grpc/" in path for path in mapped)
    assert not [path for path in mapped if path.startswith(str(ROOT))]


def test_the_kernel_enforces_the_security_that_the_chart_asks(
    cluster: Cluster, installed: dict[str, Any]
) -> None:
    process = process_of(cluster, installed)
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Uid"].split() == ["0"] * 4
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    root = next(line for line in (process / "mounts").read_text().splitlines() if " / " in line)
    assert root.split()[3].split(",")[0] == "ro"


def test_a_pod_gets_a_slice(cluster: Cluster, installed: dict[str, Any]) -> None:
    """What is in it: test_job.py."""
    assert installed["spec"]["nodeName"] == NODE
    wait_for_allocatable(cluster, FOUR_CARDS)
    cluster.apply(pod("sliced", container("main", resources=slice_of(2, 30))))
    cluster.wait_for_phase("sliced", "Running")
    limits = cluster.kubectl("exec", "sliced", "--", "cat", "/run/gpu-device-plugin/config/limits")
    assert "core_percent=30" in limits
    cluster.kubectl("delete", "pod", "sliced", "--wait=true")


def test_the_image_runs_without_root_by_itself(cluster: Cluster, agent_image: AgentImage) -> None:
    """Its own user is 65532; a kubelet that demands a user other than root believes it."""
    script = "import os, gpu_device_plugin.cli.main; print(os.getuid(), os.getgid())"
    security = {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    one = {"image": agent_image.reference, "imagePullPolicy": "Never", "securityContext": security}
    user = {**one, "name": "user", "command": ["python3", "-c", script]}
    version = {**one, "name": "version", "args": ["version"]}
    cluster.apply(pod("not-root", user, version))
    ended = cluster.wait_for_phase("not-root", "Succeeded", "Failed")
    logs = [cluster.kubectl("logs", "not-root", "-c", name) for name in ("user", "version")]
    assert ended["status"]["phase"] == "Succeeded", logs
    assert logs == [f"{NONROOT} {NONROOT}\n", logs[1]]
    assert agent_image.tag in logs[1]
    cluster.kubectl("delete", "pod", "not-root", "--wait=true")
