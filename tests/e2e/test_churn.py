"""Pods that come and go leave nothing behind."""

from tests.e2e.agent import Agent
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.pods import container, pod, slice_of
from tests.e2e.views import held

BATCHES = 4
BATCH = 50
# A grant ends when the kubelet lacks it twice, 30 s apart.
RELEASE_SECONDS = 120


def test_200_pods_created_and_deleted_leave_no_grant(cluster: Cluster, agent: Agent) -> None:
    body = container("main", "true", resources=slice_of(1, 5))
    for batch in range(BATCHES):
        names = [f"brief-{batch}-{number}" for number in range(BATCH)]
        cluster.apply(*(pod(name, body) for name in names))

        def ended() -> bool:
            pods = cluster.every("pod")
            phases = [one["status"].get("phase") for one in pods]
            assert "Failed" not in phases, [
                one["status"] for one in pods if one["status"].get("phase") == "Failed"
            ]
            return phases == ["Succeeded"] * BATCH

        wait_for(f"batch {batch} has run", ended, 120, 1)
        cluster.kubectl("delete", "pod", "--all", "--wait=true", seconds=360)
    assert not held(cluster.node)
    wait_for("no grant is left", lambda: not agent.grants(), RELEASE_SECONDS, 1)
    slices = agent.directories.run / "slices"
    wait_for("no slice is left", lambda: not any(slices.iterdir()), RELEASE_SECONDS, 1)
