"""The cluster of these tests is a real one, of the version that was asked for."""

from tools.harness.cluster.cluster import NODE, Cluster


def test_the_node_is_ready_and_runs_the_version_asked_for(cluster: Cluster) -> None:
    node = cluster.get("node", NODE)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{cluster.binaries.kubernetes_version}"
    assert not node["spec"].get("taints")
