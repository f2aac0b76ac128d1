"""Claims while API server, kubelet or agent are away: what runs goes on, and no card serves both allocation APIs."""

from typing import Any

from tests.e2e.claims import devices, holding, in_namespace, phase, set_allocation_api, waits
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NAMESPACE, Cluster
from tools.harness.cluster.pods import FOUR_CARDS
from tools.harness.cluster.waiting import wait_for


def status_of(cluster: Cluster, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """Of a pod's only container."""
    (status,) = cluster.get("pod", name, namespace)["status"]["containerStatuses"]
    return dict(status)


def slices(agent: Agent) -> dict[str, str]:
    """Pod -> its slice."""
    return {grant.pod.name: grant.slice_id for grant in agent.grants()}


def kill_both(cluster: Cluster, agent: Agent) -> None:
    """The agent and the kubelet, which starts before the agent does."""
    agent.kill()
    cluster.restart_kubelet(kill=True)
    agent.start()


def task_of(cluster: Cluster, name: str) -> str:
    """The id of a pod's container, as containerd knows it."""
    return str(status_of(cluster, name)["containerID"]).removeprefix("containerd://")


def test_without_the_api_server_containers_run_and_restart_in_their_slices(
    cluster: Cluster, claims: Agent
) -> None:
    """Also while the agent is away; what was asked meanwhile follows when both are back."""
    cluster.apply(holding("stays"), holding("leaves"))
    for name in ("stays", "leaves"):
        cluster.wait_for_phase(name, "Running", seconds=90)
    before = slices(claims)
    tasks = {name: task_of(cluster, name) for name in before}
    cluster.control_plane.server.stop()
    claims.kill()
    try:
        cluster.node.containerd_command("tasks", "kill", "-s", "SIGKILL", tasks["stays"])

        def ran_again() -> bool:
            listed = cluster.node.containerd_command("tasks", "ls")
            return tasks["stays"] not in listed and listed.count("RUNNING") >= 4

        wait_for("the container runs again", ran_again, 90, 0.5)
        claims.start()
    finally:
        cluster.control_plane.server.start()
        cluster.control_plane.wait_until_ready()
    cluster.wait_until_ready()
    assert slices(claims) == before
    cluster.kubectl("delete", "pod", "leaves", "--wait=true", "--grace-period=1")
    cluster.apply(holding("later"))
    cluster.wait_for_phase("later", "Running", seconds=120)
    assert [status_of(cluster, name)["restartCount"] for name in ("stays", "later")] == [1, 0]
    after = slices(claims)
    assert (set(after), after["stays"]) == ({"stays", "later"}, before["stays"])


def test_agent_and_kubelet_die_while_the_node_waits_to_change_its_allocation_api(
    cluster: Cluster, claims: Agent, plain: str
) -> None:
    """Both ways: what runs is not touched, and the node switches when the last pod has gone."""
    cluster.apply(holding("claimed"))
    cluster.wait_for_phase("claimed", "Running", seconds=90)
    set_allocation_api(cluster, "device-plugin")
    wait_for("it names the pod", lambda: "default/claimed" in waits(cluster), 60)
    kill_both(cluster, claims)
    wait_for("the cards are offered as before", lambda: len(devices(cluster)) == 4, 90)
    assert status_of(cluster, "claimed")["restartCount"] == 0
    cluster.kubectl("delete", "pod", "claimed", "--wait=true", "--grace-period=1")
    wait_for_allocatable(cluster, FOUR_CARDS, 120)

    cluster.apply(in_namespace(holding("classic"), plain))
    wait_for("it runs", lambda: phase(cluster, "classic", plain) == "Running", 90, 0.5)
    set_allocation_api(cluster, "dra")
    kill_both(cluster, claims)
    wait_for_allocatable(cluster, FOUR_CARDS, 90)
    assert status_of(cluster, "classic", plain)["restartCount"] == 0
    cluster.kubectl("delete", "namespace", plain)
    wait_for("all cards are offered", lambda: len(devices(cluster)) == 4, 150, 1)


def test_a_node_whose_agent_serves_no_claims_any_more_waits_for_those_that_are_held(
    cluster: Cluster, claims: Agent
) -> None:
    """As after `dra.enabled=false` on a node whose allocation API is `dra`; and back again."""
    cluster.apply(holding("stays"))
    cluster.wait_for_phase("stays", "Running", seconds=90)
    claims.stop()
    claims.program.command.append("--cdi-dir=")
    try:
        claims.start()
        wait_for("it names the pod", lambda: "default/stays" in waits(cluster), 60)
        wait_for("the kubelet removes what was offered", lambda: not devices(cluster), 90)
    finally:
        claims.stop()
        claims.program.command.pop()
        claims.start()
    wait_for("the cards are offered again", lambda: len(devices(cluster)) == 4, 90)
    assert status_of(cluster, "stays")["restartCount"] == 0
