"""Claims while API server, kubelet or agent are away: what runs goes on, and no card serves both allocation APIs."""

from typing import Any

from tests.e2e.claims import (
    cards_of,
    devices,
    holding,
    in_namespace,
    phase,
    running,
    set_allocation_api,
    taints,
)
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NAMESPACE, Cluster
from tools.harness.cluster.pods import CORE, COUNT, MEMORY
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


def test_agent_and_kubelet_die_while_the_node_changes_its_allocation_api(
    cluster: Cluster, claims: Agent, plain: str
) -> None:
    """Both ways: what runs is not touched, and no card serves both allocation APIs."""
    cluster.apply(holding("claimed"))
    cluster.wait_for_phase("claimed", "Running", seconds=90)
    (own,) = cards_of(cluster)
    set_allocation_api(cluster, "device-plugin")
    wait_for("the cards are tainted", lambda: set(taints(cluster).values()) == {"device-plugin"})
    kill_both(cluster, claims)
    wait_for("its card alone is offered", lambda: taints(cluster) == {own: "device-plugin"}, 90)
    wait_for_allocatable(cluster, {MEMORY: "45", CORE: "300", COUNT: "3"}, 90)
    cluster.apply(in_namespace(holding("classic"), plain))
    wait_for("it runs", lambda: phase(cluster, "classic", plain) == "Running", 90, 0.5)

    set_allocation_api(cluster, "dra")
    kill_both(cluster, claims)
    wait_for("three cards are offered", lambda: list(taints(cluster).values()) == [""] * 3, 90)
    wait_for_allocatable(cluster, {MEMORY: "2", CORE: "30", COUNT: "0"}, 90)
    cluster.apply(*(holding(f"next-{n}") for n in range(8)))
    wait_for("nine pods run", lambda: len(running(cluster)) == 9, 120, 0.5)
    held = {grant.pod.name: set(grant.devices) for grant in claims.grants()}
    assert not any(held["classic"] & of for name, of in held.items() if name != "classic")
    for name, namespace in (("claimed", "default"), ("classic", plain)):
        status = status_of(cluster, name, namespace)
        assert (status["restartCount"], "running" in status["state"]) == (0, True)
    cluster.kubectl("delete", "namespace", plain)
    wait_for("all cards are offered", lambda: len(devices(cluster)) == 4, 150, 1)


def test_an_agent_that_serves_no_claims_any_more_gives_the_free_cards_to_the_device_plugin(
    cluster: Cluster, claims: Agent
) -> None:
    """As after `dra.enabled=false` on a node whose allocation API is `dra`; and back again."""
    cluster.apply(holding("stays"))
    cluster.wait_for_phase("stays", "Running", seconds=90)
    claims.stop()
    claims.program.command.append("--cdi-dir=")
    try:
        claims.start()
        wait_for_allocatable(cluster, {MEMORY: "45", CORE: "300", COUNT: "3"}, 90)
        wait_for("the kubelet removes what was offered", lambda: not devices(cluster), 90)
    finally:
        claims.stop()
        claims.program.command.pop()
        claims.start()
    wait_for("the cards are offered again", lambda: len(devices(cluster)) == 4, 90)
    assert status_of(cluster, "stays")["restartCount"] == 0
