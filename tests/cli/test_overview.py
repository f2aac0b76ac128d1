"""`kubectl gpu` shows a cluster as its API server has it, and names what is wrong with its cure."""

import asyncio
import io
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result
from rich.console import Console
from tests.golden_files import same_as_golden_file
from tests.overview.test_inspection import view
from tools.harness.api_server import (
    ApiRequest,
    Json,
    StandInApiServer,
    kubeconfig,
    running,
    status,
    working,
)
from tools.harness.objects import held, node, path, pod
from tools.harness.page.clusters import place
from tools.harness.waiting import until

from gpu_device_plugin import __version__
from gpu_device_plugin.cli.overview import complete, gpu, inspect_cgpu, main, main_inspect
from gpu_device_plugin.cli.overview_screen import OverviewScreen
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.grants.grant import Enforcers, UnitsAndPercent
from gpu_device_plugin.domain.grants.holdings_annotation import Holding, holdings_annotation
from gpu_device_plugin.errors import AccessError, ClusterError, NotKnownError, ThrottledError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.overview.capacity import NodeCapacity
from gpu_device_plugin.overview.node_cards import ClusterCards, NodeCards
from gpu_device_plugin.overview.questions import FollowedCards, follow_cards
from gpu_device_plugin.overview.slice_use import SliceUse

AGENT: Json = {
    "runtimeClassName": "nvidia",
    "containers": [
        {
            "name": "agent",
            "image": "gpu-device-plugin:0.1.0",
            "command": ["gpu-device-plugin", "agent"],
            "ports": [{"name": "metrics", "containerPort": 9445}],
        }
    ],
}
SETS = "/apis/apps/v1/namespaces/gpu/daemonsets"
SCHEDULER_SAYS = "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate."


class Cluster:
    """A small cluster and a kubeconfig for it."""

    def __init__(self, server: StandInApiServer, config: Path) -> None:
        self.server = server
        self._config = config

    async def add(self, asking: Json, phase: str = "Running", **pod_status: Any) -> None:
        """A pod."""
        asking["status"] = {**asking.get("status", {}), "phase": phase, **pod_status}
        await self.server.put(path(asking), asking)

    async def say(
        self,
        name: str,
        reason: str,
        message: str,
        who: str,
        *,
        kind: str = "Pod",
        uid: str = "",
        event_type: str = "Warning",
    ) -> None:
        """An Event about a pod or a node."""
        namespace = "ns" if kind == "Pod" else "default"
        event = {
            "involvedObject": {"kind": kind, "name": name, "namespace": namespace, "uid": uid},
            "type": event_type,
            "reason": reason,
            "message": message,
            "lastTimestamp": "2026-11-22T04:00:00Z",
            "reportingComponent": who,
        }
        await self.server.put(f"/api/v1/namespaces/{namespace}/events/{name}-{reason}", event)

    async def run(
        self, *words: str, columns: int = 80, command: click.Command = gpu, **options: Any
    ) -> Result:
        """A command on a terminal of that width, without colours."""
        environment = {"KUBECONFIG": str(self._config), "COLUMNS": str(columns), "TERM": "dumb"}
        return await asyncio.to_thread(
            CliRunner().invoke,
            command,
            list(words),
            env=environment,
            catch_exceptions=False,
            **options,
        )

    async def golden(self, name: str, *words: str, columns: int = 80) -> None:
        """A command draws what is in that file; trailing spaces do not count."""
        found = await self.run(*words, columns=columns)
        lines = [line.rstrip() for line in found.output.splitlines()]
        assert max(map(len, lines)) <= columns
        same_as_golden_file(f"overview/{name}.txt", "\n".join(lines) + "\n")


def ready(value: Json, labels: Mapping[str, str] | None = None, **spec: object) -> Json:
    """A node whose kubelet reports."""
    value["metadata"]["labels"] = dict(labels or {})
    conditions = [{"type": "Ready", "status": "True"}]
    value |= {"status": {"conditions": conditions, "allocatable": {}}, "spec": spec}
    return value


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two nodes of cards, and pods that run, wait and were refused."""
    async with running() as (server, _):
        core_mem = {"ack.node.gpu.schedule": "core_mem"}
        await server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), core_mem))
        await server.put("/api/v1/nodes/gpu-b", ready(node("gpu-b", 2, mode="cgpu", sick=(1,))))
        await server.put("/api/v1/nodes/cpu", ready({"metadata": {"name": "cpu"}}))
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", {})
        made = Cluster(server, config)
        sample = pod("cuda-sample", 2, 30, on="gpu-a", annotations=held(0, 2, 30))
        await made.add(sample)
        await made.add(pod("chat", 4, 50, on="gpu-a", annotations=held(0, 4, 50)))
        await made.add(pod("batch", 12, 40, on="gpu-a", annotations=held(1, 12, 40)))
        wish = held(0, 3, 0, assigned="false")
        await made.add(pod("notebook", 3, 0, on="gpu-b", annotations=wish))
        await made.add(pod("starting", 5, 10, on="gpu-a"), "Pending")
        await made.add(pod("ended", 15, 100, on="gpu-a", annotations=held(2, 15, 100)), "Succeeded")
        await made.add(pod("big", 16, 30), "Pending")
        yield made


async def put_set(cluster: Cluster, meta: Json, spec: Json) -> None:
    """A DaemonSet of agents."""
    value = {"metadata": meta, "spec": {"template": {"spec": spec}}}
    await cluster.server.put(f"{SETS}/gpu", value)


async def agents(cluster: Cluster, *, ready_on: str = "gpu-a gpu-b") -> None:
    """A DaemonSet with its pods, and what it needs."""
    meta = {"uid": "u1", "namespace": "gpu", "labels": {"app.kubernetes.io/version": __version__}}
    await put_set(cluster, meta, AGENT)
    for name in ("gpu-a", "gpu-b"):
        is_ready = name in ready_on.split()
        condition = {"type": "Ready", "status": str(is_ready), "message": "containers: [agent]"}
        value = {
            "metadata": {
                "namespace": "gpu",
                "name": f"agent-{name}",
                "ownerReferences": [{"uid": "u1", "controller": True}],
            },
            "spec": {**AGENT, "nodeName": name},
            "status": {"phase": "Running", "conditions": [condition]},
        }
        await cluster.server.put(f"/api/v1/namespaces/gpu/pods/agent-{name}", value)
    await cluster.server.put("/apis/node.k8s.io/v1/runtimeclasses/nvidia", {})
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    await cluster.server.put(f"{policies}/gpu-pods", {})


async def test_the_map_shows_each_card_and_who_holds_it(cluster: Cluster) -> None:
    """At 80 columns, and with all that there is at 140."""
    await cluster.golden("map-80", "map")
    await cluster.golden("map-wide-140", "map", "-o", "wide", columns=140)


async def test_the_map_says_why_a_card_with_a_pod_is_out_of_service(cluster: Cluster) -> None:
    """Without hiding who is on it."""
    await cluster.server.put("/api/v1/nodes/gpu-s", ready(node("gpu-s", 1, sick=(0,))))
    await cluster.add(pod("stays", 2, 30, on="gpu-s", annotations=held(0, 2, 30)))

    found = await cluster.run("map", "gpu-s")

    assert "unhealthy: XID79; a=ns/stays" in found.output


async def test_what_cannot_be_given_is_neither_free_nor_part_of_what_is_held(
    cluster: Cluster,
) -> None:
    """Unhealthy cards, closed nodes, and nodes whose mode offers nothing."""
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), unschedulable=True))
    for n, mode in enumerate(("disabled", "mps", "default")):
        await cluster.server.put(f"/api/v1/nodes/gpu-{n}", ready(node(f"gpu-{n}", 4, mode=mode)))
    found = " ".join((await cluster.run("map")).output.split())
    listed = (await cluster.run(command=inspect_cgpu)).output

    assert (
        "5 nodes, 17 cards: 3 of 15 units held (20 %); 15 more unhealthy; 165 more on closed nodes; "
        "0 of 4 whole cards held" in found
    )
    assert [line.split()[0] for line in listed.splitlines()][:4] == [
        "NAME", "gpu-a", "gpu-b", "-" * len(listed.splitlines()[3])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("unhealthy", ["gpu-b"]),
        ("closed", ["gpu-off", "gpu-shut"]),
        ("full", ["gpu-full"]),
        ("free", ["gpu-a", "gpu-b"]),
        ("waiting", ["gpu-a"]),
    ],
)
async def test_the_map_shows_the_nodes_in_one_state(
    cluster: Cluster, state: str, names: list[str]
) -> None:
    """A node may be in two: one card unhealthy, and another one with room."""
    await cluster.server.put("/api/v1/nodes/gpu-shut", ready(node("gpu-shut"), unschedulable=True))
    await cluster.server.put("/api/v1/nodes/gpu-off", ready(node("gpu-off", mode="disabled")))
    await cluster.server.put("/api/v1/nodes/gpu-full", ready(node("gpu-full", 1)))
    await cluster.add(pod("most", 5, 100, on="gpu-full", annotations=held(0, 5, 100)))
    found = await cluster.run("map", "--state", state, "-o", "name")

    assert found.output.split() == [f"node/{name}" for name in names]


async def test_an_unknown_node_of_a_large_cluster_lists_few_others(cluster: Cluster) -> None:
    """The error of a mistyped name stays a line or two."""
    for n in range(7):
        await cluster.server.put(f"/api/v1/nodes/gpu-{n}", ready(node(f"gpu-{n}", 1)))

    with pytest.raises(NotKnownError, match=r"nodes that do: gpu-0, .*, gpu-4 and 4 more$"):
        await cluster.run("map", "gpu-x")


@pytest.mark.parametrize("columns", [80, 200])
def test_uses_and_capacities_break_no_name(columns: int) -> None:
    """Of a pod or a node; other words wrap."""
    pod, node = "training-of-a-large-language-model-7d9f8b6c5d-x2k4p", "ip-10-0-12-34.eu-central-1"
    use = SliceUse(node, "team-vision", pod, "main", "0", 2154 << 20, 30, None, None, None)
    console = Console(width=columns, file=io.StringIO())
    screen = OverviewScreen(console)
    screen.uses([use], [])
    more = NodeCapacity(node, 3, "then " + "no card has room for it, " * 9)
    screen.capacity([more], "2 units", "")
    assert isinstance(console.file, io.StringIO)
    found = console.file.getvalue()

    assert f"team-vision/{pod} " in found
    assert found.count(node) == 2
    assert max(map(len, found[found.index("node ") :].splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 200])
async def test_the_map_breaks_no_name_of_a_pod(cluster: Cluster, columns: int) -> None:
    """So that it can be found and copied, with a ReplicaSet's long names too; nor does it break a bar."""
    name = "training-of-a-large-language-model-7d9f8b6c5d-x2k4p"
    await cluster.add(pod(name, 1, 5, on="gpu-a", annotations=held(1, 1, 5)))
    plain = (await cluster.run("map", columns=columns)).output
    wide = (await cluster.run("map", "-o", "wide", columns=columns)).output

    for found in (plain, wide):
        assert f"=ns/{name}" in found
        assert "0     aaaabb?????....   6/15     80 %" in found
        assert all(line == line.rstrip() for line in found.splitlines())
    assert f"ns/{name} (1 unit, 5 %)\n" in wide


async def test_the_map_of_named_nodes_shows_no_others(cluster: Cluster) -> None:
    """A name that is not there is an error that says which are."""
    found = await cluster.run("map", "gpu-b")

    assert "gpu-a" not in found.output
    assert "1 node, 2 cards: 3 of 15 units held (20 %); 15 more unhealthy" in found.output


def nodes_of(told: FollowedCards) -> tuple[NodeCards, ...]:
    """The nodes, which have been listed."""
    assert told.cards is not None
    return told.cards.nodes


async def test_a_watched_map_follows_every_change(cluster: Cluster, tmp_path: Path) -> None:
    told: list[FollowedCards] = []
    api = ApiServer.reached_by([tmp_path / "config"])
    try:
        async with working(lambda: follow_cards(api, told.append)):
            await until(lambda: bool(told and told[-1].cards), 30)
            assert [str(each.pod) for each in nodes_of(told[-1])[0].cards[1].holders] == [
                "ns/batch"
            ]
            await cluster.server.delete(path(pod("batch")))
            await until(lambda: not nodes_of(told[-1])[0].cards[1].holders, 30)
    finally:
        await api.close()


async def test_a_node_that_cannot_be_read_is_counted_and_named(cluster: Cluster) -> None:
    """Also when it is asked for by its name; among others it is left out."""
    broken = ready(node("gpu-z"))
    broken["metadata"]["annotations"]["gpu-device-plugin/cards"] = "{}"
    await cluster.server.put("/api/v1/nodes/gpu-z", broken)

    assert "3 nodes (1 unreadable), 5 cards:" in (await cluster.run("map")).output
    assert "0  unreadable: " in (await cluster.run("capacity", "1")).output
    assert (await cluster.run("map", "gpu-z")).output.startswith("gpu-z: annotation of cards names")
    assert "gpu-z" not in (await cluster.run("map", "gpu-a")).output


async def test_the_map_as_json_has_every_holder(cluster: Cluster) -> None:
    found = json.loads((await cluster.run("map", "-o", "json")).output)

    cards = {n["name"]: n["cards"] for n in found["nodes"]}
    assert [card["free_units"] for card in cards["gpu-a"]] == [9 - 5, 3, 15]
    assert cards["gpu-a"][1]["holders"] == [
        {
            "namespace": "ns",
            "name": "batch",
            "units": 12,
            "percent": 40,
            "is_granted": True,
            "enforcers": "",
        }
    ]
    sick = cards["gpu-b"][1]
    amounts = [sick[name] for name in ("is_healthy", "held_units", "free_units", "free_percent")]
    assert amounts == [False, 0, 0, 0]  # of an unhealthy card there is nothing to give
    assert found["nodes"][0]["waiting"] == [{"namespace": "ns", "name": "starting", "units": 5}]


def test_large_cards_are_drawn_to_scale() -> None:
    """126 units do not fit in 80 columns; a pod of one unit is still seen (R-409)."""
    pods = [
        pod("small", 1, on="n", annotations=held(0, 1, 0)),
        pod("half", 63, on="n", annotations=held(0, 63, 0)),
    ]
    console = Console(width=80, record=True, color_system=None, force_terminal=False)
    with console.capture() as drawn:
        OverviewScreen(console).cards(ClusterCards((view("n", [16160], pods, unit_mib=128),)))

    assert "aaaaaaaab......." in drawn.get()
    assert "64/126" in drawn.get()
    assert "128 MiB" in drawn.get()


@pytest.fixture
async def whole_cards(cluster: Cluster) -> Cluster:
    """A third node, in mode default, with four replicas of each of its two cards, and MIG elsewhere."""
    made = ready(node("gpu-c", 2, mode="default"))
    made["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    await cluster.server.put("/api/v1/nodes/gpu-c", made)
    for name, uuid in (("train", "GPU-gpu-c-0"), ("eval", "GPU-gpu-c-0"), ("cut", "MIG-1")):
        await cluster.add(asking_devices(name, 1, "gpu-c", uuid))
    return cluster


def asking_devices(name: str, amount: int, on: str = "", *uuids: str) -> Json:
    """A pod of whole devices; its agent has told these."""
    notes = {"gpu-device-plugin/devices": json.dumps({"0": uuids})} if uuids else {}
    made = pod(name, on=on, annotations=notes)
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(amount)}}
    return made


async def test_the_map_shows_who_holds_whole_cards_replicas_and_instances(
    whole_cards: Cluster,
) -> None:
    await whole_cards.golden("map_whole", "map", "gpu-c")
    await whole_cards.golden("map_all", "map")
    found = await whole_cards.run("map", "gpu-c", "-o", "json")
    (shown,) = json.loads(found.output)["nodes"]
    assert [each["name"] for each in shown["cards"][0]["pods"]] == ["eval", "train"]
    assert [each["free_units"] for each in shown["cards"]] == [0, 15]
    assert shown["instances"] == [{"uuid": "MIG-1", "pods": [{"namespace": "ns", "name": "cut"}]}]


async def test_replicas_and_free_instances_are_counted_where_the_node_tells_them(
    whole_cards: Cluster,
) -> None:
    made = ready(node("gpu-c", 2, mode="default"))
    told = json.loads(made["metadata"]["annotations"]["gpu-device-plugin/cards"])
    told["version"] = 2
    told["cards"][0]["replicas"] = 4
    told["cards"][1]["instances"] = [
        {"uuid": "MIG-1", "profile": "3g.20gb"},
        {"uuid": "MIG-2", "profile": "4g.20gb"},
    ]
    made["metadata"]["annotations"]["gpu-device-plugin/cards"] = json.dumps(told)
    await whole_cards.server.put("/api/v1/nodes/gpu-c", made)
    shown = (await whole_cards.run("map", "gpu-c")).output
    assert "a=ns/eval, b=ns/train (2 of 4 replicas)" in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert lines.count("card 1 3g.20gb: ns/cut") == lines.count("card 1 4g.20gb: free") == 1


async def test_a_watched_map_shows_who_takes_a_whole_card() -> None:
    """Such a pod asks for nothing that placement knows: the annotation brings it into the map."""
    told: list[FollowedCards] = []
    async with running() as (server, api):
        await server.put("/api/v1/nodes/gpu-c", ready(node("gpu-c", 2, mode="default")))
        async with working(lambda: follow_cards(api, told.append)):
            await until(lambda: told and told[-1].cards)
            taker = asking_devices("late", 1, "gpu-c", "GPU-gpu-c-1")
            await server.put(path(taker), taker)
            await until(
                lambda: [str(p) for p in nodes_of(told[-1])[0].cards[1].pods] == ["ns/late"]
            )


async def test_why_counts_whole_devices_as_the_scheduler_does(whole_cards: Cluster) -> None:
    await whole_cards.add(asking_devices("many", 6), "Pending")
    await whole_cards.golden("why_whole", "why", "ns/many")
    found = await whole_cards.run("why", "ns/train")
    assert "container a: card 0 (Tesla-V100-SXM2-16GB), which 1 other pod has too" in found.output


async def test_why_says_what_each_card_lacks_and_what_would_fit(cluster: Cluster) -> None:
    await cluster.say("big", "FailedScheduling", SCHEDULER_SAYS, "default-scheduler")
    await cluster.golden("why-pending", "why", "big", "-n", "ns")
    await cluster.golden("why-pending-wide", "why", "big", "-n", "ns", "-o", "wide")


async def test_why_shows_the_cards_for_a_refused_pod(cluster: Cluster) -> None:
    """In the plugin's own words, and with what there is now."""
    refusal = "Pod was rejected: Allocate failed: the largest free slice is 3 units"
    refused = pod("refused", 5, 30, on="gpu-a")
    await cluster.add(refused, "Failed", reason="UnexpectedAdmissionError", message=refusal)
    await cluster.golden("why-refused", "why", "ns/refused")


async def test_why_says_a_refusal_once(cluster: Cluster) -> None:
    """The kubelet repeats the agent's words, in an Event and in the pod's status."""
    text = "the largest free slice is 3 units"
    failed = f"Allocate failed: {text}, which is unexpected"
    refused = pod("refused", 5, 30, on="gpu-a")
    await cluster.add(refused, "Failed", message=f"Pod was rejected: {failed}")
    await cluster.say("refused", "UnexpectedAdmissionError", failed, "kubelet")
    await cluster.say("refused", "NoRoom", text, "gpu-device-plugin")

    assert (await cluster.run("why", "ns/refused", columns=200)).output.count(text) == 1


async def test_why_does_not_advise_to_ask_less_where_no_mode_takes_the_pod(
    cluster: Cluster,
) -> None:
    await cluster.add(pod("odd", 2, 7), "Pending")
    found = (await cluster.run("why", "ns/odd", columns=200)).output

    assert "ask less" not in found
    assert "no node takes the pod as it is" in found


async def test_why_of_a_pod_that_runs_says_what_it_holds(cluster: Cluster) -> None:
    found = await cluster.run("why", "ns/cuda-sample")

    assert "holds   container a: 2154 MiB of card 0, 30 % of its compute" in found.output
    assert "node    " not in found.output


async def test_why_of_a_resized_pod_names_its_container_and_what_it_has_now(
    cluster: Cluster,
) -> None:
    """Its annotations of an allocation go on saying what it asks for."""
    value = ready(node("gpu-a", 3), {"ack.node.gpu.schedule": "core_mem"})
    uid = cluster.server.objects["/api/v1/namespaces/ns/pods/cuda-sample"]["metadata"]["uid"]
    grown = Holding({"GPU-gpu-a-0": UnitsAndPercent(Units(8), 60)})
    notes = value["metadata"]["annotations"]
    notes["gpu-device-plugin/holdings"] = holdings_annotation({uid: grown})
    await cluster.server.put("/api/v1/nodes/gpu-a", value)
    found = await cluster.run("why", "ns/cuda-sample")

    assert "holds   container a: 8618 MiB of card 0, 60 % of its compute" in found.output


async def test_why_knows_a_pod_that_is_gone_by_its_events(cluster: Cluster) -> None:
    """Without any it is unknown: exit code 3."""
    await cluster.say("gone", "UnexpectedAdmissionError", "no room", "kubelet")

    assert (
        "kubelet UnexpectedAdmissionError: no room" in (await cluster.run("why", "ns/gone")).output
    )
    with pytest.raises(NotKnownError, match="no pod ns/nobody"):
        await cluster.run("why", "ns/nobody")


async def test_why_says_when_no_node_offers_a_device(cluster: Cluster) -> None:
    """Nodes do publish cards; they are of other modes."""
    await cluster.add(asking_devices("whole", 1), "Pending")
    found = await cluster.run("why", "ns/whole", columns=200)

    assert "no node with cards offers nvidia.com/gpu; nodes of mode default or mig" in found.output


async def test_why_gives_no_hint_of_one_card_to_a_pod_over_several(cluster: Cluster) -> None:
    several = pod("several", 28)
    several["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    await cluster.add(several, "Pending")
    found = await cluster.run("why", "ns/several")

    assert "has no card with room for it" in found.output
    assert "what fits" not in found.output


async def test_why_compares_the_container_that_finds_no_card(cluster: Cluster) -> None:
    """The first one would fit; where each does, but not all of them, that is what is said."""
    for name, second, text in (
        ("mixed", 16, "card 2: 15 of 15 units, 100 % compute free, 1 unit too few"),
        ("full", 15, "has no room for all containers at once"),
    ):
        asking = pod(name, 2, 30)
        limits = {"aliyun.com/gpu-mem": str(second), "aliyun.com/gpu-core.percentage": "90"}
        for container in ("b", "c"):
            more = {"name": container, "resources": {"limits": limits}}
            asking["spec"]["containers"].append(more)
        await cluster.add(asking, "Pending")
        found = await cluster.run("why", f"ns/{name}", "-o", "wide", columns=120)
        assert text in found.output


async def test_a_node_that_is_closed_is_said_to_be(cluster: Cluster) -> None:
    """Cordoned, or without a label that the pod selects."""
    await cluster.server.put("/api/v1/nodes/gpu-a", ready(node("gpu-a", 3), unschedulable=True))
    asking = pod("picky", 2)
    asking["spec"]["nodeSelector"] = {"zone": "east"}
    await cluster.add(asking, "Pending")

    assert "the node is cordoned" in (await cluster.run("why", "ns/big")).output
    assert "the node has no label zone=east" in (await cluster.run("why", "ns/picky")).output


async def test_capacity_counts_what_fits_beside_what_is_held(cluster: Cluster) -> None:
    """4 units and 30 %: card 0 has 20 % left, card 1 has 3 units, card 2 is free."""
    found = (await cluster.run("capacity", "4", "30")).output

    assert "gpu-a          3" in found
    assert "never, in mode cgpu: this mode does not divide compute\n" in found
    assert "3 more pods of 4 units and 30 % fit" in found


async def test_totals_are_by_namespace_or_by_a_label_of_the_pods(cluster: Cluster) -> None:
    (every,) = json.loads((await cluster.run("totals", "-o", "json")).output)["totals"]
    own = pod("own", 2, 10, on="gpu-a", annotations=held(2, 2, 10))
    own["metadata"]["labels"] = {"team": "search"}
    await cluster.add(own)
    words = ["totals", "--team-label", "team"]

    assert json.loads((await cluster.run(*words, "-o", "json")).output)["totals"] == [
        every | {"name": "no team"},
        {"name": "search", "pods": 1, "mib": 2048, "percent": 10, "devices": 0},
    ]
    assert re.search(r"search +1 +2 +0\.1 +0", (await cluster.run(*words)).output)


async def test_totals_count_the_pods_of_a_namespace_or_with_a_label_alone(cluster: Cluster) -> None:
    own = pod("own", 2, 10, on="gpu-a", annotations=held(2, 2, 10))
    own["metadata"] |= {"labels": {"team": "search"}, "namespace": "other"}
    await cluster.add(own)
    only = [{"name": "other", "pods": 1, "mib": 2048, "percent": 10, "devices": 0}]

    for words in (["-n", "other"], ["-l", "team=search"], ["-n", "other", "-l", "team=search"]):
        found = await cluster.run("totals", *words, "-o", "json")
        assert json.loads(found.output)["totals"] == only
    assert json.loads((await cluster.run("totals", "-n", "none", "-o", "json")).output) == {
        "totals": []
    }
    assert (
        await cluster.run("totals", "-n", "none")
    ).output == "no pod of namespace none holds anything\n"
    every = (await cluster.run("totals", "-A", "-o", "json")).output
    assert {each["name"] for each in json.loads(every)["totals"]} == {"ns", "other"}


@pytest.mark.parametrize(
    ("condition", "spec", "marks"),
    [
        ("True", {"unschedulable": True}, ["cordoned"]),
        ("Unknown", {}, ["not ready"]),
        ("False", {"unschedulable": True}, ["not ready", "cordoned"]),
    ],
)
async def test_a_node_that_takes_no_pods_is_marked_on_the_map_and_has_no_capacity(
    cluster: Cluster, condition: str, spec: Json, marks: list[str]
) -> None:
    closed = ready(node("gpu-a", 3), **spec)
    closed["status"]["conditions"] = [{"type": "Ready", "status": condition}]
    await cluster.server.put("/api/v1/nodes/gpu-a", closed)
    found = (await cluster.run("capacity", "4", "30")).output
    told = json.loads((await cluster.run("map", "-n", "ns", "-o", "json")).output)["nodes"]

    assert {each["name"]: each["marks"] for each in told} == {"gpu-a": marks, "gpu-b": []}
    assert f"gpu-a  {', '.join(marks)}, core_mem, units" in (await cluster.run("map")).output
    assert re.search(rf"gpu-a +0 +the node is {' and '.join(marks)}", found)
    assert "0 more pods of 4 units and 30 % fit" in found


@pytest.mark.parametrize(
    ("asked", "node_name", "why"),
    [
        ("4 30", "gpu-a", "the largest slice left with 30 % compute is 3 units"),
        ("1 60", "gpu-a", "no card has 60 % compute left; the most is 40 %"),
        ("16 30", "gpu-a", "no card has 16 units"),
        ("16", "gpu-b", "no card has 16 units"),
        ("4 --cards 2", "gpu-b", "only 1 card has 2 units, not 2"),
        ("2 30", "gpu-b", "never, in mode cgpu: this mode does not divide compute"),
        ("4", "gpu-a", "never, in mode core_mem: this mode takes no container without compute"),
        ("1 5", "gpu-few", "every card has as many pods as it may have (2)"),
        ("1 5", "gpu-sick", "every card is unhealthy"),
    ],
)
async def test_capacity_says_what_a_node_is_short_of(
    cluster: Cluster, asked: str, node_name: str, why: str
) -> None:
    """Memory, compute, pods or a card; and the rule where no card could ever take such a pod."""
    few = {"ack.node.gpu.max-pod": "2"}
    await cluster.server.put("/api/v1/nodes/gpu-few", ready(node("gpu-few", 1), few))
    await cluster.server.put("/api/v1/nodes/gpu-sick", ready(node("gpu-sick", 1, sick=(0,))))
    words = ["capacity", *asked.split(), "-o", "json"]
    told = json.loads((await cluster.run(*words, columns=200)).output)["nodes"]

    (then,) = [each["then"] for each in told if each["node"] == node_name]
    assert why in then


async def test_capacity_counts_in_english(cluster: Cluster) -> None:
    """One pod is a pod, and one unit a unit."""
    assert (
        "1 more pod of 4 units and 60 % fits" in (await cluster.run("capacity", "4", "60")).output
    )
    assert "more pods of 1 unit and 5 % fit" in (await cluster.run("capacity", "1", "5")).output


async def test_top_shows_use_against_what_is_granted(cluster: Cluster) -> None:
    """By the agents' metrics through the API server; an agent that is silent is named."""
    await agents(cluster)
    labels = 'namespace="ns",pod="cuda-sample",container="a",card="0"'
    page = (
        f"# HELP x\ngpu_device_plugin_slice_memory_limit_bytes{{{labels}}} 2.258632704e+09\n"
        f"gpu_device_plugin_slice_memory_used_bytes{{{labels}}} 3.53370112e+08\n"
        f"gpu_device_plugin_slice_core_percent{{{labels}}} 30.0\n"
        f"gpu_device_plugin_slice_core_used_ratio{{{labels}}} 0.294\n"
        f"gpu_device_plugin_slice_refused_total{{{labels}}} 2.0\n"
        f'gpu_device_plugin_slice_enforcers{{{labels},memory="library",compute="library"}} 1.0\n'
    )

    def proxied(seen: ApiRequest) -> web.Response | None:
        if seen.path.endswith("/pods/agent-gpu-a:9445/proxy/metrics"):
            return web.Response(text=page)
        return None

    cluster.server.fault = proxied
    await cluster.golden("top", "top")


async def test_top_asks_prometheus_where_it_is_named(cluster: Cluster) -> None:
    """A scrape configuration may have renamed our labels."""
    metric = {
        "__name__": "gpu_device_plugin_slice_memory_limit_bytes",
        "exported_namespace": "ns",
        "namespace": "gpu",
        "pod": "agent-gpu-a",
        "exported_pod": "cuda-sample",
        "exported_container": "a",
        "card": "0",
    }
    answer = {"data": {"result": [{"metric": metric, "value": [1, "2258632704"]}]}}

    def proxied(seen: ApiRequest) -> web.Response | None:
        asked = seen.path.endswith("/namespaces/mon/services/prom:9090/proxy/api/v1/query")
        return web.json_response(answer) if asked else None

    cluster.server.fault = proxied
    found = await cluster.run("top", "--prometheus", "mon/prom:9090")

    assert "ns/cuda-sample a" in found.output
    assert "2154" in found.output


async def test_what_is_no_number_is_not_known(cluster: Cluster) -> None:
    """As a Prometheus may answer, of its own rules for instance."""
    await agents(cluster)
    labels = 'namespace="ns",pod="cuda-sample",container="a",card="0"'
    figures = {"memory_limit_bytes": "2258632704", "memory_used_bytes": "NaN"}
    figures |= {"core_percent": "+Inf", "core_used_ratio": "NaN", "refused_total": "NaN"}
    page = "".join(f"gpu_device_plugin_slice_{k}{{{labels}}} {v}\n" for k, v in figures.items())
    cluster.server.fault = lambda seen: (
        web.Response(text=page) if "agent-gpu-a:9445/proxy" in seen.path else None
    )
    found = await cluster.run("top")

    assert re.search(r"ns/cuda-sample a +gpu-a 0 +- +2154 +- +- +- +-\n", found.output)


async def test_who_enforces_a_slice_and_the_slices_of_a_node_is_told(cluster: Cluster) -> None:
    """By what the node's agent says of them: nothing on nodes where that is the library as ever."""
    await agents(cluster)
    value = ready(node("gpu-a", 3), {"ack.node.gpu.schedule": "core_mem"})
    notes = value["metadata"]["annotations"]
    cards = json.loads(notes["gpu-device-plugin/cards"])
    cards["cards"][0]["memory_by"] = "driver (dmem)"
    cards["cards"][1]["memory_by"] = "no slices (no probe has run)"
    notes["gpu-device-plugin/cards"] = json.dumps(cards)
    uid = cluster.server.objects["/api/v1/namespaces/ns/pods/batch"]["metadata"]["uid"]
    by = Enforcers("driver", "library")
    held = Holding({"GPU-gpu-a-1": UnitsAndPercent(Units(12), 40)}, enforcers=(by,))
    notes["gpu-device-plugin/holdings"] = holdings_annotation({uid: held})
    await cluster.server.put("/api/v1/nodes/gpu-a", value)

    told = "memory by driver, compute by library"
    assert f"enforced: {told}" in (await cluster.run("why", "ns/batch")).output
    wide = (await cluster.run("map", "-o", "wide", columns=200)).output
    assert f"ns/batch (12 units, 40 %; {told})" in wide
    assert "driver (dmem)" in wide
    found = " ".join((await cluster.run("doctor", columns=200)).output.split())
    assert "memory of new slices is held by driver (dmem) on gpu-a" in found
    assert "there are no slices (no probe has run) on gpu-a" in found


async def test_an_older_configuration_in_force_is_told(cluster: Cluster) -> None:
    """The agent's words, in `doctor`, and in `why` of the node's pods."""
    await agents(cluster)
    value = ready(node("gpu-a", 3), {"ack.node.gpu.schedule": "core_mem"})
    notes = value["metadata"]["annotations"]
    words = "/c: x: unknown key; the one of 2026-11-28T20:00:00Z stays in force"
    cards = json.loads(notes["gpu-device-plugin/cards"]) | {"older_configuration": words}
    notes["gpu-device-plugin/cards"] = json.dumps(cards)
    await cluster.server.put("/api/v1/nodes/gpu-a", value)

    for command in (("doctor",), ("why", "ns/batch")):
        found = " ".join((await cluster.run(*command, columns=200)).output.split())
        assert f"node gpu-a serves by an older configuration: {words}" in found


async def test_doctor_finds_nothing_in_a_healthy_installation(cluster: Cluster) -> None:
    await agents(cluster)
    await cluster.server.put("/api/v1/nodes/gpu-b", ready(node("gpu-b", mode="cgpu")))
    found = await cluster.run("doctor")

    assert found.output == "2 agents, 2 nodes with cards: 0 problems, 0 notes\n"
    assert found.exit_code == 0


async def test_doctor_takes_nvidias_names_for_ours_where_whole_cards_are_offered(
    cluster: Cluster,
) -> None:
    """A node in mode default offers them itself."""
    await agents(cluster)
    whole = ready(node("gpu-b", mode="default"))
    whole["status"]["allocatable"] = {"nvidia.com/gpu": "4"}
    await cluster.server.put("/api/v1/nodes/gpu-b", whole)
    found = await cluster.run("doctor")

    assert "another plugin" not in found.output


async def test_doctor_leaves_a_disabled_node_to_the_other_plugin(cluster: Cluster) -> None:
    """As a node is while it moves in or back (docs/tasks/moving-in.md)."""
    await agents(cluster)
    disabled = ready(node("gpu-b", 2, mode="disabled"))
    disabled["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    await cluster.server.put("/api/v1/nodes/gpu-b", disabled)

    assert ": 0 problems" in (await cluster.run("doctor")).output


async def test_doctor_finds_an_installation_without_any_agent(cluster: Cluster) -> None:
    """A DaemonSet whose labels no node has is no healthy installation."""
    meta = {"uid": "u1", "namespace": "gpu"}
    await put_set(cluster, meta, AGENT)
    for name in ("gpu-a", "gpu-b"):
        await cluster.server.put(f"/api/v1/nodes/{name}", ready({"metadata": {"name": name}}))
    found = await cluster.run("doctor", columns=200)

    assert "no node runs an agent of DaemonSet gpu/gpu" in found.output
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("expression", "is_meant"),
    [
        ({"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}, True),
        ({"key": "nvidia.com/gpu.present", "operator": "In", "values": ["false"]}, False),
        ({"key": "nvidia.com/gpu.present", "operator": "Exists"}, True),
        # As with simulated cards, whose agents want no node in particular.
        ({"key": "cards", "operator": "DoesNotExist"}, False),
        ({"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["0"]}, False),
    ],
)
async def test_doctor_names_a_node_that_an_agent_is_meant_for(
    cluster: Cluster, expression: Json, *, is_meant: bool
) -> None:
    """By the DaemonSet's node affinity; a taint, for instance, may keep the agent away."""
    await agents(cluster)
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    await put_set(cluster, {"uid": "u1", "namespace": "gpu"}, {**AGENT, "affinity": affinity})
    labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "4"}
    bare = ready({"metadata": {"name": "gpu-new"}}, labels)
    await cluster.server.put("/api/v1/nodes/gpu-new", bare)
    found = await cluster.run("doctor", columns=200)

    assert ("labels ask for one: gpu-new\n" in found.output) == is_meant


async def test_doctor_names_the_cure_of_each_problem(cluster: Cluster) -> None:
    """An agent that is not ready, an unhealthy card, another plugin, an Event of the node."""
    await agents(cluster, ready_on="gpu-a")
    foreign = ready(node("gpu-a", 3))
    foreign["status"]["allocatable"] = {"nvidia.com/gpu": "4", "aliyun.com/gpu-mem": "45"}
    await cluster.server.put("/api/v1/nodes/gpu-a", foreign)
    text = "a container sees every card"
    await cluster.say("gpu-a", "CardsExposed", text, "gpu-device-plugin", kind="Node")
    await cluster.server.delete("/apis/node.k8s.io/v1/runtimeclasses/nvidia")

    await cluster.golden("doctor", "doctor")
    assert (await cluster.run("doctor")).exit_code == 1


async def test_doctor_without_an_installation_says_so(cluster: Cluster) -> None:
    found = await cluster.run("doctor", "-o", "json")

    assert "no DaemonSet runs the agent" in json.loads(found.output)["findings"][0]["what"]


async def test_inspect_shows_a_node_or_all(cluster: Cluster) -> None:
    """Pods that are reserved a card count as allocated."""
    found = await cluster.run(command=inspect_cgpu)
    assert found.output.endswith("26/60 (43%)\n")
    one = await cluster.run("-d", "gpu-b", command=inspect_cgpu)
    assert one.output.startswith("NAME:       gpu-b\n")


async def test_inspect_counts_no_whole_cards_and_names_what_it_cannot_read(
    cluster: Cluster,
) -> None:
    """Whole cards are no shared memory; a sum that lacks a node does not look complete."""
    before = await cluster.run(command=inspect_cgpu)
    await cluster.server.put("/api/v1/nodes/whole", ready(node("whole", 2, mode="default")))
    strange = ready(node("strange"))
    strange["metadata"]["annotations"]["gpu-device-plugin/cards"] = "{}"
    await cluster.server.put("/api/v1/nodes/strange", strange)
    found = await cluster.run(command=inspect_cgpu)

    assert (before.stderr, found.stdout) == ("", before.stdout)
    assert found.stderr == "left out, as their cards cannot be read: strange\n"


def test_kubectl_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    """In the form that kubectl reads: value, tab, help; the last line says what to do besides."""
    complete(["ma"])
    assert re.fullmatch(r"map\tShow cards .*\n:4\n", capsys.readouterr().out)
    complete([""])
    assert "..." not in capsys.readouterr().out  # each description is whole
    complete(["map", "--wa"])
    assert capsys.readouterr().out.startswith("--watch\t")
    complete(["map", "-o", ""])
    assert capsys.readouterr().out == "json\nyaml\nwide\nname\n:4\n"
    complete(["map", "--kubeconfig", ""])
    assert capsys.readouterr().out == ":0\n"  # the shell completes names of files


def test_errors_are_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kubeconfig, and a context that is not in it."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for words, code, text in (
        (["map"], 1, f"kubectl gpu: no kubeconfig: {tmp_path}/gone is not there"),
        (["why", "a/b/c"], 2, "kubectl gpu: 'a/b/c' is not [NAMESPACE/]POD"),
        (["map", "-w", "-o", "json"], 2, "it does not go with -o json"),
        (["top", "-w", "-o", "yaml"], 2, "it does not go with -o yaml"),
        (
            ["-n", "ns", "why", "p"],
            2,
            "'-n' before the verb: options follow it, as in `kubectl gpu",
        ),
        (["--nospace", "why"], 2, "no option '--nospace'\n"),
        (["top", "-A", "-n", "ns"], 2, "give either --namespace or --all-namespaces"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == code
        assert text in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
async def test_what_is_not_there_and_what_contradicts_itself_have_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of docs/settings.md, and one line that names the thing."""
    config = str(tmp_path / "config")
    for program, words, code, text in (
        (main, ["map", "gpu-x"], 3, "no node gpu-x publishes cards; nodes that do: gpu-a, gpu-b"),
        (main_inspect, ["gpu-x"], 3, "kubectl inspect cgpu: no node gpu-x publishes cards"),
        (main, ["why", "ns/nobody"], 3, "no pod ns/nobody, and no Event about one"),
        (main, ["why", "pod/big"], 3, "it is NAMESPACE/POD, or -n NAMESPACE POD"),
        (main, ["why", "ns/big#x"], 2, "'big#x' is no name that a namespace or a pod can have"),
        (main, ["why", "../big"], 2, "'..' is no name that a namespace or a pod can have"),
        (main, ["why", "/big"], 2, "'/big' is not [NAMESPACE/]POD"),
        (main, ["why", "ns/big", "-n", "other"], 2, "ns/big and --namespace other name different"),
        (main, ["top", "--prometheus", "x"], 2, "'x' is neither http://… nor NAMESPACE/SERVICE"),
        (main, ["page", "--prometheus", "http://"], 2, "'http://' is neither http://… nor"),
        (main, ["page", "--prometheus", "x"], 2, "'x' is neither http://… nor NAMESPACE/SERVICE"),
        (main, ["map", "--context", "x"], 1, "no context is called 'x'; there are: here"),
        (main, ["nothing"], 2, "no command 'nothing'"),
        (main, ["mapp"], 2, "no command 'mapp'; did you mean 'map'?"),
        (main, ["map", "--outptu"], 2, "no option '--outptu'; did you mean '--output'?"),
        (main, ["map", "--bad"], 2, "no option '--bad'\n"),
        (main, ["why"], 2, "kubectl gpu: [NAMESPACE/]POD is missing\n"),
        (
            main,
            ["totals", "--team-label", "bad label!"],
            2,
            "--team-label: 'bad label!' is not valid",
        ),
        (main, ["page", "--team-label", "a/b/c"], 2, "wanted the key of a label, such as team"),
        (main, ["map", "-o", "xml"], 2, "--output: 'xml' is not valid: wanted one of json, yaml,"),
        (main, ["capacity"], 2, "kubectl gpu: UNITS is missing\n"),
        (main, ["capacity", "x"], 2, "UNITS: 'x' is not valid: wanted a whole number from 1 to 1"),
        (main, ["capacity", "4", "7"], 2, "PERCENT: 7 is not valid: wanted a multiple of 5\n"),
        (main, ["capacity", "4", "105"], 2, "PERCENT: '105' is not valid: wanted a whole number "),
        (main, ["capacity", "4", "--cards", "0"], 2, "--cards: '0' is not valid: wanted a whole "),
        (main, ["doctor", "x"], 2, "kubectl gpu: got unexpected extra argument (x)\n"),
        (main, ["page", "--address", "x"], 2, "--address: 'x' is not host:port"),
        (main, ["page", "--grafana", "x"], 2, "--grafana: 'x' does not begin with http:// or"),
    ):
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(program, [*words, "--kubeconfig", config])
        assert ended.value.code == code, words
        assert text in capsys.readouterr().err


async def answers(cluster: Cluster, *words: str) -> tuple[Any, Any]:
    """What a verb answers as JSON and as YAML."""
    as_json, as_yaml = [(await cluster.run(*words, "-o", form)).output for form in ("json", "yaml")]
    return json.loads(as_json), yaml.safe_load(as_yaml)


@pytest.mark.parametrize(
    ("words", "first", "names"),
    [
        ("map", "gpu-a", ["node/gpu-a", "node/gpu-b"]),
        ("capacity 4", "gpu-b", ["node/gpu-b"]),
        ("capacity 4 30", "gpu-a", ["node/gpu-a"]),
    ],
)
async def test_programs_get_the_facts_of_the_text_in_its_order(
    cluster: Cluster, words: str, first: str, names: list[str]
) -> None:
    """As JSON, the same as YAML, or names alone; `wide` is a text."""
    value, same = await answers(cluster, *words.split())
    assert value == same
    assert first in str(value["nodes"][0])
    text = (await cluster.run(*words.split(), columns=200)).output
    last = value["summary"] if words == "map" else f"{value['pods']} more pod"
    assert text.splitlines()[-1].startswith(last)
    assert (await cluster.run(*words.split(), "-o", "name")).output.splitlines() == names
    assert (await cluster.run(*words.split(), "-o", "wide")).output.splitlines()[-1] in text


async def test_totals_can_be_names_only(cluster: Cluster) -> None:
    assert (await cluster.run("totals", "-o", "name")).output == "namespace/ns\n"
    by_team = await cluster.run("totals", "--team-label", "team", "-o", "name")
    assert by_team.output == "team/no team\n"


async def test_a_list_whose_version_is_gone_is_read_from_its_start_again(cluster: Cluster) -> None:
    """As when somebody holds the command up between two pages; nothing is there twice."""
    whole = (await cluster.run("map", "-o", "json")).output
    cluster.server.page_size = 1
    gone: list[str] = []

    def forget_once(asked: ApiRequest) -> web.Response | None:
        if "continue" in asked.query and asked.path not in gone:
            gone.append(asked.path)
            return status(410, "The provided continue parameter is too old")
        return None

    cluster.server.fault = forget_once
    assert (await cluster.run("map", "-o", "json")).output == whole
    assert sorted(gone) == ["/api/v1/nodes", "/api/v1/pods"]
    cluster.server.fault = lambda asked: (
        status(410, "too old") if "continue" in asked.query else None
    )
    with pytest.raises(ClusterError, match="410 too old"):
        await cluster.run("map")


async def test_without_the_right_to_list_events_a_pod_that_is_gone_cannot_be_told(
    cluster: Cluster,
) -> None:
    """It does not say that there is no Event about one: it could not look."""
    cluster.server.fault = lambda asked: status(403, "no") if "/events" in asked.path else None
    with pytest.raises(AccessError, match="no pod ns/nobody; you may not list Events"):
        await cluster.run("why", "ns/nobody")


async def test_what_http_does_not_allow_is_an_error_of_one_line(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A user or a token with a line break, and a proxy that is none."""
    for user in ({"as": "a\nb"}, {"token": "a\nb"}):
        kubeconfig(tmp_path / "config", cluster.server.url, user)
        with pytest.raises(ClusterError, match="GET /api/v1/nodes: Forbidden control character"):
            await cluster.run("map")
    text = json.loads((tmp_path / "config").read_text())
    text["clusters"][0]["cluster"]["proxy-url"] = "proxy:3128"
    (tmp_path / "config").write_text(json.dumps(text))
    with pytest.raises(AccessError, match="its proxy-url 'proxy:3128' is no URL such as http://"):
        await cluster.run("map")


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1m30s", 90), ("1.5h", 5400), ("7", 7), ("0", 0)]
)
def test_times_are_those_of_kubectl(text: str, seconds: float) -> None:
    (option,) = (each for each in gpu.commands["map"].params if each.name == "request_seconds")
    assert option.type.convert(text, None, None) == seconds
    with pytest.raises(click.BadParameter):
        option.type.convert(f"{text}x", None, None)


@pytest.mark.parametrize("columns", [60, 80, 200])
async def test_help_has_whole_sentences_and_names(columns: int) -> None:
    """A list of commands cuts no sentence at 80 columns, and no name is broken at a hyphen."""
    for words in ((), *((name,) for name in gpu.commands)):
        found = CliRunner().invoke(gpu, [*words, "-h"], terminal_width=columns)
        assert not re.findall(r"[A-Za-z]-$", found.output, re.MULTILINE)
        assert columns < 80 or "..." not in found.output.replace("]...", "")


async def test_why_and_doctor_answer_programs_too(cluster: Cluster) -> None:
    large = ready(node("gpu-c", 1))
    told = large["metadata"]["annotations"]
    told["gpu-device-plugin/cards"] = (
        told["gpu-device-plugin/cards"]
        .replace("16160", "32768")
        .replace('"units": 15', '"units": 31')
    )
    await cluster.server.put("/api/v1/nodes/gpu-c", large)
    await cluster.say("big", "FailedScheduling", SCHEDULER_SAYS, "default-scheduler")
    story, same = await answers(cluster, "why", "ns/big")
    assert story == same
    assert [each["node"] for each in story["nodes"]] == ["gpu-c", "gpu-a", "gpu-b"]
    text = (await cluster.run("why", "ns/big")).output
    assert re.findall(r"^  node    (\S+):", text, re.MULTILINE) == ["gpu-c", "gpu-a", "gpu-b"]
    assert " ".join(story) == "pod state cures asks created holds messages nodes"
    assert story["pod"] == "ns/big"
    assert SCHEDULER_SAYS in story["messages"][0]
    await cluster.server.delete("/api/v1/nodes/gpu-c")
    found, same = await answers(cluster, "doctor")
    assert found == same
    assert (found["findings"][0]["level"], found["examined"]) == (
        "problem",
        "0 agents, 2 nodes with cards",
    )


async def test_the_map_shows_nodes_of_a_namespace_or_with_labels(cluster: Cluster) -> None:
    """Where there are none it says so, as a list that is empty: nobody has named a node."""
    other = place(pod("theirs", 1, on="gpu-b", annotations=held(0, 1, 0)), "other")
    await cluster.server.put(path(other), other)
    for words, names in (
        ("-n other", ["node/gpu-b"]),
        ("-A", ["node/gpu-a", "node/gpu-b"]),
        ("-l ack.node.gpu.schedule=core_mem", ["node/gpu-a"]),
    ):
        found = await cluster.run("map", *words.split(), "-o", "name")
        assert found.output.splitlines() == names
    capacity = await cluster.run(
        "capacity", "1", "-l", "ack.node.gpu.schedule=core_mem", "-o", "json"
    )
    assert [each["node"] for each in json.loads(capacity.output)["nodes"]] == ["gpu-a"]
    for words, text in (
        ("-n nobody", "holds anything of namespace nobody"),
        ("-l a=b", "has these labels"),
    ):
        assert text in (await cluster.run("map", *words.split())).output
        shown = json.loads((await cluster.run("map", *words.split(), "-o", "json")).output)
        assert shown == {"nodes": [], "unreadable": [], "summary": f"no node with cards {text}"}
    found = await cluster.run("capacity", "1", "-l", "a=b")
    assert found.output == "no node with cards has these labels\n"


async def test_who_asks_may_be_somebody_else_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    """As kubectl's `--as` and `--request-timeout` have it."""
    asked: set[str] = set()

    async def silent(request: web.Request) -> web.Response:
        asked.add(request.headers.get("Impersonate-User", ""))
        await asyncio.Event().wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", silent)
    async with TestServer(app) as server:
        config = kubeconfig(tmp_path / "config", str(server.make_url("")), {"as": "jane"})
        cluster = Cluster(StandInApiServer(), config)
        with pytest.raises(ClusterError, match=r"does not answer GET .* in time"):
            await cluster.run("map", "--as", "dev", "--request-timeout", "300ms")
        assert asked == {"dev"}
        with pytest.raises(
            click.UsageError, match="'soon' is not valid: wanted a time such as 500ms"
        ):
            await cluster.run("map", "--request-timeout", "soon", standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["map", "gpu-"], ["gpu-a", "gpu-b"]),
        (["map", "gpu-a", "gpu-"], ["gpu-b"]),
        (["map", "-n", "o"], ["other"]),
        (["why", "ns/b"], ["ns/batch", "ns/big"]),
        (["why", "-n", "ns", "cuda"], ["cuda-sample"]),
    ],
)
async def test_kubectl_completes_names_of_the_cluster(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    words: list[str],
    shown: list[str],
) -> None:
    """Of nodes, pods and namespaces."""
    for name in ("other", "ns"):
        await cluster.server.put(f"/api/v1/namespaces/{name}", {"metadata": {"name": name}})
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    await asyncio.to_thread(complete, words)
    assert capsys.readouterr().out.splitlines()[:-1] == shown
    await cluster.server.stop()
    await asyncio.to_thread(complete, words)
    assert capsys.readouterr().out == ":4\n"


def test_kubectl_completes_contexts_of_the_kubeconfig(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cluster need not answer for that; names may have slashes, as those of clouds do."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").write_text("contexts: [{name: a/one}, {name: a/two}, {name: b}]")
    complete(["map", "--context", "a/"])
    assert capsys.readouterr().out == "a/one\na/two\n:4\n"
    (tmp_path / "config").write_text("contexts: 1")
    complete(["map", "--context", ""])
    assert capsys.readouterr().out == ":4\n"


async def test_an_empty_cluster_points_to_the_doctor(cluster: Cluster) -> None:
    for name in ("gpu-a", "gpu-b"):
        await cluster.server.delete(f"/api/v1/nodes/{name}")

    for words in (["map"], ["capacity", "4"]):
        found = await cluster.run(*words)
        assert found.output == "no node publishes cards; `kubectl gpu doctor` says why\n"
        assert found.exit_code == 0


async def test_a_server_that_asks_to_come_later_is_asked_again_then(cluster: Cluster) -> None:
    """As kubectl does it; not for ever."""
    for refusals, words in ((5, "2 nodes, 5 cards"), (99, "429 too many; again in")):
        left = iter(range(refusals))

        def busy(seen: ApiRequest, left: Iterator[int] = left) -> web.Response | None:
            is_busy = seen.path == "/api/v1/pods" and next(left, None) is not None
            return status(429, "too many", "0") if is_busy else None

        cluster.server.fault = busy
        try:
            found = (await cluster.run("map")).output
        except ThrottledError as error:
            found = str(error)
        assert words in found


@pytest.mark.parametrize(
    ("code", "words"),
    [(200, "answers with HTML: it is no API server"), (500, "/api/v1/nodes: 500 <html> sign in")],
)
async def test_an_answer_of_another_server_is_one_line(
    cluster: Cluster, code: int, words: str
) -> None:
    """As of a proxy or a login page before the API server."""
    page = web.Response(text="<html>\n sign in", status=code)
    cluster.server.fault = lambda seen: page if seen.path == "/api/v1/nodes" else None

    with pytest.raises(ClusterError) as told:
        await cluster.run("map")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


async def test_who_may_not_list_the_nodes_is_told(cluster: Cluster) -> None:
    """The API server's own words name the user and the right."""
    words = 'nodes is forbidden: User "dev" cannot list resource "nodes"'
    cluster.server.fault = lambda seen: status(403, words) if "nodes" in seen.path else None

    with pytest.raises(AccessError, match="cannot list resource"):
        await cluster.run("map")


@pytest.mark.parametrize(
    ("path", "words", "told"),
    [
        ("/api/v1/nodes", "page -n ns", "kubectl create clusterrole gpu-page --verb=list,watch "),
        ("/api/v1/pods", "page", "whose pods you may list and watch, with `--namespace`"),
        ("/api/v1/namespaces/ns/pods", "page -n ns", "whose pods you may list and watch"),
    ],
)
async def test_the_page_names_the_right_that_is_missing_and_what_would_help(
    cluster: Cluster, tmp_path: Path, path: str, words: str, told: str
) -> None:
    """In a process of its own: it ends by signals, which only a main thread takes."""
    cluster.server.fault = lambda seen: status(403, "forbidden") if seen.path == path else None
    program = [sys.executable, "-c", "from gpu_device_plugin.cli.overview import main; main()"]
    options = ["--address", "127.0.0.1:0", "--kubeconfig", str(tmp_path / "config")]
    process = await asyncio.create_subprocess_exec(
        *program, *words.split(), *options, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 1
    assert re.fullmatch(
        rf"kubectl gpu: GET {path}: 403 forbidden: .*{re.escape(told)}.*\n", said.decode()
    )


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (401, "Unauthorized", "401 Unauthorized: the credentials are not accepted; have they exp"),
        (403, 'users "jane" is forbidden: User "dev" cannot impersonate', "403 users"),
    ],
)
async def test_each_verb_says_alike_what_the_api_server_refuses(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    code: int,
    words: str,
    told: str,
) -> None:
    """An expired token, or a user who may not be impersonated: one line, exit code 1."""
    cluster.server.fault = lambda _: status(code, words)
    for verb in ("map", "top", "why ns/big", "doctor", "capacity 4", "totals"):
        call = [*verb.split(), "--as", "jane", "--kubeconfig", str(tmp_path / "config")]
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(main, call)
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert re.fullmatch(rf"kubectl gpu: GET /api\S+: {re.escape(told)}.*", line)


@pytest.mark.parametrize(
    "words", [[], ["map"], ["top"], ["why"], ["doctor"], ["capacity"], ["totals"], ["page"]]
)
def test_help_fits_80_columns(words: list[str]) -> None:
    result = CliRunner().invoke(gpu, [*words, "--help"], terminal_width=80)

    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
