"""With the chart's controller a pod goes where one card fits, over three nodes, or waits; none fails.

Pods choose the chart's second kube-scheduler by name; it asks the controller over TLS.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_image import AgentImage
from tests.e2e.placement import MEMORY_ONLY, Placement, asking, on, placement
from tests.e2e.views import check_agreement, granted
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.binaries import scheduler_version
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import RELEASE, RELEASE_NAMESPACE
from tools.harness.cluster.pods import MEMORY
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.controller.run_controller import LEASE
from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION, ASSIGNED

_CARDS = 4
_ASKS_WHERE_SUMS_FIT = tuple(map(int, scheduler_version().split(".")[:2])) >= (1, 38)
# What the kubelet says without an answer of the agent: its devices are out, or the call is cut off.
_CUT_OFF = re.compile(
    "Allocate failed due to (no healthy devices|.*desc = (error reading|connection|transport)|.*stopped)"
)
_NOT_ENOUGH = "node(s) didn't have enough device resources to allocate"


@pytest.fixture(scope="module")
def controller(
    cluster: Cluster, serving_agent: Agent, agent_image: AgentImage, results: Path
) -> Iterator[Placement]:
    """Three nodes, a controller that leads and a scheduler that asks it."""
    with placement(cluster, serving_agent, agent_image, results / "placement") as found:
        yield found


@pytest.fixture
def placed(agent: Agent, controller: Placement) -> Placement:
    """The same on empty nodes; `agent` removes what a test leaves."""
    assert agent.program.running()

    def is_empty() -> bool:
        cards = [card for devs in controller.inspected().values() for card in devs]
        return len(cards) == 3 * _CARDS and not any(card["usedGPU"] for card in cards)

    wait_for("the ledger is empty", is_empty, 60, 0.5)
    return controller


def phases(cluster: Cluster, killed: str = "") -> dict[str, str]:
    """Phase of each pod; one that the kubelet of `killed` rejected while its agent was away is "Rejected"."""
    found: dict[str, str] = {}
    for each in cluster.every("pod"):
        status, node = each["status"], each["spec"].get("nodeName")
        is_cut_off = node == killed and _CUT_OFF.search(status.get("message", ""))
        found[each["metadata"]["name"]] = "Rejected" if is_cut_off else status["phase"]
    return found


def nodes(cluster: Cluster) -> dict[str, str]:
    """Node of each pod that has one."""
    found = {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in cluster.every("pod")}
    return {name: node for name, node in found.items() if node}


def wait_until_all_run(cluster: Cluster, *names: str, killed: str = "") -> None:
    """Return when these pods run; where one has failed or no further one runs, the error says what became of each.

    A loaded machine starts many one by one: each of them has its own time. Those that the kubelet
    of `killed` rejected while its agent was away count as over.
    """
    seen: dict[str, str] = {}

    def more_than(before: int) -> int:
        seen.update(phases(cluster, killed))
        found = Counter(seen.get(name) for name in names)
        over = len(names) if found["Failed"] else found["Running"] + found["Rejected"]
        return over if over > before else 0

    over = 0
    try:
        while over < len(names):
            over = wait_for(f"more than {over} pods run", partial(more_than, over), 180, 0.5)
    finally:
        # Where one has failed, those that merely do not run yet are no news.
        failed = [name for name in names if seen.get(name) == "Failed"]
        late = [name for name in names if seen.get(name) not in {"Running", "Rejected"}]
        assert not late, {name: told(cluster, name) for name in failed or late}


def told(cluster: Cluster, name: str) -> object:
    """A pod's node and status, and what its Events say."""
    found = cluster.find("pod", name) or {"spec": {}, "status": "gone"}
    events = cluster.kubectl(
        *("get", "events", "--field-selector", f"involvedObject.name={name}"),
        *("-o", "jsonpath={range .items[*]}{.reason}: {.message}{'\\n'}{end}"),
    )
    return found["spec"].get("nodeName"), found["status"], events


def reasons(cluster: Cluster, name: str) -> str:
    """What the scheduler said of a pod."""
    return cluster.kubectl(
        *("get", "events", "--field-selector"),
        f"reason=FailedScheduling,involvedObject.name={name}",
        *("-o", "jsonpath={..message}"),
    )


def test_a_pod_lands_on_the_one_node_of_three_where_a_card_fits(placed: Placement) -> None:
    """8 units and 30 %: the sums fit two nodes, one card of one of them does; the third has no compute (R-541)."""
    cluster = placed.cluster
    fillers = [asking(f"full-n1-{card}", 10, 40, **on(NODE)) for card in range(_CARDS)]
    fillers += [asking(f"full-n2-{card}", 10, 40, **on("n2")) for card in range(_CARDS - 1)]
    cluster.apply(*fillers)
    wait_until_all_run(cluster, *(each["metadata"]["name"] for each in fillers))
    cluster.apply(asking("fits", 8, 30))
    wait_until_all_run(cluster, "fits")
    assert nodes(cluster)["fits"] == "n2"
    assert "Failed" not in phases(cluster).values()


def test_jobs_of_memory_only_and_jobs_with_compute_never_meet_on_a_node(placed: Placement) -> None:
    """Also where the other kind of node has more room (R-104, R-541)."""
    cluster = placed.cluster
    pods = [asking(f"memory-{number}", 4, None) for number in range(6)]
    pods += [asking(f"compute-{number}", 4, 20) for number in range(6)]
    cluster.apply(*pods)
    wait_until_all_run(cluster, *(each["metadata"]["name"] for each in pods))
    for name, node in nodes(cluster).items():
        assert (node == MEMORY_ONLY) == name.startswith("memory"), (name, node)


def test_a_pod_that_fits_no_single_card_waits_with_the_reason_and_no_pod_fails(
    placed: Placement,
) -> None:
    """20 units are free on each node and 5 on each card; 8 are asked, until a card is free (R-119, R-529, R-541)."""
    cluster = placed.cluster
    full = [
        asking(f"full-{node}-{card}", 10, 40, **on(node))
        for node in (NODE, "n2")
        for card in range(_CARDS)
    ]
    cluster.apply(*full)
    wait_until_all_run(cluster, *(each["metadata"]["name"] for each in full))
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
    (waiting,) = wait_for("the pod is made", lambda: cluster.every("pod", selector="app=waits"), 60)
    name = waiting["metadata"]["name"]
    wait_for("the event says why", lambda: _NOT_ENOUGH in reasons(cluster, name), 60, 0.5)
    assert name not in nodes(cluster)
    cluster.kubectl("delete", "pod", "full-n2-2", "--wait=true")
    wait_until_all_run(cluster, name)
    assert len(cluster.every("pod", selector="app=waits")) == 1
    assert "Failed" not in phases(cluster).values()


def fill(cluster: Cluster, *units: int, ends_after: int = 0, **spec: Any) -> set[str]:
    """On each card of the first node a running pod of so many units; classes of a higher priority are there too."""
    for name, value in (("middle", 10), ("urgent", 1000)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        cluster.apply({**kind, "metadata": {"name": name}, "value": value})
    pods = [asking(f"full-{n}", each, 40, **on(NODE), **spec) for n, each in enumerate(units)]
    if ends_after:
        for each in pods:
            (main,) = each["spec"]["containers"]
            main["lifecycle"] = {"preStop": {"sleep": {"seconds": ends_after}}}
    cluster.apply(*pods)
    names = {each["metadata"]["name"] for each in pods}
    wait_until_all_run(cluster, *names)
    return names


def wait_until_one_has_gone(cluster: Cluster, names: set[str]) -> None:
    """Of those that were there, and not two."""
    wait_for("one has gone", lambda: not names <= phases(cluster).keys(), 60, 0.5)
    assert len(names - phases(cluster).keys()) == 1


def test_preemption_evicts_who_frees_a_card_and_not_whom_the_sums_propose(
    placed: Placement,
) -> None:
    """10 units are asked and 8 are free in all: by sums the pod of 3 and of the lowest priority is enough."""
    cluster = placed.cluster
    names = fill(cluster, 13, 13, 13, 10, priorityClassName="middle")
    cluster.apply(asking("small", 3, 5, **on(NODE)))
    wait_until_all_run(cluster, "small")
    cluster.apply(asking("new", 10, 30, priorityClassName="urgent", **on(NODE)))
    wait_until_all_run(cluster, "new", "small")
    wait_until_one_has_gone(cluster, names)


def test_where_the_sums_fit_a_card_is_freed_if_kube_scheduler_asks_for_victims(
    placed: Placement,
) -> None:
    """8 units are free on the node and 2 on each card. From 1.38 on it asks; before, the pod waits."""
    cluster = placed.cluster
    names = fill(cluster, *[13] * _CARDS)
    cluster.apply(asking("new", 8, 30, priorityClassName="urgent", **on(NODE)))
    if _ASKS_WHERE_SUMS_FIT:
        wait_until_all_run(cluster, "new")
        wait_until_one_has_gone(cluster, names)
    else:
        wait_for("it waits", lambda: _NOT_ENOUGH in reasons(cluster, "new"), 60, 0.5)
        assert names <= phases(cluster).keys()


def test_the_room_of_a_victim_that_takes_long_to_end_goes_to_no_lesser_pod(
    placed: Placement,
) -> None:
    """One comes meanwhile; by sums there will be room for both. Nobody else is evicted while one ends."""
    cluster = placed.cluster
    seconds = {"ends_after": 15, "terminationGracePeriodSeconds": 30}
    names = fill(cluster, *[13] * _CARDS, **seconds)
    cluster.apply(asking("new", 10, 30, priorityClassName="urgent", **on(NODE)))

    def nominated() -> bool:
        status = cluster.get("pod", "new")["status"]
        return bool(status.get("nominatedNodeName") == NODE)

    wait_for("a node is named", nominated, 60, 0.2)
    cluster.apply(asking("lesser", 10, 30, **on(NODE)))
    wait_until_all_run(cluster, "new")
    wait_until_one_has_gone(cluster, names)
    assert "lesser" not in nodes(cluster)


def test_kube_scheduler_follows_the_lead_though_the_former_leader_lives(placed: Placement) -> None:
    """It keeps connections; whoever leads no more closes them, and answers 503 on no other one twice."""
    cluster, former = placed.cluster, placed.leader()
    selector = (
        f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=gpu-device-plugin-controller"
    )
    replicas = {p["metadata"]["name"] for p in cluster.every("pod", RELEASE_NAMESPACE, selector)}
    (other,) = replicas - {former}
    cluster.apply(asking("before", 1, 5))
    wait_until_all_run(cluster, "before")
    holder = json.dumps({"spec": {"holderIdentity": other}})
    cluster.kubectl(
        *("-n", RELEASE_NAMESPACE, "patch", "lease", LEASE, "--type=merge", f"--patch={holder}")
    )
    names = [f"after-{number}" for number in range(20)]
    cluster.apply(*(asking(name, 1, 5) for name in names))
    wait_until_all_run(cluster, *names)
    assert placed.leader() == other
    assert cluster.get("pod", former, RELEASE_NAMESPACE)["status"]["phase"] == "Running"


def test_a_burst_of_100_pods_ends_in_one_view_though_everything_is_killed_in_the_middle(
    placed: Placement,
) -> None:
    """Leader, both schedulers and an agent end by kill -9; ledger, kubelets, annotations agree.

    The kubelet rejects what it admits while the agent is away, and for ever.
    """
    cluster, names = placed.cluster, [f"burst-{number:03}" for number in range(100)]
    cluster.apply(*(asking(name, 1, 5) for name in names))
    wait_for("some run", lambda: "Running" in phases(cluster).values(), 60, 0.2)
    leader = placed.leader()
    placed.kill(leader)
    for scheduler in placed.scheduler_pods():
        placed.kill(scheduler)
    placed.agents["n2"].kill()
    placed.agents["n2"].start()
    wait_for("another one leads", lambda: placed.leader() not in ("", leader), 120, 0.5)
    wait_until_all_run(cluster, *names, killed="n2")

    running = {name for name, phase in phases(cluster).items() if phase == "Running"}
    by_node = Counter(node for name, node in nodes(cluster).items() if name in running)
    assert by_node.keys() <= {NODE, "n2"}
    held = {name: check_agreement(agent) for name, agent in placed.agents.items()}
    assert {node: len(found) for node, found in held.items() if found} == by_node
    check_annotations(placed, running)

    def ledger() -> dict[str, int]:
        return {n: sum(d["usedGPU"] for d in devs) for n, devs in placed.inspected().items()}

    units = {node: sum(len(u[MEMORY]) for u in found.values()) for node, found in held.items()}
    wait_for("the ledger says the same", lambda: ledger() == units, 60, 0.5)


def check_annotations(placed: Placement, names: Collection[str]) -> None:
    """Assert that each of these pods' annotations name the card of its grant; the agent writes them afterwards."""
    by_pod = {
        pod: grant for agent in placed.agents.values() for (pod, _), grant in granted(agent).items()
    }

    def assigned() -> list[dict[str, Any]]:
        pods = [p for p in placed.cluster.every("pod") if p["metadata"]["name"] in names]
        are_told = all(p["metadata"]["annotations"].get(ASSIGNED) == "true" for p in pods)
        return pods if are_told else []

    for each in wait_for("each annotation is of the agent", assigned, 60, 0.5):
        ((card, units),) = json.loads(each["metadata"]["annotations"][ALLOCATION])["0"].items()
        grant = by_pod[each["metadata"]["name"]]
        uuids = placed.agents[each["spec"]["nodeName"]].uuids()
        assert [uuids[int(card)]] == list(grant.devices), each["metadata"]["name"]
        assert units == 1
