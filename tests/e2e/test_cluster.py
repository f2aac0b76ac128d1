"""The cluster of these tests is a real one: it schedules and runs pods, and shows what they say."""

from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import container, pod


def test_the_node_is_ready_and_runs_the_version_asked_for(cluster: Cluster) -> None:
    node = cluster.get("node", NODE)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{cluster.binaries.kubernetes_version}"
    assert not node["spec"].get("taints")


def test_a_pod_is_scheduled_runs_to_its_end_and_leaves_a_log(cluster: Cluster) -> None:
    cluster.apply(pod("ends", container("main", "echo done here")))
    ended = cluster.wait_for_phase("ends", "Succeeded", "Failed")
    assert ended["status"]["phase"] == "Succeeded"
    assert ended["spec"]["nodeName"] == NODE
    assert cluster.kubectl("logs", "ends") == "done here\n"
    cluster.kubectl("delete", "pod", "ends", "--wait=true")


def test_a_command_runs_inside_a_running_pod_that_has_an_address(cluster: Cluster) -> None:
    cluster.apply(pod("stays", container("main")))
    running = cluster.wait_for_phase("stays", "Running")
    assert running["status"]["podIP"].startswith("10.201.")
    assert cluster.kubectl("exec", "stays", "--", "echo", "inside") == "inside\n"
    cluster.kubectl("delete", "pod", "stays", "--wait=true")


def test_pods_survive_a_restart_of_the_kubelet(cluster: Cluster) -> None:
    cluster.apply(pod("survives", container("main")))
    before = cluster.wait_for_phase("survives", "Running")
    cluster.restart_kubelet(kill=True)
    cluster.wait_until_ready()
    after = cluster.get("pod", "survives")
    assert after["status"]["phase"] == "Running"
    same = [status["containerID"] for status in before["status"]["containerStatuses"]]
    assert [status["containerID"] for status in after["status"]["containerStatuses"]] == same
    cluster.kubectl("delete", "pod", "survives", "--wait=true")
