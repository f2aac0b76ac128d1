"""What runs through claims: every kind of workload, the samples as they are, many pods one after the other."""

from pathlib import Path
from typing import Any

import yaml
from tests.e2e.churn import create_and_delete_200_pods
from tests.e2e.claims import (
    cards_of,
    deployment,
    holding,
    in_namespace,
    phase,
    running,
    set_allocation_api,
)
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.images import GPU_TEST
from tools.harness.cluster.pods import FOREVER, FOUR_CARDS
from tools.harness.cluster.waiting import wait_for

SAMPLES = (
    "first-slice", "jupyter-notebook", "pytorch-training", "triton", "vllm", "sglang", "ack/cuda-sample",
)  # fmt: skip
SAMPLE_PODS = 8


def workload(kind: str, group: str = "apps/v1", **spec: Any) -> dict[str, Any]:
    """An object of that kind whose pods have a slice and stay."""
    name = kind.lower()
    made = deployment(1, holding(name))
    labels = {"of": name}
    made["spec"]["template"]["metadata"]["labels"] = labels
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    rest = {"template": made["spec"]["template"], **selector, **spec}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": rest}


def sample(name: str) -> list[dict[str, Any]]:
    """A sample's objects; only what this cluster lacks is added: image, program, probes, volumes."""
    found = list(yaml.safe_load_all(Path(f"samples/{name}.yaml").read_text()))
    for made in found:
        spec = made["spec"].get("template", made).get("spec", {})
        for each in spec.get("containers", ()):
            each |= {"image": GPU_TEST, "imagePullPolicy": "Never"}
            each |= {"command": ["sh", "-c", FOREVER]}
            for key in ("args", "readinessProbe", "volumeMounts"):
                each.pop(key, None)
        spec.pop("volumes", None)
        made["metadata"].pop("namespace", None)
        if "containers" in spec:
            spec["terminationGracePeriodSeconds"] = 1
    return found


def wait_until_running(cluster: Cluster, namespace: str, count: int) -> None:
    """Return when so many pods run there."""
    wait_for(f"{count} pods run", lambda: len(running(cluster, namespace)) == count, 150, 1)


def given(agent: Agent) -> list[tuple[str, int, int]]:
    """What each pod holds: its name without what its controller made up, MiB and percent."""
    return sorted(
        (grant.pod.name.split("-")[0], (share.memory_bytes or 0) >> 20, share.core_percent)
        for grant in agent.grants()
        for share in grant.shares
    )


def test_every_kind_of_workload_runs(cluster: Cluster, claims: Agent) -> None:
    """A Job, a StatefulSet, a DaemonSet and a Deployment; a Job that ends gives its slice back."""
    job = workload("Job", "batch/v1")
    spec = job["spec"]["template"]["spec"]
    spec |= {"restartPolicy": "Never"}
    spec["containers"][0]["command"] = ["sh", "-c", "until [ -e /end ]; do sleep 1; done"]
    kinds = ("StatefulSet", "DaemonSet", "Deployment")
    try:
        cluster.apply(job, *(workload(kind) for kind in kinds))
        wait_for("four pods run", lambda: len(running(cluster)) == 4, 120, 0.5)
        assert len(claims.grants()) == sum(cards_of(cluster).values()) == 4
        (name,) = (each for each in running(cluster) if each.startswith("job-"))
        cluster.kubectl("exec", name, "--", "touch", "/end")
        cluster.kubectl("wait", "--for=condition=complete", "job/job", "--timeout=120s")
        wait_for("its grant has ended", lambda: len(claims.grants()) == 3, 60)
        assert phase(cluster, name, "default") == "Succeeded"
    finally:
        cluster.kubectl("delete", ",".join(kinds), "--all", "--wait=true")


def test_the_samples_run_as_they_are_through_both_allocation_apis(
    cluster: Cluster, claims: Agent, plain: str
) -> None:
    """With the same memory and compute for each pod."""
    objects = [made for name in SAMPLES for made in sample(name)]
    found = []
    for namespace, api in (("default", "dra"), (plain, "device-plugin")):
        set_allocation_api(cluster, api)
        if api == "device-plugin":
            wait_for_allocatable(cluster, FOUR_CARDS, 60)
        cluster.apply(*(in_namespace(made, namespace) for made in objects))
        wait_until_running(cluster, namespace, SAMPLE_PODS)
        found.append(given(claims))
        everything = "deployment,statefulset,job,service,pod"
        cluster.kubectl("delete", everything, "--all", "-n", namespace, "--wait=true")
        wait_for("no grant is left", lambda: not claims.grants(), 120)
    by_claims, by_units = found
    assert by_claims == by_units
    assert len(by_claims) == SAMPLE_PODS


def test_200_pods_created_and_deleted_leave_nothing(cluster: Cluster, claims: Agent) -> None:
    """No grant, no claim, no CDI file, no slice's files."""
    create_and_delete_200_pods(cluster)
    wait_for("no claim is left", lambda: not cluster.every("resourceclaim"), 60)
    assert claims.grants() == []
    assert not list(cluster.node.cdi_directory.glob("gpu-device-plugin-*"))
    assert not list((claims.directories.run / "slices").iterdir())
