"""Pods that come and go leave nothing behind."""

from tests.e2e.churn import create_and_delete_200_pods
from tests.e2e.views import held
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.waiting import wait_for

# A grant ends when the kubelet lacks it twice, 30 s apart.
RELEASE_SECONDS = 120


def test_200_pods_created_and_deleted_leave_no_grant(cluster: Cluster, agent: Agent) -> None:
    """R-120."""
    create_and_delete_200_pods(cluster)
    assert not held(cluster.node)
    wait_for("no grant is left", lambda: not agent.grants(), RELEASE_SECONDS, 1)
    slices = agent.directories.run / "slices"
    wait_for("no slice is left", lambda: not any(slices.iterdir()), RELEASE_SECONDS, 1)
