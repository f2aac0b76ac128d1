"""What cannot be served is refused with a reason that a person can act on."""

from tests.e2e.views import check_agreement
from tools.harness.cluster.agent import Agent, resources, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import CORE, FOUR_CARDS, MEMORY, container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

MODE_LABEL = "ack.node.gpu.schedule"


def test_a_pod_that_fits_no_single_card_is_rejected_with_the_largest_free_slice(
    cluster: Cluster, agent: Agent
) -> None:
    """R-523."""
    names = [f"filler-{number}" for number in range(4)]
    filler = container("main", resources=slice_of(10, 50))
    cluster.apply(*(pod(name, filler) for name in names))
    for name in names:
        cluster.wait_for_phase(name, "Running")
    # 20 units are free on the node, but no card has more than 5.
    cluster.apply(pod("too-large", container("main", resources=slice_of(8, 20))))
    cluster.wait_for_phase("too-large", "Failed")
    described = cluster.kubectl("describe", "pod", "too-large")
    # 5 of 15 units of 16160 MiB are 5386 MiB.
    for words in ("UnexpectedAdmissionError", "default/too-large", NODE, MEMORY, "5386 MiB"):
        assert words in described
    assert set(check_agreement(agent)) == {(name, "main") for name in names}


def test_a_percentage_that_is_no_multiple_of_five_is_rejected(
    cluster: Cluster, agent: Agent
) -> None:
    cluster.apply(pod("seven", container("main", resources=slice_of(2, 7))))
    cluster.wait_for_phase("seven", "Failed")
    described = cluster.kubectl("describe", "pod", "seven")
    for words in ("default/seven", CORE, "7", "multiple of 5"):
        assert words in described
    assert not check_agreement(agent)


def set_mode(cluster: Cluster, mode: str) -> None:
    """Ask for a mode by the node's label."""
    cluster.kubectl("label", "node", NODE, f"{MODE_LABEL}={mode}", "--overwrite")


def node_messages(cluster: Cluster) -> str:
    """The texts of all Events about the node."""
    events = cluster.kubectl(
        "get", "events", "-A", "--field-selector", f"involvedObject.name={NODE}", "-o", "yaml"
    )
    return events.replace("\n      ", " ").replace("\n    ", " ")


def test_the_label_of_a_node_that_is_in_use_does_not_switch_it(
    cluster: Cluster, agent: Agent
) -> None:
    """R-107, R-501."""
    cluster.apply(pod("holder", container("main", resources=slice_of(2, 30))))
    cluster.wait_for_phase("holder", "Running")
    set_mode(cluster, "cgpu")
    try:
        wait_for(
            "an Event names who is in the way", lambda: "default/holder" in node_messages(cluster)
        )
        assert resources(cluster, "allocatable") == FOUR_CARDS
        cluster.apply(pod("follower", container("main", resources=slice_of(2, 30))))
        cluster.wait_for_phase("follower", "Running")
        assert len(check_agreement(agent)) == 2
        cluster.kubectl("delete", "pod", "--all", "--wait=true")
        # The kubelet keeps a withdrawn resource as 0 for a while.
        wait_for_allocatable(cluster, {**FOUR_CARDS, CORE: "0"})
    finally:
        cluster.kubectl("delete", "pod", "--all", "--wait=true")
        set_mode(cluster, "core_mem")
    wait_for_allocatable(cluster, FOUR_CARDS)
