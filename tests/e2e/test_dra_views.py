"""What people see of claims on a real cluster: `kubectl gpu` and the agent's metrics."""

from tests.e2e.claims import cards_of, holding
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.tenants import SLICE_MIB
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.pods import container, pod, slice_of
from tools.harness.cluster.waiting import wait_for


def test_kubectl_gpu_and_metrics_show_claims_as_they_show_units(
    cluster: Cluster, claims: Agent
) -> None:
    """Of a pod that waits, kube-scheduler says only that it cannot allocate all claims."""
    cluster.apply(holding("runs"))
    cluster.wait_for_phase("runs", "Running", seconds=90)
    wide = container("main", resources=slice_of(14, 75))
    cluster.apply(*(pod(f"wide-{n}", wide) for n in range(4)))
    wait_for("three of them have a card", lambda: sum(cards_of(cluster).values()) == 4, 90, 0.5)
    wait_for("and their slices", lambda: len(claims.grants()) == 4, 90, 0.5)
    (waiting,) = (
        p["metadata"]["name"] for p in cluster.every("pod") if not p["spec"].get("nodeName")
    )

    def shown(*words: str) -> str:
        return " ".join(kubectl_gpu(cluster, *words).split())

    wait_for("the map has all", lambda: "44 of 60 units held" in shown("map"), 30, 0.5)
    assert "=default/runs" in shown("map")
    assert "given by claims" in shown("map")
    why = shown("why", f"default/{waiting}", "-o", "wide")
    assert "through claims: slice-14-75-c0" in why
    assert "has no card with room for it" in why
    assert "13 of 15 units, 70 % compute free, 1 unit and 5 % compute too few" in why
    assert "what fits: 13 units (14005 MiB) with 70 % on card" in why
    assert "cannot allocate all claims" in why
    assert f"container main: {SLICE_MIB} MiB of card" in shown("why", "default/runs")

    told = claims.samples("gpu_device_plugin_slice_claim")
    assert told.keys() == {grant.pod.name for grant in claims.grants()}
    assert claims.samples("gpu_device_plugin_slice_core_percent")["runs"] == 30
