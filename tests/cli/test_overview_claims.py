"""`kubectl gpu` counts what is held through claims, and says by which allocation API a node serves."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from tests.cli.test_overview import AGENT, Cluster, asking_devices, put_set, ready
from tools.harness.api_server import ApiRequest, kubeconfig, running, status
from tools.harness.objects import Json, claiming, held, node, pod

from gpu_device_plugin.cli.overview import inspect_cgpu
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.grants.grant import UnitsAndPercent
from gpu_device_plugin.domain.grants.holdings_annotation import (
    HOLDINGS_ANNOTATION,
    Holding,
    holdings_annotation,
)

UNALLOCATED = "0/2 nodes are available: 2 cannot allocate all claims. no new claims to deallocate."


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A node for each allocation API; slices are held on both."""
    async with running() as (server, _):
        await server.put(
            "/api/v1/nodes/dra", ready(node("dra", 2, by_claims=(0, 1), claimed={0: (10, 60)}))
        )
        await server.put("/api/v1/nodes/plain", ready(node("plain", 1)))
        made = Cluster(server, kubeconfig(tmp_path / "c", f"http://127.0.0.1:{server.port}", {}))
        await made.add(claiming("chat", 10, 60, on="dra", annotations=held(0, 10, 60)))
        # What these two hold only they say.
        await made.add(claiming("forged", 15, 100, on="plain"), "Pending")
        await made.add(claiming("liar", 15, 100, on="dra", annotations=held(1, 15, 100)), "Pending")
        await made.add(pod("classic", 9, 50, on="plain", annotations=held(0, 9, 50)))
        yield made


async def put_dra(cluster: Cluster, claimed: Mapping[int, tuple[int, int]]) -> None:
    """What the agent of the node `dra` says that claims hold."""
    made = ready(node("dra", 2, by_claims=(0, 1), claimed=claimed))
    await cluster.server.put("/api/v1/nodes/dra", made)


async def words(cluster: Cluster, *command: str) -> str:
    """What it prints, without line breaks."""
    return " ".join((await cluster.run(*command, columns=200)).output.split())


async def test_the_map_counts_claims_as_it_counts_units(cluster: Cluster) -> None:
    shown = await words(cluster, "map")
    assert "dra core_mem, units of 1 GiB, 2 x Tesla-V100-SXM2-16GB, given by claims" in shown
    assert "a=ns/chat" in shown
    assert "forged" not in shown
    assert "liar" not in shown
    assert "19 of 45 units held" in shown

    cards = {n["name"]: n["cards"] for n in json.loads((await cluster.run("map", "-o", "json")).output)["nodes"]}  # fmt: skip
    assert [(c["allocation_api"], c["free_units"], c["free_percent"]) for c in cards["dra"]] == [
        ("dra", 5, 40),
        ("dra", 15, 100),
    ]
    assert cards["plain"][0]["allocation_api"] == "device-plugin"
    listed = (await cluster.run("dra", command=inspect_cgpu)).output
    assert "10/15" in listed


async def test_of_a_card_that_a_claim_has_whole_nothing_is_free(cluster: Cluster) -> None:
    await put_dra(cluster, {0: (10, 60), 1: (15, 100)})
    await cluster.add(asking_devices("whole", 1, "dra", "GPU-dra-1"))
    shown = json.loads((await cluster.run("map", "dra", "-o", "json")).output)["nodes"][0]["cards"]
    assert (shown[1]["free_units"], shown[1]["pods"]) == (0, [{"namespace": "ns", "name": "whole"}])
    assert "0 more pods of 14 units" in await words(cluster, "capacity", "14")


async def test_a_whole_card_by_a_claim_is_shown_once_with_all_of_its_units(
    cluster: Cluster,
) -> None:
    """Its node's agent tells it as a card and as what is held of one."""
    made = ready(node("dra", 2, by_claims=(0, 1), claimed={1: (15, 100)}))
    told = Holding(
        {"GPU-dra-1": UnitsAndPercent(Units(15), 100)}, ("GPU-dra-1",), is_by_claims=True
    )
    made["metadata"]["annotations"][HOLDINGS_ANNOTATION] = holdings_annotation({"uid-whole": told})
    await cluster.server.put("/api/v1/nodes/dra", made)
    await cluster.add(asking_devices("whole", 1, "dra", "GPU-dra-1"))

    assert (await words(cluster, "map", "dra")).count("=ns/whole") == 1
    assert "holds container a: 16160 MiB of card 1, 100 %" in await words(
        cluster, "why", "ns/whole"
    )
    listed = (await cluster.run("dra", "-d", command=inspect_cgpu)).output
    assert ["whole", "ns", "0", "15"] in [row.split() for row in listed.splitlines()]


async def test_why_of_a_claim_that_waits_says_what_each_card_has(cluster: Cluster) -> None:
    """kube-scheduler says of claims no more than that it cannot allocate them all."""
    await cluster.add(claiming("big", 14, 80), "Pending")
    await cluster.say("big", "FailedScheduling", UNALLOCATED, "default-scheduler")
    await put_dra(cluster, {0: (10, 60), 1: (15, 100)})
    shown = await words(cluster, "why", "ns/big", "-o", "wide")

    assert "container a: aliyun.com/gpu-mem: 14" in shown
    assert "through claims: slice-14-80-c0" in shown
    assert "card 0: 5 of 15 units, 40 % compute free, 9 units and 40 % compute too few" in shown
    assert (
        "plain: never: this node gives its cards through the device plugin, and the pod asks by a claim"
        in shown
    )
    assert "cannot allocate all claims" in shown
    assert "-> ask less, free a slice, or add a node" in shown


async def test_why_says_that_no_card_is_as_large_as_what_is_asked(cluster: Cluster) -> None:
    """Nothing that anybody gives back would help."""
    for made in (claiming("big", 16, 30), pod("large", 16, 30)):
        await cluster.add(made, "Pending")
        shown = await words(cluster, "why", f"ns/{made['metadata']['name']}")
        assert "-> ask less, or add a node of larger cards: none has so many units" in shown
        assert "free a slice" not in shown


async def test_why_names_the_template_that_a_claim_is_not_made_without(cluster: Cluster) -> None:
    """And repeats no Event that was written again."""
    made = claiming("waits", 2, 30)
    made["status"] = {}
    await cluster.add(made, "Pending")
    text = "failed to create ResourceClaim: gpu-slice not found"
    await cluster.say("waits", "FailedResourceClaimCreation", text, "controller")
    events = "/api/v1/namespaces/ns/events/waits"
    told = cluster.server.objects[f"{events}-FailedResourceClaimCreation"]
    await cluster.server.put(f"{events}-again", {**told, "metadata": {}})
    shown = await words(cluster, "why", "ns/waits")

    assert shown.count(text) == 1
    assert "its claim is not made yet (slice-2-30-c0): namespace ns needs the" in shown
    assert "ResourceClaimTemplate gpu-slice" in shown


async def test_what_why_says_that_fits_has_the_compute_that_is_free(cluster: Cluster) -> None:
    """Where no card has as much as the pod asks: a pod that asked so would be refused again."""
    await put_dra(cluster, {0: (10, 60), 1: (3, 30)})
    await cluster.add(claiming("big", 14, 80), "Pending")

    assert "what fits: 12 units (12928 MiB) with 70 % on card 1" in await words(
        cluster, "why", "ns/big"
    )


async def test_why_names_the_allocation_api_where_no_node_has_the_pods(cluster: Cluster) -> None:
    """Each way round, with what to label."""
    await cluster.add(pod("limits", 2, 30), "Pending")
    await cluster.server.put("/api/v1/nodes/plain", ready(node("plain", 1, by_claims=(0,))))
    shown = await words(cluster, "why", "ns/limits")
    assert (
        "dra, plain: never: this node gives its cards through claims, and the pod asks by limits"
        in shown
    )
    assert (
        "-> label the pod's namespace gpu-device-plugin/allocation-api=dra and create the pod"
        in shown
    )

    await cluster.add(claiming("claim", 2, 30), "Pending")
    for name in ("dra", "plain"):
        await cluster.server.put(f"/api/v1/nodes/{name}", ready(node(name, 1)))
    assert "-> label a node gpu-device-plugin/allocation-api=dra" in await words(
        cluster, "why", "ns/claim"
    )


async def test_why_of_a_pod_with_a_claim_says_what_it_holds(cluster: Cluster) -> None:
    shown = await words(cluster, "why", "ns/chat")
    assert "holds container a: 10773 MiB of card 0, 60 % of its compute" in shown


async def test_capacity_counts_each_node_by_its_own_allocation_api(cluster: Cluster) -> None:
    found: list[Json] = json.loads((await cluster.run("capacity", "3", "10", "-o", "json")).output)[
        "nodes"
    ]
    assert {each["node"]: each["pods"] for each in found} == {"dra": 6, "plain": 2}


async def test_why_of_a_whole_card_counts_the_cards_that_a_claim_can_have_whole(
    cluster: Cluster,
) -> None:
    """On a node whose kubelet has none of them: they are no allocatable."""
    await put_dra(cluster, {0: (10, 60), 1: (15, 100)})
    await cluster.add(asking_devices("held", 1, "dra", "GPU-dra-1"))
    await cluster.add(asking_devices("waits", 1), "Pending")
    shown = await words(cluster, "why", "ns/waits")

    assert "dra: has too few; nvidia.com/gpu by claims (dra.wholeCards): 0 of 2 free, 1" in shown
    assert "-> ask less, free a slice" in shown
    assert "holds container a: card 1 (Tesla-V100" in await words(cluster, "why", "ns/held")


async def test_why_says_that_an_init_container_shares_no_whole_cards_of_several(
    cluster: Cluster,
) -> None:
    """By a claim those of one only; there is room, which is not what the pod waits for."""
    made = asking_devices("two", 1)
    (first,) = made["spec"]["containers"]
    made["spec"]["initContainers"] = [{**first, "name": "before"}]
    await cluster.add(made, "Pending")
    assert "dra: has room" in await words(cluster, "why", "ns/two")

    made["spec"]["containers"] += [{**first, "name": "b"}]
    await cluster.add(made, "Pending")
    shown = await words(cluster, "why", "ns/two")
    assert "dra: never: by claims an init container (before) cannot share a, b's" in shown
    assert "-> no node takes the pod as it is" in shown

    del made["spec"]["initContainers"]
    await cluster.add(made, "Pending")
    assert (
        "dra: has too few; nvidia.com/gpu by claims (dra.wholeCards): 1 of 2 free"
        in await words(cluster, "why", "ns/two")
    )


LABEL = {"gpu-device-plugin/allocation-api": "dra"}


async def put_namespace(cluster: Cluster, name: str, *, has_label: bool, template: bool) -> None:
    """A namespace, with the label and the template or without."""
    meta = {"name": name, "labels": LABEL if has_label else {}}
    await cluster.server.put(f"/api/v1/namespaces/{name}", {"metadata": meta})
    if template:
        kind = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaimtemplates/gpu-slice"
        await cluster.server.put(kind, {"metadata": {"name": "gpu-slice", "namespace": name}})


@pytest.fixture
async def installed(cluster: Cluster) -> Cluster:
    """Everything that claims need."""
    await put_set(cluster, {"uid": "u1", "namespace": "gpu", "name": "gpu"}, AGENT)
    policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
    await cluster.server.put(f"{policies}/gpu-slices", {"metadata": {"name": "gpu-slices"}})
    await put_namespace(cluster, "ns", has_label=True, template=True)
    await cluster.server.put("/api/v1/nodes/dra", ready(node("dra", 2, by_claims=(0, 1)), LABEL))
    return cluster


API_WORDS = (" claims", "allocation API")


async def of_apis(cluster: Cluster) -> list[tuple[str, str]]:
    """Level and text of what doctor says of allocation APIs."""
    found: list[Json] = json.loads((await cluster.run("doctor", "-o", "json")).output)["findings"]
    return [(f["level"], f["what"]) for f in found if any(word in f["what"] for word in API_WORDS)]


async def test_doctor_finds_nothing_where_allocation_apis_agree(installed: Cluster) -> None:
    assert await of_apis(installed) == []


async def test_doctor_names_a_node_that_has_not_the_allocation_api_that_its_label_asks_for(
    installed: Cluster,
) -> None:
    """The agent keeps the other one, and says why as an Event."""
    window = {"gpu-device-plugin/allocation-api": "window"}
    await installed.server.put("/api/v1/nodes/odd", ready(node("odd", 1), window))
    await installed.server.put("/api/v1/nodes/old", ready(node("old", 1), LABEL))
    back = ready(
        node("back", 2, by_claims=(0, 1)), {"gpu-device-plugin/allocation-api": "device-plugin"}
    )
    await installed.server.put("/api/v1/nodes/back", back)

    assert await of_apis(installed) == [
        ("problem", "node odd: the label gpu-device-plugin/allocation-api=window is not a known allocation API"),
        ("problem", "node old asks for claims (gpu-device-plugin/allocation-api=dra), and its agent serves "
                    "the device plugin"),
        ("note", "node back is to go back to the device plugin, and waits until no claims hold its cards"),
    ]  # fmt: skip


async def test_doctor_names_namespaces_without_template_policy_or_nodes(installed: Cluster) -> None:
    """And what is there and not used."""
    await put_namespace(installed, "bare", has_label=True, template=False)
    await put_namespace(installed, "spare", has_label=False, template=True)
    await installed.server.delete(
        "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/gpu-slices"
    )
    await installed.server.put("/api/v1/nodes/dra", ready(node("dra", 2)))
    assert await of_apis(installed) == [
        ("problem", "namespaces use claims, and no node gives cards by them: bare, ns"),
        ("problem", "namespaces use claims and have no template for them: bare"),
        ("problem", "namespaces use claims, and no policy makes them: bare, ns"),
        ("note", "namespaces have the template for claims and not the label: spare"),
    ]

    for name in ("bare", "ns"):
        await put_namespace(installed, name, has_label=False, template=False)
    await installed.server.put("/api/v1/nodes/dra", ready(node("dra", 2, by_claims=(0, 1))))
    said = await of_apis(installed)
    assert said[0] == ("note", "nodes give their cards by claims, and no namespace uses them: dra")


async def test_doctor_says_nothing_of_allocation_apis_to_a_cluster_that_has_no_claims(
    installed: Cluster,
) -> None:
    """Kubernetes 1.29 has none of their kinds, and a user may not read namespaces."""
    unknown = ("mutatingadmissionpolicies", "resourceclaimtemplates")

    def older(seen: ApiRequest) -> web.Response | None:
        if seen.path.endswith("/namespaces"):
            return status(403, "forbidden")
        return status(404, "not found") if seen.path.endswith(unknown) else None

    installed.server.fault = older
    assert await of_apis(installed) == []
