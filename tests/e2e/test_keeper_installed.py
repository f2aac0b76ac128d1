"""The chart's limit keeper proves the driver's limits on a node, and limits a container that no hook has.

This machine may have a hybrid tree of cgroups: the DaemonSets then get its unified part for the whole.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agent_image import AgentImage
from tests.e2e.test_image import NO_HOOKS, NOTHING
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import DAEMONSET, RELEASE, RELEASE_NAMESPACE, Helm, wait_for_rollout
from tools.harness.cluster.pods import FOREVER, container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

RUN = Path("/run/gpu-device-plugin")
TREE = Path("/sys/fs/cgroup/unified")


def see_unified_tree(cluster: Cluster, name: str) -> None:
    """At /sys/fs/cgroup in the pods of a DaemonSet."""
    place = ("-n", RELEASE_NAMESPACE, "daemonset", name)
    spec = cluster.get("daemonset", name, RELEASE_NAMESPACE)["spec"]["template"]["spec"]
    (number,) = (i for i, volume in enumerate(spec["volumes"]) if volume["name"] == "cgroups")
    path = f"/spec/template/spec/volumes/{number}/hostPath/path"
    change = [{"op": "replace", "path": path, "value": str(TREE)}]
    cluster.kubectl("patch", *place, "--type=json", f"--patch={json.dumps(change)}")


@pytest.fixture
def installed(cluster: Cluster, serving_agent: Agent, agent_image: AgentImage) -> Iterator[None]:
    """The chart on a node of driver 615, whose toolkit has no hook."""
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    helm, name = Helm(cluster), f"{RELEASE}-limit-keeper"
    image = (f"image.repository={agent_image.repository}", f"image.tag={agent_image.tag}")
    cards = ("simulate.profile=v100", "simulate.driverVersion=615.71.09")
    way = ("memoryEnforcer=auto", "driverLimitBy=toolkit")
    place = f"cdiDir={cluster.node.cdi_directory}"
    helm.install(*way, place, *cards, *image, *NO_HOOKS)
    for each in (RELEASE, name) if TREE.is_dir() else ():
        see_unified_tree(cluster, each)
    wait_for_rollout(cluster, DAEMONSET)
    yield
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    helm.uninstall()


def annotation(cluster: Cluster) -> str:
    """What the agent says of the node's cards."""
    found = cluster.get("node", NODE)["metadata"].get("annotations", {})
    return str(found.get("gpu-device-plugin/cards", ""))


def marks() -> list[str]:
    """What was left in the slices' directories."""
    return [path.read_text() for path in RUN.glob("slices/*/driver-limit")]


def reasons(cluster: Cluster) -> list[str]:
    """Of the Events of the tests' pods."""
    return cluster.kubectl("get", "events", "-o=jsonpath={..reason}").split()


@pytest.mark.usefixtures("installed")
def test_a_container_that_no_hook_has_limited_is_limited_by_the_keeper(cluster: Cluster) -> None:
    """Found by what it has mounted, from the keeper's own container; the node then counts as unable."""
    wait_for("the limits are proven", lambda: '"driver (misc)"' in annotation(cluster), 120)
    cluster.apply(pod("lone", container("main", FOREVER, resources=slice_of(2, 30))))
    cluster.wait_for_phase("lone", "Running")
    wait_for("it is limited", lambda: len(marks()) == 1, 60)
    assert marks()[0].endswith("\nby=repair\n")
    wait_for("an Event says so", lambda: "DriverLimitSet" in reasons(cluster), 60)
    wait_for(
        "no hook is expected", lambda: "library (a container started" in annotation(cluster), 60
    )
