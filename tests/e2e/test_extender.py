"""With the controller as kube-scheduler's extender a pod waits for a card that fits; none fails.

A second kube-scheduler beside the cluster's own asks the controller; pods choose it by name.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.agent import PROGRAM, Agent
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.credentials import SCHEDULER
from tests.e2e.cluster.processes import Program
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.pods import CORE, MEMORY, container, pod, slice_of
from tests.e2e.views import check_agreement

_SCHEDULER = "card-scheduler"
_ADDRESS = "127.0.0.1:18443"
_CARDS, _UNITS = 4, 15


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Program]:
    """The controller and the scheduler that asks it."""
    command = [str(PROGRAM), "controller", "--plain-http", f"--address={_ADDRESS}"]
    command += ["--metrics-address=127.0.0.1:0", f"--kubeconfig={cluster.admin_kubeconfig}"]
    logs = cluster.layout.logs
    program = Program("controller", command, logs / "controller.log", os.environ)
    configuration = cluster.layout.state / "card-scheduler.json"
    configuration.write_text(json.dumps(_configuration(cluster)))
    kube_scheduler = str(cluster.binaries.kubernetes / "kube-scheduler")
    flags = [f"--config={configuration}", "--secure-port=10270"]
    scheduler = Program(
        _SCHEDULER, [kube_scheduler, *flags], logs / f"{_SCHEDULER}.log", os.environ
    )
    program.start()
    scheduler.start()
    yield program
    scheduler.stop()
    program.stop()


def _configuration(cluster: Cluster) -> dict[str, Any]:
    resources = [{"name": name, "ignoredByScheduler": False} for name in (MEMORY, CORE)]
    extender = {
        "urlPrefix": f"http://{_ADDRESS}/gpushare-scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 1,
        "nodeCacheCapable": True,
        "managedResources": resources,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.credentials.kubeconfig(SCHEDULER))},
        "profiles": [{"schedulerName": _SCHEDULER}],
        "extenders": [extender],
    }


def asking(name: str, units: int, percent: int) -> dict[str, Any]:
    """A pod for our scheduler."""
    main = container("main", resources=slice_of(units, percent))
    return pod(name, main, schedulerName=_SCHEDULER)


def phases(cluster: Cluster) -> dict[str, str]:
    """Phase of each pod."""
    return {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.every("pod")}


def test_a_pod_that_fits_no_single_card_waits_with_the_reason_and_no_pod_fails(
    cluster: Cluster, agent: Agent, controller: Program
) -> None:
    """20 units are free on the node and 5 on each card; 8 are asked, until a card is free."""
    cluster.apply(*(asking(f"full-{number}", 10, 40) for number in range(_CARDS)))
    full = {f"full-{number}": "Running" for number in range(_CARDS)}
    wait_for("the cards are filled", lambda: phases(cluster) == full, 120, 0.5)
    labels = {"app": "waits"}
    spec = {**asking("waits", 8, 30)["spec"], "restartPolicy": "Always"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "waits"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        }
    )

    def reasons() -> str:
        return cluster.kubectl(
            *("get", "events", "--field-selector", "reason=FailedScheduling"),
            *("-o", "jsonpath={..message}"),
        )

    reason = "node(s) didn't have enough device resources to allocate"
    wait_for("the event says why", lambda: reason in reasons(), 60, 0.5)
    (waiting,) = cluster.every("pod", selector="app=waits")
    assert waiting["status"]["phase"] == "Pending"
    assert "nodeName" not in waiting["spec"]
    assert "Failed" not in phases(cluster).values()

    cluster.kubectl("delete", "pod", "full-2", "--wait=true")
    name = waiting["metadata"]["name"]
    cluster.wait_for_phase(name, "Running", seconds=120)
    assert "Failed" not in phases(cluster).values()
    assert controller.running()
    assert len(check_agreement(agent)) == _CARDS


def test_a_burst_fills_every_card_and_what_is_too_many_waits(
    cluster: Cluster, agent: Agent, controller: Program
) -> None:
    """Five slices of 3 units and 20 % a card; the controller is killed in the middle."""
    fitting = _CARDS * _UNITS // 3
    cluster.apply(*(asking(f"burst-{number}", 3, 20) for number in range(fitting + 4)))
    wait_for("some run", lambda: "Running" in phases(cluster).values(), 60, 0.2)
    controller.kill()
    controller.start()

    def counted() -> tuple[int, int]:
        found = list(phases(cluster).values())
        return found.count("Running"), found.count("Pending")

    wait_for("all that fit run", lambda: counted() == (fitting, 4), 180, 0.5)
    held = check_agreement(agent)
    assert len(held) == fitting
    assert all(len(units[MEMORY]) == 3 for units in held.values())
