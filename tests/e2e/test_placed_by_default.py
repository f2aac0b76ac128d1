"""The chart's controller and its scheduler come to a cluster that had the agents alone, and go again.

Nobody names a scheduler here: pods that ask for units get its name by the policy of the API server. The tests are the
steps of one life, in their order.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.e2e.agent_image import AgentImage
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.placement import SCHEDULER
from tests.e2e.test_image import NOTHING
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import (
    ADDRESS,
    CHART,
    DAEMONSET,
    DEPLOYMENTS,
    RELEASE,
    RELEASE_NAMESPACE,
    Helm,
    left_on_nodes,
    load_scheduler,
    wait_for_rollout,
)
from tools.harness.cluster.pods import FOUR_CARDS, container, pod, slice_of
from tools.harness.cluster.processes import ProgramError
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.node.allocation_api import has_claims_api

DEFAULT = "default-scheduler"
ALONE, PLACED = "controller.enabled=false", "controller.enabled=true"
_CARDS = 4


@pytest.fixture(scope="module")
def life(cluster: Cluster, serving_agent: Agent, agent_image: AgentImage) -> Iterator[Cluster]:
    """The agents alone, from the chart, with a pod that runs and one that waits."""
    if not has_claims_api(cluster.binaries.kubernetes_version):
        pytest.skip("the API server changes pods by policy from Kubernetes 1.36 on")
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    load_scheduler(cluster)
    bring(cluster, agent_image, ALONE)
    wait_for_allocatable(cluster, FOUR_CARDS)
    cluster.apply(asking("runs", 1, 5), asking("waits", 1, 5, nodeSelector={"e2e": "nowhere"}))
    wait_until_running(cluster, "runs")
    yield cluster
    cluster.kubectl("delete", "replicaset,daemonset,pod", "--all", "--grace-period=1")
    Helm(cluster)("uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout=280s")


def bring(cluster: Cluster, image: AgentImage, *settings: str) -> None:
    """Bring the release to these values; return when its parts are ready."""
    names = (f"image.repository={image.repository}", f"image.tag={image.tag}")
    # The cluster of the tests resolves no names of Services.
    address = f"controller.clusterIP={ADDRESS}"
    Helm(cluster).install("simulate.profile=v100", address, *names, *settings)
    wait_for_rollout(cluster, DAEMONSET, *(DEPLOYMENTS if PLACED in settings else ()))
    wait_until_named(cluster, SCHEDULER if PLACED in settings else DEFAULT)


def wait_until_named(cluster: Cluster, scheduler: str) -> None:
    """Return when a new pod would get this scheduler: API servers see a policy a moment later."""
    probe = json.dumps(asking("probe", 1, 5))

    def named() -> bool:
        words = ("create", "--dry-run=server", "-o", "jsonpath={.spec.schedulerName}", "-f", "-")
        return cluster.kubectl(*words, stdin=probe) == scheduler

    wait_for(f"new pods get {scheduler}", named, 60, 0.3)


def asking(name: str, units: int, percent: int, **spec: Any) -> dict[str, Any]:
    """A pod that asks for a slice, and names no scheduler."""
    return pod(name, container("main", resources=slice_of(units, percent)), **spec)


def owned(kind: str, name: str, units: int, percent: int) -> dict[str, Any]:
    """A ReplicaSet of one such pod, or a DaemonSet of them."""
    labels = {"app": name}
    spec = {**asking(name, units, percent)["spec"], "restartPolicy": "Always"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    about = {"selector": {"matchLabels": labels}, "template": template}
    meta = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}}
    return {**meta, "spec": {"replicas": 1, **about} if kind == "ReplicaSet" else about}


def schedulers(cluster: Cluster) -> dict[str, str]:
    """Name -> `schedulerName` of each pod; the pod of an owner by its owner's name."""
    return {
        each["metadata"]["labels"]["app"]
        if "ownerReferences" in each["metadata"]
        else each["metadata"]["name"]: each["spec"]["schedulerName"]
        for each in cluster.every("pod")
    }


def wait_until_running(cluster: Cluster, *names: str) -> None:
    """Return when these pods run."""

    def found() -> dict[str, str]:
        pods = {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.every("pod")}
        return {name: pods.get(name, "") for name in names}

    running = dict.fromkeys(names, "Running")
    wait_for(f"{names} run", lambda: found() == running, 90, 0.2)


def containers(cluster: Cluster, name: str) -> Sequence[tuple[str, int]]:
    """Which containers a pod has, and how often each was restarted."""
    statuses = cluster.get("pod", name)["status"]["containerStatuses"]
    return [(each["containerID"], each["restartCount"]) for each in statuses]


def test_it_comes_to_a_cluster_of_agents_and_touches_no_pod_that_is_there(
    life: Cluster, agent_image: AgentImage
) -> None:
    """The node offers 60/400/4 as before; who runs runs on, and who waits keeps its scheduler."""
    before = containers(life, "runs")
    bring(life, agent_image, PLACED)

    assert containers(life, "runs") == before
    assert schedulers(life) == {"runs": DEFAULT, "waits": DEFAULT}
    wait_for_allocatable(life, FOUR_CARDS)


def test_a_second_release_with_a_controller_is_refused(life: Cluster) -> None:
    """Two schedulers of one name would bind the same pods; agents alone may have a release of their own."""
    words = ("install", "another", str(CHART), "--dry-run=server", "--set=image.tag=any")
    with pytest.raises(ProgramError, match=f"the release {RELEASE} has a controller"):
        Helm(life)(*words)
    assert "kind: DaemonSet" in Helm(life)(*words, f"--set={ALONE}")


def test_a_replicaset_that_fits_the_sum_and_no_card_waits_beside_pods_that_run(
    life: Cluster,
) -> None:
    """With the agents alone it makes some hundred Failed pods a minute: by the time that others ran, dozens."""
    life.kubectl("delete", "pod", "runs", "waits", "--wait=true")
    full = [f"full-{card}" for card in range(_CARDS)]
    life.apply(*(asking(name, 10, 40) for name in full))
    wait_until_running(life, *full)
    life.apply(owned("ReplicaSet", "large", 8, 30))

    def reasons() -> str:
        (large,) = life.every("pod", selector="app=large")
        told = {each["type"]: each for each in large["status"].get("conditions", ())}
        return str(told.get("PodScheduled", {}).get("message", ""))

    wait_for("the pod is made", lambda: len(life.every("pod", selector="app=large")) == 1, 60, 0.2)
    wait_for("it says why", reasons, 60, 0.2)
    for number in range(5):
        life.apply(asking(f"small-{number}", 1, 5))
        wait_until_running(life, f"small-{number}")
    phases = Counter(each["status"]["phase"] for each in life.every("pod"))
    assert phases == {"Running": _CARDS + 5, "Pending": 1}
    assert "didn't have enough device resources to allocate" in reasons()
    assert set(schedulers(life).values()) == {SCHEDULER}
    assert ": 0 problems" in kubectl_gpu(life, "doctor")

    life.kubectl("delete", "pod", "full-0", "--wait=true")
    (large,) = life.every("pod", selector="app=large")
    wait_until_running(life, large["metadata"]["name"])


def test_who_has_chosen_a_scheduler_or_a_node_keeps_it_and_daemonsets_too(life: Cluster) -> None:
    life.kubectl("delete", "replicaset,pod", "--all", "--wait=true", "--grace-period=1")
    plain = pod("plain", container("main"))
    initial = container("first", "true", resources=slice_of(1, 5))
    chosen = [
        asking("another", 1, 5, schedulerName="somebody-elses"),
        asking("bound", 1, 5, nodeName=NODE),
        owned("DaemonSet", "everywhere", 1, 5),
        plain,
        pod("initial", container("main"), initContainers=[initial]),
    ]
    life.apply(*chosen)
    wait_until_running(life, "bound", "plain", "initial")
    wait_for("a pod of the set is made", lambda: "everywhere" in schedulers(life), 60, 0.2)

    assert schedulers(life) == {
        "another": "somebody-elses",
        "bound": DEFAULT,
        "everywhere": DEFAULT,
        "plain": DEFAULT,
        "initial": SCHEDULER,
    }


def test_it_goes_again_and_pods_are_the_default_schedulers(
    life: Cluster, agent_image: AgentImage
) -> None:
    """Who waits for the scheduler that has gone is named, with what to do."""
    life.kubectl("delete", "daemonset,pod", "--all", "--wait=true", "--grace-period=1")
    life.apply(asking("runs", 1, 5), asking("waits", 1, 5, nodeSelector={"e2e": "nowhere"}))
    wait_until_running(life, "runs")
    before = containers(life, "runs")
    bring(life, agent_image, ALONE)
    assert not life.every("deployment", RELEASE_NAMESPACE)
    life.apply(asking("later", 1, 5))
    wait_until_running(life, "later")

    assert containers(life, "runs") == before
    assert schedulers(life) == {"runs": SCHEDULER, "waits": SCHEDULER, "later": DEFAULT}


def test_an_uninstall_with_it_leaves_nothing_on_nodes(
    life: Cluster, agent_image: AgentImage
) -> None:
    bring(life, agent_image, PLACED)
    life.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    Helm(life).uninstall()

    assert not left_on_nodes(life)
    assert not life.every("deployment", RELEASE_NAMESPACE)
    listed = life.kubectl("get", "mutatingadmissionpolicies", "-o", "name")
    assert f"{RELEASE}-scheduler-name" not in listed
    wait_until_named(life, DEFAULT)
    life.apply(asking("after", 1, 5))
    assert schedulers(life) == {"after": DEFAULT}
