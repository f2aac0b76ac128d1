"""Nothing is lost when the agent, the kubelet or a container ends at a bad moment."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.views import check_agreement, granted, held
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import FOREVER, TELL, container, environment_of, pod, slice_of
from tools.harness.cluster.waiting import wait_for

UNTIL_TOLD = f"{TELL}; while [ ! -e /end ]; do sleep 0.2; done"
REPLICAS = 8


def main_status(cluster: Cluster, name: str) -> dict[str, Any]:
    """The status of a pod's only container."""
    (status,) = cluster.get("pod", name)["status"]["containerStatuses"]
    return dict(status)


def told(cluster: Cluster, name: str) -> dict[str, str]:
    """The environment that a pod's container has printed; Running comes before the first line."""
    return wait_for(
        f"{name} has told its environment", lambda: environment_of(cluster.kubectl("logs", name))
    )


def test_a_container_that_restarts_while_the_agent_is_down_keeps_its_slice(
    cluster: Cluster, agent: Agent
) -> None:
    body = container("main", UNTIL_TOLD, resources=slice_of(2, 30))
    cluster.apply(pod("restarts", body, restartPolicy="Always"))
    cluster.wait_for_phase("restarts", "Running")
    first = told(cluster, "restarts")
    held_before = check_agreement(agent)
    slice_before = granted(agent)[("restarts", "main")].slice_id

    agent.stop()
    old = main_status(cluster, "restarts")["containerID"]
    cluster.kubectl("exec", "restarts", "--", "touch", "/end")
    wait_for(
        "the container has ended or started again",
        lambda: (
            main_status(cluster, "restarts")["state"].get("running") is None
            or main_status(cluster, "restarts")["containerID"] != old
        ),
    )
    agent.start()

    def runs_again() -> bool:
        status = main_status(cluster, "restarts")
        return status["containerID"] != old and "running" in status["state"]

    wait_for("the container runs again", runs_again, 120, 0.5)
    assert told(cluster, "restarts") == first
    assert check_agreement(agent) == held_before
    assert granted(agent)[("restarts", "main")].slice_id == slice_before


def replicas(name: str) -> dict[str, Any]:
    """A ReplicaSet of pods with a slice each."""
    template = pod("ignored", container("main", FOREVER, resources=slice_of(2, 30)))
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**template["spec"], "restartPolicy": "Always"},
            },
        },
    }


def test_an_agent_killed_and_a_kubelet_restarted_in_the_middle_lose_nothing(
    cluster: Cluster, agent: Agent
) -> None:
    cluster.apply(pod("keeper", container("main", FOREVER, resources=slice_of(2, 30))))
    cluster.wait_for_phase("keeper", "Running")
    kept = check_agreement(agent)[("keeper", "main")]
    slice_before = granted(agent)[("keeper", "main")].slice_id
    container_before = main_status(cluster, "keeper")["containerID"]

    def ready() -> int:
        status = cluster.get("replicaset", "storm")["status"]
        return int(status.get("readyReplicas", 0))

    cluster.apply(replicas("storm"))
    wait_for("the first of the pods runs", lambda: ready() >= 1)
    agent.kill()
    agent.start()
    cluster.restart_kubelet(kill=True)
    wait_for("all pods run", lambda: ready() == REPLICAS, 180, 0.5)
    # They may all have run before the kubelet ended: it has to know of them again.
    wait_for("the kubelet lists them", lambda: len(held(cluster.node)) == REPLICAS + 1, 60, 0.5)

    holders = check_agreement(agent)
    assert len(holders) == REPLICAS + 1
    assert holders[("keeper", "main")] == kept
    assert granted(agent)[("keeper", "main")].slice_id == slice_before
    assert main_status(cluster, "keeper")["containerID"] == container_before


def test_a_boot_ends_the_pods_with_slices_in_the_words_of_the_pages_and_controllers_make_new_ones(
    cluster: Cluster, agent: Agent
) -> None:
    """The kubelet's doing, with every device plugin: it takes pods on before one can be there."""
    cluster.apply(pod("alone", container("main", FOREVER, resources=slice_of(2, 30))))
    cluster.apply(replicas("storm"))

    def running() -> set[str]:
        pods = cluster.every("pod")
        return {p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"}

    wait_for("all pods run", lambda: len(running()) == REPLICAS + 1, 120, 0.5)
    before = running()
    agent.stop()
    cluster.node.power_off()
    cluster.node.power_on()
    wait_for("the kubelet has refused all of them", lambda: not before & running(), 120, 0.5)
    refused = [cluster.get("pod", name)["status"] for name in before]
    agent.start()
    wait_for("others run in their place", lambda: len(running()) == REPLICAS, 180, 0.5)
    wait_for("the kubelet lists them", lambda: len(held(cluster.node)) == REPLICAS, 60, 0.5)

    for page in ("docs/operations/restarts.md", "docs/troubleshooting.md"):
        words = re.findall(
            r"`(no healthy devices present|cannot allocate .*?)`", Path(page).read_text()
        )
        for status in refused:
            assert status["reason"] == "UnexpectedAdmissionError"
            assert any(each in status["message"] for each in words), (page, status["message"])
    assert {name for name, _ in check_agreement(agent)} == running()


def test_a_new_agent_knows_what_a_pod_asks_while_the_api_server_is_away(
    cluster: Cluster, agent: Agent
) -> None:
    """A kubelet of 1.37 tells it by its Pods API: no watch and no GET can."""
    if int(cluster.binaries.kubernetes_version.split(".")[1]) < 37:
        pytest.skip("kubelets before 1.37 have no Pods API unless a feature gate is on")
    bodies = [container(name, FOREVER, resources=slice_of(2, 30)) for name in ("first", "second")]
    manifest, holder = cluster.node.static_pods / "static.json", f"static-{NODE}"
    cluster.control_plane.server.stop()
    try:
        agent.kill()
        agent.start()
        manifest.write_text(json.dumps(pod("static", *bodies)))
        both = {(holder, "first"), (holder, "second")}
        wait_for("both containers are held", lambda: both <= granted(agent).keys(), 60, 0.5)
        assert all(granted(agent)[each].is_checked for each in both)
    finally:
        manifest.unlink(missing_ok=True)
        cluster.control_plane.server.start()
        cluster.control_plane.wait_until_ready()
    wait_for("the kubelet has let it go", lambda: not held(cluster.node), 60, 0.5)
    cluster.wait_until_ready()
