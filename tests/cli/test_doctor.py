"""`kubectl gpu doctor` blames what is at fault, counts what is there, and says what it could not see."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from tests.cli.test_overview import AGENT, Cluster, agents, ready
from tests.cli.test_overview import cluster as cluster
from tools.harness.api_server import ApiRequest, Json, status
from tools.harness.objects import node, pod

from gpu_device_plugin.overview.placing_parts import SCHEDULER_NAME

LISTS = {
    "/apis/apps/v1/daemonsets": "DaemonSets",
    "/api/v1/namespaces/default/events": "Events of nodes",
    "/api/v1/namespaces": "Namespaces",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies": "ValidatingAdmissionPolicies",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies": "MutatingAdmissionPolicies",
    "/apis/node.k8s.io/v1/runtimeclasses": "RuntimeClasses",
    "/apis/resource.k8s.io/v1/resourceclaimtemplates": "ResourceClaimTemplates",
}


def refusing(*paths: str) -> Callable[[ApiRequest], web.Response | None]:
    """A fault: these lists are forbidden."""
    return lambda seen: status(403, "Forbidden") if seen.path in paths else None


def agent_pod(name: str, on: str, **pod_status: object) -> Json:
    """A pod of the agents' DaemonSet."""
    owner = {"uid": "u1", "controller": True}
    meta = {"namespace": "gpu", "name": name, "ownerReferences": [owner]}
    return {"metadata": meta, "spec": {**AGENT, "nodeName": on}, "status": pod_status}


async def found(cluster: Cluster) -> str:
    """What the doctor says, wide enough for a line each."""
    await cluster.server.put("/api/v1/nodes/gpu-b", ready(node("gpu-b", mode="cgpu")))
    return (await cluster.run("doctor", columns=250)).output


@pytest.mark.parametrize(("path", "kind"), LISTS.items())
async def test_a_list_that_is_forbidden_is_named(cluster: Cluster, path: str, kind: str) -> None:
    """What was not looked at is not well."""
    await agents(cluster)
    cluster.server.fault = refusing(path)
    said = await found(cluster)

    assert f"not examined, because you may not list them: {kind}\n" in said
    assert "0 problems, 1 note\n" in said


async def test_a_kind_that_the_cluster_does_not_serve_is_no_missing_right(cluster: Cluster) -> None:
    await agents(cluster)
    paths = [path for path in LISTS if "mutating" in path or "resource.k8s.io" in path]
    cluster.server.fault = lambda seen: status(404, "no such kind") if seen.path in paths else None

    assert "0 problems, 0 notes\n" in await found(cluster)


async def test_a_node_that_is_away_is_at_fault_and_not_its_agent(cluster: Cluster) -> None:
    """The logs of an agent there cannot be had."""
    await agents(cluster, ready_on="gpu-b")
    away = ready(node("gpu-a", 3))
    text = "Kubelet stopped posting node status."
    away["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": text}]
    await cluster.server.put("/api/v1/nodes/gpu-a", away)
    said = await found(cluster)

    assert f"problem  node gpu-a is not ready: {text}\n" in said
    assert "kubectl describe node gpu-a" in said
    assert "the agent of" not in said
    assert "1 problem, 0 notes\n" in said


async def test_an_agent_that_waits_for_the_specification_of_its_cards_names_the_list_of_namespaces(
    cluster: Cluster,
) -> None:
    """Without access to the cards nvidia-ctk finds no driver, and its container begins again and again."""
    await agents(cluster, ready_on="gpu-b")
    waiting = agent_pod("agent-gpu-a", "gpu-a", phase="Pending")
    text = "containers with incomplete status: [cdi-generate cdi-install]"
    waiting["status"]["conditions"] = [
        {"type": "Initialized", "status": "False", "message": text},
        {"type": "Ready", "status": "False", "message": "containers with unready status: [agent]"},
    ]
    await cluster.server.put("/api/v1/namespaces/gpu/pods/agent-gpu-a", waiting)
    said = await found(cluster)

    assert "kubectl logs -n gpu agent-gpu-a -c cdi-generate; if it finds no NVML" in said
    assert "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES" in said


@pytest.mark.parametrize("is_annotated", [True, False])
async def test_an_agent_that_asks_for_its_cards_by_annotation_names_the_list_too(
    cluster: Cluster, *, is_annotated: bool
) -> None:
    """Without an init container it is the agent that finds no driver."""
    await agents(cluster, ready_on="gpu-b")
    unready = agent_pod("agent-gpu-a", "gpu-a", phase="Running")
    if is_annotated:
        access = {"nvidia.cdi.k8s.io/container.agent": "management.nvidia.com/gpu=all"}
        unready["metadata"]["annotations"] = access
    unready["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no NVML"}]
    await cluster.server.put("/api/v1/namespaces/gpu/pods/agent-gpu-a", unready)
    said = await found(cluster)

    assert "the agent of node gpu-a is not ready: no NVML\n" in said
    assert ("NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES" in said) is is_annotated


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("paused-for-driver-upgrade", "changes the driver or the MIG layout"),
        ("false", "keeps pods that open cards away"),
    ],
)
async def test_no_agent_is_missed_where_the_operator_wants_none(
    cluster: Cluster, value: str, why: str
) -> None:
    """To bring one back would stop the change of the driver; it comes by itself."""
    await agents(cluster)
    client = "nvidia.com/gpu.deploy.client"
    labels = {client: value, "ack.node.gpu.schedule": "core_mem"}
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), labels))
    await cluster.server.delete("/api/v1/namespaces/gpu/pods/agent-gpu-a")
    said = await found(cluster)

    assert f"note     no agent runs on gpu-a: NVIDIA's operator {why} ({client}={value})\n" in said
    assert "0 problems, 1 note\n" in said


async def test_an_agent_that_was_evicted_does_not_count_beside_its_successor(
    cluster: Cluster,
) -> None:
    await agents(cluster)
    evicted = agent_pod("agent-old", "gpu-a", phase="Failed", reason="Evicted")
    await cluster.server.put("/api/v1/namespaces/gpu/pods/agent-old", evicted)

    assert "2 agents, 2 nodes with cards: 0 problems, 0 notes\n" in await found(cluster)


async def test_a_node_whose_only_agent_has_ended_has_none(cluster: Cluster) -> None:
    await agents(cluster)
    labels = {"ack.node.gpu.schedule": "core_mem"}
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), labels))
    ended = agent_pod("agent-gpu-a", "gpu-a", phase="Failed", reason="Evicted")
    await cluster.server.put("/api/v1/namespaces/gpu/pods/agent-gpu-a", ended)
    said = await found(cluster)

    assert "no agent runs on nodes whose labels ask for one: gpu-a\n" in said
    assert "1 agent, 2 nodes" in said


@pytest.mark.parametrize("over_at", ["2026-11-22T05:00:00Z", "2026-11-22T03:00:00Z"])
async def test_a_fault_is_told_until_it_has_ended(cluster: Cluster, over_at: str) -> None:
    """The agent says so by a Normal Event, `…Over`; a fault after that is a new one."""
    await agents(cluster)
    await cluster.say("gpu-b", "StateNotWritable", "disk full", "gpu-device-plugin", kind="Node")
    over = {
        "involvedObject": {"kind": "Node", "name": "gpu-b", "namespace": "default"},
        "type": "Normal",
        "reason": "StateNotWritableOver",
        "lastTimestamp": over_at,
        "reportingComponent": "gpu-device-plugin",
    }
    await cluster.server.put("/api/v1/namespaces/default/events/over", over)
    is_over = over_at > "2026-11-22T04:00:00Z"  # when the fault was

    assert ("reported StateNotWritable" in await found(cluster)) is not is_over


@pytest.mark.parametrize(
    ("bad", "good", "is_over"),
    [
        ("XID79: card 1 (GPU-b-1): XID 79", "Recovered: card 1 (GPU-b-1): healthy again", True),
        ("Unplugged: GPU-b-1: not shown", "Recovered: card 1 (GPU-b-1): healthy again", True),
        ("XID79: card 1 (GPU-b-1): XID 79", "Recovered: card 0 (GPU-b-0): healthy again", False),
        ("ModeSwitchRefused: --mode cgpu waits", "ModeSwitched: the node switched", True),
        ("ModeSwitchRefused: --mode cgpu waits", "UnitSwitched: the node switched", False),
        ("UnknownMode: label pool=x is not a known mode", "", False),
        ("UnknownMode: label pool=y is not a known mode", "", True),
        ("UnknownMode: label shelf=x is not a known mode", "", True),
    ],
)
async def test_a_report_is_told_until_what_it_tells_has_ended(
    cluster: Cluster, bad: str, good: str, *, is_over: bool
) -> None:
    """By the agent's own word, or because the node no longer has the label that it complains of."""
    await agents(cluster)
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), {"pool": "x"}))
    reason, _, message = bad.partition(": ")
    await cluster.say("gpu-a", reason, message, "gpu-device-plugin", kind="Node")
    reason, _, message = good.partition(": ")
    normal = {
        "involvedObject": {"kind": "Node", "name": "gpu-a", "namespace": "default"},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": "2026-11-22T05:00:00Z",
        "reportingComponent": "gpu-device-plugin",
    }
    if good:
        await cluster.server.put("/api/v1/namespaces/default/events/good", normal)

    assert ("node gpu-a reported " in await found(cluster)) is not is_over


async def report(cluster: Cluster, at: int, kind: str, reason: str, message: str) -> None:
    """An Event of node gpu-a, at that second."""
    event = {
        "involvedObject": {"kind": "Node", "name": "gpu-a", "namespace": "default"},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-11-22T04:00:0{at}Z",
        "reportingComponent": "gpu-device-plugin",
    }
    await cluster.server.put(f"/api/v1/namespaces/default/events/{at}", event)


async def test_an_unhealthy_card_is_told_once_with_the_cure_of_its_event_and_its_pods(
    cluster: Cluster,
) -> None:
    """Two cards may have the same fault: the end of one's is not the end of the other's."""
    await agents(cluster)
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3, sick=(0, 1))))
    await report(cluster, 0, "Warning", "XID79", "card 0 (GPU-gpu-a-0): XID 79; check the riser")
    await report(cluster, 1, "Warning", "XID79", "card 1 (GPU-gpu-a-1): XID 79; check the riser")
    await report(cluster, 2, "Normal", "Recovered", "card 1 (GPU-gpu-a-1): healthy again")
    of_0, of_1 = (await found(cluster)).split("problem ")[1:]

    assert "; pods on it: ns/chat, ns/cuda-sample\n" in of_0
    assert of_0.endswith("-> delete its pods, which go elsewhere; then XID 79; check the riser\n")
    assert "; pods on it: ns/batch\n" in of_1
    assert "then reboot the node; if it comes again, check power and riser, then have" in of_1
    assert "2 problems, 0 notes\n" in of_1


async def test_an_outage_of_all_cards_is_the_cure_of_each(cluster: Cluster) -> None:
    """It is told no second time."""
    await agents(cluster)
    away = ready(node("gpu-a", 2, sick=(0, 1)))
    notes = away["metadata"]["annotations"]
    notes["gpu-device-plugin/cards"] = notes["gpu-device-plugin/cards"].replace("XID79", "Stalled")
    await cluster.server.put("/api/v1/nodes/gpu-a", away)
    await report(cluster, 0, "Warning", "Stalled", "NVML: no answer; see dmesg")
    said = await found(cluster)

    assert said.count("; then NVML: no answer; see dmesg\n") == 2
    assert "2 problems, 0 notes\n" in said


async def test_nothing_is_told_of_a_node_that_is_gone(cluster: Cluster) -> None:
    """Its Events stay for an hour."""
    await agents(cluster)
    await cluster.say("gone", "XID79", "card 0: XID 79", "gpu-device-plugin", kind="Node")

    assert "gone" not in await found(cluster)


async def test_without_daemonsets_and_agents_nobody_says_that_none_is_installed(
    cluster: Cluster,
) -> None:
    cluster.server.fault = refusing("/apis/apps/v1/daemonsets")
    said = await found(cluster)

    assert "no DaemonSet" not in said
    assert "not list them: DaemonSets\n" in said


async def test_what_another_vendor_refused_is_not_counted(cluster: Cluster) -> None:
    """Nor what is refused on a node without our agent."""
    await agents(cluster)
    refusal = {"reason": "UnexpectedAdmissionError", "message": "no gpu is left"}
    other = pod("amd", 0, 0, on="gpu-a")
    other["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": "1"}}
    await cluster.add(other, "Failed", **refusal)
    await cluster.add(pod("far", 2, 30, on="cpu"), "Failed", **refusal)
    assert "refused at admission" not in await found(cluster)

    await cluster.add(pod("near", 2, 30, on="gpu-a"), "Failed", **refusal)
    assert "refused at admission: 1 pod\n" in await found(cluster)


async def test_a_mark_of_an_earlier_installation_does_not_count(cluster: Cluster) -> None:
    await agents(cluster)
    for name, uid in (("gpu-a", "u1"), ("gpu-c", "u0")):
        marked = ready(node(name, 3))
        marked["metadata"]["annotations"]["gpu-device-plugin/uninstall"] = uid
        await cluster.server.put(f"/api/v1/nodes/{name}", marked)

    assert "marked for uninstalling and offer nothing: gpu-a\n" in await found(cluster)


async def test_an_agent_that_has_just_started_does_not_know_yet_what_is_held(
    cluster: Cluster,
) -> None:
    await agents(cluster, ready_on="gpu-b")
    cluster.server.fault = lambda seen: (
        web.Response(text="") if seen.path.endswith("/proxy/metrics") else None
    )
    said = (await cluster.run("top")).output

    assert said == "no figures  gpu-a: its agent is not ready\n"


async def test_cards_that_cannot_be_read_are_told_without_an_installation_too(
    cluster: Cluster,
) -> None:
    """As after the agents were removed, or in a cluster of a newer release."""
    strange = ready(node("gpu-a"))
    strange["metadata"]["annotations"]["gpu-device-plugin/cards"] = "{}"
    await cluster.server.put("/api/v1/nodes/gpu-a", strange)
    said = await found(cluster)

    assert "no DaemonSet runs the agent" in said
    assert "the cards of node gpu-a cannot be read" in said


async def test_without_a_daemonset_nodes_and_cards_are_examined_all_the_same(
    cluster: Cluster,
) -> None:
    """Agents may run outside of pods, or somebody has deleted the DaemonSet."""
    await cluster.say("gpu-a", "StateNotWritable", "disk full", "gpu-device-plugin", kind="Node")
    said = (await cluster.run("doctor", columns=250)).output
    assert "no DaemonSet runs the agent in this cluster" in said
    assert "nodes publish cards, and no agent serves them: gpu-a, gpu-b" in said
    assert "card 1 (GPU-gpu-b-1) of node gpu-b is unhealthy" in said
    assert "node gpu-a reported StateNotWritable" in said
    assert "clear-nodes" in said

    status = {"status": {"allocatable": {"aliyun.com/gpu-mem": "15"}}}
    cluster.server.patch("/api/v1/nodes/gpu-a", status)
    said = (await cluster.run("doctor", columns=250)).output
    assert "no agent serves them: gpu-b" in said
    assert "clear-nodes" not in said  # it would clear gpu-a too

    cluster.server.patch("/api/v1/nodes/gpu-b", status)
    said = (await cluster.run("doctor", columns=250)).output
    assert "and nodes offer their cards: gpu-a, gpu-b" in said
    assert "1 problem, 2 notes" in said  # the card; where agents run, and what one has reported


async def test_agents_that_no_daemonset_runs_are_agents(cluster: Cluster) -> None:
    await agents(cluster)
    await cluster.server.delete("/apis/apps/v1/namespaces/gpu/daemonsets/gpu")

    assert "2 agents, 2 nodes with cards: 0 problems, 0 notes\n" in await found(cluster)


async def test_top_does_not_say_that_nothing_is_held_where_nobody_answered(
    cluster: Cluster,
) -> None:
    await agents(cluster)
    said = (await cluster.run("top")).output

    assert "no figures  " in said
    assert "no slice is held" not in said


async def test_a_run_directory_without_a_file_system_of_its_own_is_a_note(cluster: Cluster) -> None:
    """Nothing is wrong there; other Events that are no warnings stay unsaid."""
    await agents(cluster)
    for reason in ("RunDirectoryShared", "XidsNotGiven", "Withdrawing"):
        words = ("gpu-a", reason, "text of it", "gpu-device-plugin")
        await cluster.say(*words, kind="Node", event_type="Normal")
    said = await found(cluster)

    assert "node gpu-a reported RunDirectoryShared" in said
    assert "node gpu-a reported XidsNotGiven" in said
    assert "Withdrawing" not in said
    assert "0 problems, 2 notes\n" in said


async def test_a_node_whose_mode_is_not_served_is_a_problem(cluster: Cluster) -> None:
    """It is ready and takes its label, so nothing else says that it offers nothing."""
    await agents(cluster)
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", mode="mps")))
    said = await found(cluster)

    assert "problem  nodes have a mode that is not served, and offer nothing: gpu-a\n" in said
    assert "kubectl label node NODE --overwrite ack.node.gpu.schedule=MODE" in said


LEADER = {"gpu-device-plugin/leader": "true"}
SERVES = {"gpu-device-plugin/scheduler": SCHEDULER_NAME}
NAMES = {"gpu-device-plugin/names-scheduler": SCHEDULER_NAME}
CONTROLLER = ("gpu-device-plugin", "controller")


def placing(
    name: str, label: dict[str, str], *command: str, is_ready: bool = True, namespace: str = "gpu"
) -> Json:
    """A pod of the controller, or of the chart's kube-scheduler."""
    condition = {"type": "Ready", "status": str(is_ready)}
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": label},
        "spec": {"nodeName": "gpu-a", "containers": [{"name": "c", "command": list(command)}]},
        "status": {"phase": "Running", "conditions": [condition]},
    }


async def test_who_waits_for_a_scheduler_that_is_not_there_is_counted(cluster: Cluster) -> None:
    """With the default scheduler, or one that has spoken of a pod, nothing is wrong."""
    await agents(cluster)
    place = "/api/v1/namespaces/gpu/pods"
    leader, ours, controller = LEADER, SERVES, CONTROLLER
    waiting = {name: pod(name, 2, 30) for name in ("w1", "w2", "by-default", "other", "heard")}
    for name, scheduler in (
        ("w1", "gpu-scheduler"),
        ("w2", "gpu-scheduler"),
        ("other", "nobodys"),
        ("heard", "volcano"),
    ):
        waiting[name]["spec"]["schedulerName"] = scheduler
    spoken = [{"type": "PodScheduled", "status": "False"}]
    waiting["heard"]["status"] = waiting["w1"]["status"] = {"conditions": spoken}
    for each in waiting.values():
        await cluster.add(each)
    gone = await found(cluster)
    await cluster.server.put(f"{place}/c", placing("c", {}, *controller))
    await cluster.server.put(f"{place}/s", placing("s", ours, "kube-scheduler", is_ready=False))
    away = await found(cluster)
    await cluster.server.put(f"{place}/c", placing("c", leader, *controller))
    await cluster.server.put(f"{place}/s", placing("s", ours, "kube-scheduler"))
    there = await found(cluster)

    assert "serves scheduler gpu-scheduler, for which 2 pods with slices wait" in gone
    assert "serves scheduler nobodys, for which 1 pod with slices wait" in gone
    assert "2 problems" in gone
    assert (
        "scheduler gpu-scheduler is not ready: new pods with slices stay Pending (2 pods now)"
        in away
    )
    assert "no controller leads" in away
    assert "3 problems" in away
    assert "1 problem," in there


async def test_a_leader_that_is_not_ready_leads_and_is_named(cluster: Cluster) -> None:
    """kube-scheduler reaches it: only its webhook waits for a profile that can be read."""
    await agents(cluster)
    leader = placing("c", LEADER, *CONTROLLER, is_ready=False)
    await cluster.server.put("/api/v1/namespaces/gpu/pods/c", leader)
    said = await found(cluster)

    assert "no controller leads" not in said
    assert "problem  the controller that leads is not ready: while it runs it places pods" in said


async def test_new_pods_that_an_unreachable_webhook_left_as_they_were_are_counted(
    cluster: Cluster,
) -> None:
    """The API server says nothing, and every pod goes where it would go with the agents alone."""
    await agents(cluster)
    controller = placing("c", LEADER | NAMES, *CONTROLLER)
    controller["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T10:00:00Z"
    await cluster.server.put("/api/v1/namespaces/gpu/pods/c", controller)
    made = {name: pod(name, 2, 30) for name in ("old", "new", "named", "daemons", "system", "none")}
    for name, each in made.items():
        hour = "09" if name == "old" else "11"
        each["metadata"]["creationTimestamp"] = f"2026-01-01T{hour}:00:00Z"
    made["named"]["spec"]["schedulerName"] = "volcano"
    owner = {"uid": "d", "kind": "DaemonSet", "controller": True}
    made["daemons"]["metadata"]["ownerReferences"] = [owner]
    made["none"]["spec"]["containers"][0]["resources"] = {}
    for name, each in made.items():
        place = "kube-system" if name == "system" else "ns"
        each["metadata"]["namespace"] = place
        await cluster.server.put(f"/api/v1/namespaces/{place}/pods/{name}", each)
    missed = "problem  1 new pod with slices kept the default scheduler, although the webhook"
    assert missed in await found(cluster)

    del controller["metadata"]["labels"][next(iter(NAMES))]
    await cluster.server.put("/api/v1/namespaces/gpu/pods/c", controller)
    assert "kept the default scheduler" not in await found(cluster)


async def test_a_tenants_pod_with_our_labels_is_no_part_of_ours(cluster: Cluster) -> None:
    """Nor one with our command: it would hide that nobody serves the pods that wait, or blame nobody's leader."""
    await agents(cluster)
    waiting = pod("w", 2, 30)
    waiting["spec"]["schedulerName"] = SCHEDULER_NAME
    await cluster.add(waiting)
    for name, label, command in (("s", SERVES, ()), ("c", {}, CONTROLLER)):
        false = placing(name, label, *command, namespace="team-a")
        await cluster.server.put(f"/api/v1/namespaces/team-a/pods/{name}", false)
    said = await found(cluster)

    assert f"nothing of the chart serves scheduler {SCHEDULER_NAME}, for which 1 pod" in said
    assert "no controller leads" not in said


def test_the_name_that_doctor_misses_is_the_charts() -> None:
    """Pods that wait keep it when scheduler and controller have gone."""
    values = yaml.safe_load(Path("charts/gpu-device-plugin/values.yaml").read_text())
    assert values["scheduler"]["name"] == SCHEDULER_NAME
