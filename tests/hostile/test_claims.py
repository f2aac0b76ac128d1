"""Claims of hostile pods: what a pod calls its claims, and what stands in a claim, takes nothing of a node.

Counting a node costs as much as what its pods ask, once: the work is counted at two sizes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at
from tests.agent.test_claim_allocation_api import serving_claims
from tests.agent.test_claim_rebuild import lose_grants
from tests.controller.replica import a_controller
from tests.hostile.work import lines_run
from tools.harness.api_server import StandInApiServer, running, working
from tools.harness.objects import UNITS, Json, held, node, path, pod
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.node_fit import node_rooms
from gpu_device_plugin.domain.fractions.pod_annotations import hold_of
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.claims import Claim
from gpu_device_plugin.domain.grants.node_annotations import Claimed, parse_offer
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import RequestError
from gpu_device_plugin.kubernetes.objects.resource_claims import fetch_claim, list_allocated
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.overview.node_cards import cluster_cards

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"
NAME_IN_POD = "resource.kubernetes.io/pod-claim-name"


def hostile(name: str, *, on: str, **annotations: str) -> Json:
    """A pod past the scheduler, without any limit, that names forty slices of a whole card each."""
    made = pod(name, on=on, annotations=annotations)
    names = [f"slice-{UNITS}-100-c{index}" for index in range(40)]
    made["spec"]["resourceClaims"] = [{"name": each} for each in names]
    made["spec"]["containers"] = [{"name": f"c{index}"} for index in range(40)]
    return made


async def test_a_pod_that_names_slices_takes_nothing_of_a_node(tmp_path: Path) -> None:
    """With or without claims on the node, and whatever its annotations say."""
    pods = [hostile(f"h{n}", on=name, **held(0, UNITS, 100)) for n, name in enumerate(("n1", "n2"))]
    nodes = (node("n1", 1), node("n2", 2, by_claims=(0, 1)))
    async with a_controller(tmp_path, nodes, tuple(pods)) as found:
        answer = await found.filter(pod("new", UNITS, 100), "n1", "n2")
        assert answer["NodeNames"] == ["n1"]  # the other one is for claims
        ledger = found.controller.ledger
        assert [len(ledger.holds(name)) for name in ("n1", "n2")] == [0, 0]
        assert [room.free_mem for name in ("n1", "n2") for room in ledger.rooms(name)] == [
            UNITS
        ] * 3


async def test_people_see_nothing_that_such_a_pod_says_of_itself() -> None:
    """`kubectl gpu` and the page count by the same rule."""
    async with running() as (server, api):
        for name in ("n1", "n2"):
            await server.put(f"/api/v1/nodes/{name}", node(name, 1, by_claims=(0,)[: name == "n2"]))
            made = hostile(f"on-{name}", on=name, **held(0, UNITS, 100))
            await server.put(path(made), made)
        survey = Survey(api)
        pods = [asking for each in await survey.pods() if (asking := each.as_asking())]
        nodes = [told for each in await survey.nodes() if (told := each.with_cards())]
    assert len(pods) == 2
    cards = cluster_cards(nodes, pods)
    shown = [(card.free_units, card.holders) for view in cards.nodes for card in view.cards]
    assert shown == [(UNITS, ()), (UNITS, ())]
    assert [view.waiting for view in cards.nodes] == [{}, {}]
    assert cards.summary.endswith("0 of 30 units held (0 %)")


def counted(pods: int, containers: int, annotation: str = "") -> int:
    """Work to count a node of eight cards, where so many pods wait for a card or have one."""
    told = node("n1", 8)["metadata"]["annotations"]["gpu-device-plugin/cards"]
    offer = parse_offer("n1", told, {})
    amounts = {str(Resource.MEM): 1, str(Resource.CORE): 5}
    asking = tuple(
        ContainerRequest(f"c{index}", ContainerKind.APP, index, amounts)
        for index in range(containers)
    )
    annotations = {"scheduler.framework.gpushare.allocation": annotation} if annotation else {}
    holds = [
        hold_of(PodRequest(PodRef("ns", f"p{n}", f"u{n}"), asking), annotations)
        for n in range(pods)
    ]
    return lines_run(lambda: node_rooms(offer, holds))


@pytest.mark.parametrize("annotation", ["", json.dumps({c: {"0": 1} for c in range(32)})])
def test_counting_a_node_costs_as_much_as_its_pods_ask_once(annotation: str) -> None:
    """Pods without a card, and pods that are all on one."""
    assert counted(80, 16, annotation) <= 2.2 * counted(40, 16, annotation)
    assert counted(20, 32, annotation) <= 2.2 * counted(20, 16, annotation)


def claim(name: str, **changed: Any) -> Json:
    """A claim with a part of card 0 of n1."""
    result = {
        "driver": "gpu-device-plugin",
        "pool": "n1",
        "device": "gpu-0",
        "request": "slice",
        "consumedCapacity": {"memory": "2Gi", "cores": "30"},
    } | changed
    owner = {"kind": "Pod", "name": "p", "uid": "u-p"}
    reserved = {"resource": "pods", "name": "p", "uid": "u-p"}
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"u-{name}",
            "ownerReferences": [owner],
        },
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [reserved]},
    }


async def fetched(server: StandInApiServer, api: Any, made: Json) -> Claim:
    """What the agent makes of it."""
    await server.put(f"{CLAIMS}/{made['metadata']['name']}", made)
    found = await fetch_claim(api, "ns", made["metadata"]["name"], 5)
    assert found is not None
    return found


@pytest.mark.parametrize("amount", ["-2Gi", "1e400", "9Ei", "9" * 5000, "many", 1e300])
async def test_an_amount_that_no_card_has_is_none_and_hides_no_other_claim(amount: object) -> None:
    """With none nothing is prepared; a list with it is read to its end."""
    odd = claim("odd", consumedCapacity={"memory": amount, "cores": amount})
    async with running() as (server, api):
        found = await fetched(server, api, odd)
        await server.put(f"{CLAIMS}/plain", claim("plain"))
        listed = {each.ref.name: each for each in await list_allocated(api)}
    (device,) = found.devices
    assert (device.memory_mib, device.core_percent) == (0, 0)
    (device,) = listed["plain"].devices
    assert (device.memory_mib, device.core_percent) == (2048, 30)


async def test_lists_and_texts_of_a_claim_are_bounded_where_they_are_read() -> None:
    """Its metadata is anybody's to write who may make one; opaque configuration is not read."""
    made = claim("long")
    (owner,) = made["metadata"]["ownerReferences"]
    made["metadata"]["ownerReferences"] = [owner | {"uid": "u" * 100_000}]
    made["metadata"]["annotations"] = {NAME_IN_POD: "n" * 100_000, "padding": "x" * 200_000}
    devices = made["status"]["allocation"]["devices"]
    devices["results"] *= 5_000
    deep: Json = {}
    for _ in range(900):
        deep = {"x": deep}
    devices["config"] = [{"opaque": {"parameters": deep | {"y": "y" * 100_000}}}]
    async with running() as (server, api):
        found = await fetched(server, api, made)
    assert len(found.devices) == 32
    assert found.name_in_pod == ""
    assert len(repr(replace(found, devices=()))) < 1_000


@pytest.fixture
async def agent(short_dir: Path) -> Node:
    """An agent whose cards are given by claims."""
    return node_at(short_dir, ClaimsOnly())


def change(agent: Node, **changed: Any) -> None:
    """The claim `a` is reserved for other pods now, or owned by others."""
    agent.cluster.claims["a"] = replace(agent.cluster.claims["a"], **changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pod": PodRef("default", "other", "uid-other")}, "but is owned by pod-uid-a"),
        ({"is_shared": True}, "is not reserved for one pod"),
        ({"owners": frozenset({"pod-uid-a", "uid-other"})}, "but is owned by pod-uid-a, uid-other"),
    ],
)
async def test_a_claim_is_prepared_for_its_own_pod_only(
    agent: Node, changed: dict[str, Any], words: str
) -> None:
    """Not for another one, nor for one of several, anyone who reserved it."""
    ref = agent.cluster.allocate("a", 1)
    change(agent, **changed)
    with pytest.raises(RequestError, match=words):
        await agent.wiring.claim_endpoint.prepare(ref)
    assert not agent.files


async def test_a_card_is_held_until_the_kubelet_gives_the_claim_back(agent: Node) -> None:
    """Also while its owner has gone and others run on it, and where the grants were lost meanwhile."""
    store, endpoint = agent.wiring.ledger_store, agent.wiring.claim_endpoint
    ref = agent.cluster.allocate("a", 1, units=UNITS, percent=100)
    await endpoint.prepare(ref)
    change(agent, pod=PodRef("default", "other", "uid-other"), is_shared=True)
    lose_grants(agent)
    async with serving_claims(agent):
        await until(lambda: store.ledger.grants)
        use = store.ledger.use_by_claims()["GPU-1"]
        assert (use.memory_mib, use.core_percent) == (UNITS * 1024, 100)
        await endpoint.unprepare(ref)
        assert not store.ledger.use_by_claims()


async def test_the_node_tells_what_claims_hold_whatever_their_pods_say(agent: Node) -> None:
    """From that alone it is counted elsewhere: what a pod says of itself is not asked."""
    cards = agent.api.cards
    async with working(agent.wiring.publisher.run):
        await agent.wiring.claim_endpoint.prepare(agent.cluster.allocate("a", 1))
        await until(lambda: cards and "claimed" in cards[-1])
    assert parse_offer("n1", cards[-1], {}).claimed == (Claimed(CardIndex(1), 1, Units(2), 30),)
