"""`kubectl gpu why` names a cure that fits what keeps the pod from its slice, and no other."""

from typing import Any

import pytest
from tests.cli.test_overview import Cluster, asking_devices, cluster, ready
from tools.harness.api_server import status
from tools.harness.objects import Json, held, node, pod

__all__ = ["cluster"]

CORE_MEM = {"ack.node.gpu.schedule": "core_mem"}
LESS = "ask less"
RPC = (
    "Allocate failed due to rpc error: code = ResourceExhausted desc = "
    "pod ns/late, container a: no card has room, which is unexpected"
)


async def why(cluster: Cluster, asking: Json, phase: str = "Pending", **status: Any) -> str:
    """What is said of that pod."""
    await cluster.add(asking, phase, **status)
    name = asking["metadata"]["name"]
    return (await cluster.run("why", f"ns/{name}", columns=300)).output


async def test_a_pod_that_is_done_has_no_cure(cluster: Cluster) -> None:
    """Nor a place on a node."""
    found = await why(cluster, pod("done", 2, 30, on="gpu-a"), "Succeeded")

    assert "->" not in found
    assert "  node" not in found


async def test_an_unknown_placement_is_a_rule_and_no_lack_of_room(cluster: Cluster) -> None:
    asking = pod("odd", 2, 30, annotations={"gpu-device-plugin/placement": "tightly"})
    found = await why(cluster, asking)

    assert "placement=tightly is not a known policy. Known: binpack" in found
    assert "no node takes the pod as it is" in found
    assert LESS not in found


@pytest.mark.parametrize(
    ("labels", "spec", "selector", "cure"),
    [
        ({}, {"unschedulable": True}, {}, "`kubectl uncordon gpu-a`"),
        (
            {},
            {},
            {"pool": "x"},
            "`kubectl label node gpu-a pool=x`, or change the pod's nodeSelector",
        ),
        ({"pool": "y"}, {}, {"pool": "x"}, "closed to it: change the pod's nodeSelector"),
        (
            {"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"},
            {"unschedulable": True},
            {},
            "closed to it: wait until the operator gives gpu-a back",
        ),
    ],
)
async def test_a_node_with_room_that_is_closed_to_the_pod_is_to_be_opened(
    cluster: Cluster, labels: dict[str, str], spec: Json, selector: dict[str, str], cure: str
) -> None:
    """A label that the node has with another value is not to be overwritten."""
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), labels, **spec))
    asking = pod("kept", 2, 30)
    asking["spec"]["nodeSelector"] = selector
    found = await why(cluster, asking)

    assert cure in found
    assert LESS not in found


async def test_a_closed_node_without_room_asks_for_less(cluster: Cluster) -> None:
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), unschedulable=True))
    found = await why(cluster, pod("large", 16, 30))

    assert "and the node is cordoned" in found
    assert LESS in found
    assert "uncordon" not in found


@pytest.mark.parametrize(
    ("units", "whose", "name", "beside"),
    [
        (0, "HAMi", "nvidia.com/gpumem", {"nvidia.com/gpu": "1"}),
        (2, "HAMi", "nvidia.com/gpumem", {"nvidia.com/gpu": "1"}),
        (0, "HAMi", "nvidia.com/priority", {"nvidia.com/gpu": "1"}),
        (2, "HAMi", "nvidia.com/priority", {}),
        (0, "Koordinator", "koordinator.sh/gpu", {}),
        (2, "Koordinator", "koordinator.sh/gpu-core", {}),
    ],
)
async def test_a_pod_in_names_of_others_is_to_be_translated(
    cluster: Cluster, units: int, whose: str, name: str, beside: Json
) -> None:
    """Where nothing has done so, also beside names of this plugin: two pods of it would not help."""
    asking = pod("other", units, 30 if units else 0)
    asking["spec"]["containers"][0]["resources"]["limits"] |= {name: "50", **beside}
    found = await why(cluster, asking)

    assert f"it asks by {whose}'s names ({name})" in found
    webhook = "controller.webhook.enabled and controller.webhook."
    assert f"controller.enabled, {webhook}{whose.lower()}, which" in found
    assert "two pods" not in found
    assert "by its cards it fits" not in found


async def test_a_pod_that_koordinator_has_placed_asks_for_nothing_of_ours(cluster: Cluster) -> None:
    asking = pod("theirs", 0, 0, on="elsewhere")
    asking["spec"]["containers"][0]["resources"]["limits"] = {"koordinator.sh/gpu-memory": "8Gi"}
    assert "it asks for nothing of this plugin" in await why(cluster, asking)


async def test_a_slice_and_a_card_are_two_pods_with_hamis_priority_too(cluster: Cluster) -> None:
    """The webhook drops the priority alone, and the pod would still ask for both."""
    asking = pod("hami", 2, 30)
    limits = asking["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"nvidia.com/gpu": "1", "nvidia.com/priority": "1"}

    assert "asks for a slice and for nvidia.com/gpu\n" in await why(cluster, asking)


async def test_a_pod_that_was_written_in_mib_is_told_its_units(cluster: Cluster) -> None:
    """Where no card has so many units."""
    found = await why(cluster, pod("mib", 3500, 30))
    assert "->      if 3500 MiB are meant, ask 4 units (of 1024 MiB); else ask less" in found


async def test_a_pod_that_no_scheduler_has_spoken_of_may_have_none(cluster: Cluster) -> None:
    asking = pod("alone", 2, 30)
    asking["spec"]["schedulerName"] = "gpu-scheduler"
    found = await why(cluster, asking)

    assert "no scheduler has spoken of it: does one run that serves schedulerName gpu-" in found
    assert "the scheduler names above" not in found


async def test_annotations_of_a_former_life_are_no_slice(cluster: Cluster) -> None:
    """A restored backup and `kubectl debug --copy-to` bring them: until it is bound a pod holds nothing."""
    copied = {
        "scheduler.framework.gpushare.allocation": '{"0":{"0":2}}',
        "scheduler.framework.gpushare.assigned": "true",
        "gpu-device-plugin/devices": '{"0":["GPU-x"]}',
    }
    found = await why(cluster, pod("copy", 2, 30, annotations=copied))

    assert "holds" not in found
    assert "no node publishes cards" not in found
    assert "by its cards it fits on" in found


async def test_the_schedulers_words_are_known_without_an_event(cluster: Cluster) -> None:
    """Events are gone after an hour; the pod's condition stays. Where both say it, it is said once."""
    text = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    conditions = [{**condition, "message": text}]
    found = await why(cluster, pod("late", 2, 30), conditions=conditions)
    await cluster.say("late", "FailedScheduling", text, "default-scheduler")
    again = (await cluster.run("why", "ns/late", columns=300)).output

    assert f"said    Unschedulable: {text}" in found
    assert "which the scheduler names" in found
    assert again.count(text) == 1


@pytest.mark.parametrize(
    ("phase", "started", "shown"),
    [
        pytest.param("Running", "04:00:01", {"IsolationKept"}, id="it runs"),
        pytest.param("Running", "04:00:00", {"FailedScheduling", "IsolationKept"}, id="since then"),
        pytest.param("Pending", "", {"FailedScheduling", "IsolationKept"}, id="it waits"),
    ],
)
async def test_what_was_said_before_the_pod_started_is_not_said_of_a_running_one(
    cluster: Cluster, phase: str, started: str, shown: set[str]
) -> None:
    """But what the agent said when it admitted the pod. The Events are of 04:00:00."""
    await cluster.say("again", "FailedScheduling", "0/3 nodes are available", "default-scheduler")
    await cluster.say("again", "IsolationKept", "CGPU_DISABLE does nothing", "gpu-device-plugin")
    asking = pod("again", 2, 30, on="gpu-a", annotations=held(2, 2, 30))
    status = {"startTime": f"2026-11-22T{started}Z"} if started else {}
    found = await why(cluster, asking, phase, **status)

    assert {each for each in ("FailedScheduling", "IsolationKept") if each in found} == shown


@pytest.mark.parametrize(
    ("uid", "times"), [("its-own", 1), ("the-kubelets", 1), ("of-before", 0), ("", 1)]
)
async def test_what_was_said_of_an_earlier_pod_of_this_name_is_not_said_of_this_one(
    cluster: Cluster, uid: str, times: int
) -> None:
    """As a StatefulSet makes them. Of a static pod the kubelet says a uid of its own."""
    await cluster.say("again", "FailedMount", "no such volume", "kubelet", uid=uid)
    asking = pod("again", 2, 30, annotations={"kubernetes.io/config.mirror": "the-kubelets"})
    asking["metadata"]["uid"] = "its-own"

    assert (await why(cluster, asking)).count("FailedMount") == times


async def test_gates_and_a_deletion_keep_a_pod_from_every_scheduler(cluster: Cluster) -> None:
    gated = pod("gated", 2, 30)
    gated["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    deleted = pod("deleted", 2, 30)
    deleted["metadata"]["deletionTimestamp"] = "2026-11-22T04:00:00Z"

    assert "scheduling gates are removed: example.com/quota" in await why(cluster, gated)
    found = await why(cluster, deleted)
    assert "not bound to a node, being deleted" in found
    assert "so no scheduler takes it" in found


async def test_a_slice_and_a_whole_card_are_two_pods(cluster: Cluster) -> None:
    """Both are among what it asks; no node fits, whichever has which."""
    whole = ready(node("gpu-w", 2, mode="default"))
    whole["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    await cluster.server.put("/api/v1/nodes/gpu-w", whole)
    mixed = pod("mixed", 2, 30)
    second = asking_devices("x", 1)["spec"]["containers"][0]
    mixed["spec"]["containers"].append({**second, "name": "b"})
    found = await why(cluster, mixed)

    assert "container a: aliyun.com/gpu-mem: 2" in found
    assert "nvidia.com/gpu: 1" in found
    assert "node    gpu-a: never: it gives slices, and no nvidia.com/gpu" in found
    assert "node    gpu-w: never, in mode default" in found
    assert "make two pods of it" in found
    assert "fits on 0 of 3 nodes" in found
    assert ": fits," not in found


async def test_a_refusal_is_told_in_the_agents_words(cluster: Cluster) -> None:
    """Without those of gRPC and the kubelet around them, in the pod's status as in an Event."""
    reason = {"reason": "UnexpectedAdmissionError"}
    refused = await why(cluster, pod("late", 16, 30, on="gpu-a"), "Failed", message=RPC, **reason)
    await cluster.say("gone", "UnexpectedAdmissionError", RPC, "kubelet")
    gone = (await cluster.run("why", "ns/gone", columns=300)).output

    for found in (refused, gone):
        assert "pod ns/late, container a: no card has room\n" in found.replace(" \n", "\n")
        assert "rpc error" not in found
    assert "delete it" in refused


async def test_nodes_whose_cards_cannot_be_read_are_named(cluster: Cluster) -> None:
    """They do publish cards, and may have room."""
    for name in ("gpu-a", "gpu-b"):
        broken = ready(node(name))
        broken["metadata"]["annotations"]["gpu-device-plugin/cards"] = "{}"
        await cluster.server.put(f"/api/v1/nodes/{name}", broken)
    found = await why(cluster, pod("wants", 2, 30))

    assert "nodes   gpu-a, gpu-b: annotation of cards names no known mode" in found
    assert "run `kubectl gpu doctor`: it names the cure" in found
    assert "no node publishes cards" not in found
    assert LESS not in found
    served = pod("served", 2, 30, on="gpu-a", annotations=held(0, 2, 30))
    assert "no slice yet" not in await why(cluster, served, "Running")


async def test_a_pod_that_failed_by_itself_was_not_refused(cluster: Cluster) -> None:
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    failed = pod("failed", 2, 30, on="gpu-a", annotations=held(2, 2, 30))
    found = await why(cluster, failed, "Failed", containerStatuses=[{"name": "a", "state": state}])

    assert "said    container a ended with exit code 1 (Error)" in found
    assert "`kubectl logs -n ns failed -c a`" in found
    assert "  node" not in found
    assert "delete it" not in found


async def test_a_pod_that_waits_with_its_slice_is_told_for_what(cluster: Cluster) -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pulling = pod("pulling", 2, 30, on="gpu-a", annotations=held(2, 2, 30))
    statuses = [{"name": "a", "state": state}]
    found = await why(cluster, pulling, "Pending", containerStatuses=statuses)

    assert "holds   container a: 2154 MiB of card 2" in found
    assert "said    container a waits: ImagePullBackOff: no such image" in found
    assert "it has what it asks of the cards" in found
    assert "  node" not in found


@pytest.mark.parametrize("phase", ["Pending", "Running"])
async def test_a_node_that_is_gone_or_not_ready_is_named(cluster: Cluster, phase: str) -> None:
    """Of a pod that has its slice too: what its annotations say is from before."""
    mine = pod("mine", 2, 30, on="gpu-a", annotations=held(2, 2, 30))
    away = ready(node("gpu-a", 3), CORE_MEM)
    away["status"]["conditions"] = [
        {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    ]
    await cluster.server.put("/api/v1/nodes/gpu-a", away)
    found = await why(cluster, mine, phase)
    assert "its node gpu-a is not ready: Kubelet stopped posting" in found
    assert "may be out of date" in " ".join(found.split())
    await cluster.server.delete("/api/v1/nodes/gpu-a")
    found = await why(cluster, mine, phase)

    assert "its node gpu-a is not in the cluster" in found
    assert "it has what it asks" not in found


@pytest.mark.parametrize("kind", ["nodes", "pods"])
async def test_who_may_not_list_the_nodes_is_told_all_the_rest(cluster: Cluster, kind: str) -> None:
    """As a person with rights in one namespace."""
    words = f'{kind} is forbidden: User "dev" cannot list resource "{kind}"'
    cluster.server.fault = lambda seen: (
        status(403, words) if seen.path == f"/api/v1/{kind}" else None
    )
    big = await why(cluster, pod("big", 16, 30))
    refusal = {"reason": "UnexpectedAdmissionError", "message": "no room"}
    late = await why(cluster, pod("late", 2, 30, on="gpu-a"), "Failed", **refusal)
    mine = pod("mine", 2, 30, on="gpu-a", annotations=held(2, 2, 30))
    served = await why(cluster, mine, "Running")

    for found in (big, late):
        assert "asks    container a: aliyun.com/gpu-mem" in found
        assert f"is not shown to you (GET /api/v1/{kind}: 403 {words})" in found
        assert "no node publishes cards" not in found
    assert "said    no room" in late
    assert "holds   container a: 2 units of card 2, 30 % of its compute" in served
    assert "->" not in served


async def test_who_may_not_list_events_is_told_all_the_rest(cluster: Cluster) -> None:
    cluster.server.fault = lambda seen: status(403, "no") if seen.path.endswith("/events") else None
    found = await why(cluster, pod("big", 16, 30))

    assert "asks    container a: aliyun.com/gpu-mem" in found
    assert "said    its Events are not shown to you" in found
    assert LESS in found


async def test_an_event_of_a_series_was_seen_when_it_was_last_observed(cluster: Cluster) -> None:
    """As kube-scheduler writes what it says again and again."""
    await cluster.say("big", "FailedScheduling", "first words", "default-scheduler")
    again = {
        "involvedObject": {"kind": "Pod", "name": "big", "namespace": "ns"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "last words",
        "eventTime": "2026-11-22T03:00:00.123456Z",
        "series": {"count": 7, "lastObservedTime": "2026-11-22T05:00:00.000000Z"},
        "reportingComponent": "default-scheduler",
    }
    await cluster.server.put("/api/v1/namespaces/ns/events/again", again)
    found = (await cluster.run("why", "ns/big", columns=300)).output

    assert "2026-11-22T05:00:00Z default-scheduler FailedScheduling: last words" in found
    assert found.index("first words") < found.index("last words")


async def test_of_many_nodes_those_where_it_fits_come_first_and_the_rest_is_counted(
    cluster: Cluster,
) -> None:
    """What to do stays on the screen."""
    for n in range(25):
        sick = () if n == 24 else (0,)
        await cluster.server.put(
            f"/api/v1/nodes/gpu-x{n:02}", ready(node(f"gpu-x{n:02}", 1, sick=sick))
        )
    await why(cluster, pod("large", 15, 60))
    found = (await cluster.run("why", "ns/large", "-o", "wide", columns=300)).output

    assert "node    gpu-a: fits, card 2\n" in found
    assert found.index("gpu-x24: fits, card 0\n") < found.index("gpu-x00: ")
    assert "node    and 7 nodes more\n" in found


async def test_no_line_ends_with_spaces(cluster: Cluster) -> None:
    """A narrower terminal would show them as a line."""
    found = (await cluster.run("why", "ns/big", columns=60)).output

    assert all(line == line.rstrip() for line in found.splitlines())


async def test_a_card_that_is_only_reserved_is_no_slice_yet(cluster: Cluster) -> None:
    """A scheduler has named a card; the agent has not been asked, or has not answered."""
    wish = held(2, 2, 30, assigned="false")
    found = await why(cluster, pod("wished", 2, 30, on="gpu-a", annotations=wish))

    assert "it is bound and has no slice yet" in found


async def test_a_large_cluster_is_told_in_a_line_for_each_kind_of_node(cluster: Cluster) -> None:
    """Verdict and cure come first; the node that has most for the pod stands for its kind."""
    for n in range(60):
        one = ready(node(f"gpu-x{n:02}", 2, sick=(0, 1) if n < 9 else ()), unschedulable=n > 50)
        await cluster.server.put(f"/api/v1/nodes/gpu-x{n:02}", one)
    await cluster.add(pod("x", 3, 30, on="gpu-x20", annotations=held(0, 3, 30)))
    await cluster.add(pod("big", 16, 30), "Pending")
    found = (await cluster.run("why", "ns/big")).output.splitlines()

    assert found[0] == "ns/big  Pending, not bound to a node: fits on 0 of 62 nodes with cards"
    assert found[1].startswith("  ->      ask less, or add a node of larger cards")
    assert len(found) <= 16
    text = " ".join(" ".join(found).split())
    assert "nodes gpu-a, gpu-x09 and 41 more: has no card with room for it; what fits: 15" in text
    assert "nodes gpu-x00, gpu-x01 and 7 more: every card is unhealthy" in text
    assert "nodes gpu-x51, gpu-x52 and 7 more: has no card with room for it, and the node" in text


async def test_a_pod_on_an_unhealthy_card_is_told_so_with_what_to_do(cluster: Cluster) -> None:
    """In the first lines; so is one that holds a part of it whole."""
    await cluster.server.put("/api/v1/nodes/gpu-s", ready(node("gpu-s", 2, sick=(1,))))
    mine = pod("mine", 2, 30, on="gpu-s", annotations=held(1, 2, 30))
    await cluster.add(pod("beside", 2, 30, on="gpu-s", annotations=held(0, 2, 30)))
    first, second, *_ = (await why(cluster, mine, "Running")).splitlines()

    assert first == "ns/mine  Running, on node gpu-s, on an unhealthy card"
    assert second.startswith("  ->      card 1 of node gpu-s is unhealthy (XID79 since 2026")
    assert "delete the pod" in second
    assert "then reboot the node; if it comes again, check power and riser" in second
    assert "unhealthy" not in (await cluster.run("why", "ns/beside")).output


@pytest.mark.parametrize(
    ("offered", "asked", "told"),
    [
        (
            {"nvidia.com/gpu": "16"},
            "nvidia.com/gpu.shared",
            "nodes offer nvidia.com/gpu: 16: ask nvidia.com/gpu, or set `renameByDefault: true`",
        ),
        (
            {"nvidia.com/gpu.shared": "16"},
            "nvidia.com/gpu",
            "ask nvidia.com/gpu.shared, or set `renameByDefault: false`",
        ),
        (
            {"nvidia.com/mig-1g.5gb": "7"},
            "nvidia.com/mig1g.5gb",
            "did you mean nvidia.com/mig-1g.5gb?",
        ),
        ({"nvidia.com/gpu": "4"}, "nvidia.com/gpus", "did you mean nvidia.com/gpu?"),
        (
            {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"},
            "nvidia.com/gpu",
            "no node offers nvidia.com/gpu; nodes offer nvidia.com/mig-1g.5gb: 7: ask one of these",
        ),
    ],
)
async def test_a_name_that_no_node_offers_is_answered_with_those_that_nodes_offer(
    cluster: Cluster, offered: dict[str, str], asked: str, told: str
) -> None:
    """And with the setting that would offer it, where there is one."""
    whole = ready(node("gpu-w", 2, mode="default"))
    whole["status"]["allocatable"] = offered
    await cluster.server.put("/api/v1/nodes/gpu-w", whole)
    asking = asking_devices("wants", 1)
    asking["spec"]["containers"][0]["resources"]["limits"] = {asked: "1"}
    first, second, *_ = (await why(cluster, asking)).splitlines()

    assert first.startswith("ns/wants  Pending, not bound to a node")
    assert told in second
    assert "of mode default or mig" not in second
