"""A container gets the cards of one claim, or of one request of a claim: each has a slice and a CDI file of its own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at
from tests.agent.test_claim_allocation_api import serving_claims
from tests.agent.test_claim_rebuild import lose_grants
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.fraction import fraction_of
from gpu_device_plugin.domain.grants.claims import ClaimRef
from gpu_device_plugin.domain.node.memory_enforcer import DriverLimits
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import RequestError

POD = PodRef("default", "pod-a", "pod-uid-a")
WHOLE = {"nvidia.com/gpu": 1}
PARTS = [f"uid-a.container-{n}-request-0" for n in range(2)]


@pytest.fixture
def node(short_dir: Path) -> Node:
    return node_at(short_dir, ClaimsOnly())


def of_two_containers(node: Node, name_in_pod: str = "") -> ClaimRef:
    """A claim as kube-scheduler makes it for two containers that each ask for a whole card."""
    ref = node.cluster.allocate("a", 0, units=15, percent=100)
    claim = node.cluster.claims["a"]
    (of,) = claim.devices
    devices = tuple(
        replace(of, request=f"container-{n}-request-0", device=f"gpu-{n}") for n in range(2)
    )
    node.cluster.claims["a"] = replace(claim, devices=devices, name_in_pod=name_in_pod)
    return ref


def know_pod(node: Node, monkeypatch: pytest.MonkeyPatch, *containers: ContainerRequest) -> None:
    """The watch has the pod."""
    specs = {POD.key: PodRequest(POD, containers)}
    monkeypatch.setattr(node.wiring.cluster, "specs", lambda: specs)


def serve_pod(node: Node, monkeypatch: pytest.MonkeyPatch, *containers: ContainerRequest) -> None:
    """The API server has the pod, and the watch still one of before of the same name."""
    before = PodRequest(replace(POD, uid="before"), ())
    monkeypatch.setattr(node.wiring.cluster, "specs", lambda: {POD.key: before})

    async def fetch_spec(_namespace: str, _name: str) -> PodRequest:
        return PodRequest(POD, containers)

    monkeypatch.setattr(node.wiring.cluster, "fetch_spec", fetch_spec)


def cards(node: Node) -> dict[str, tuple[str, ...]]:
    """Part of a claim -> its cards."""
    grants = node.wiring.ledger_store.ledger.grants.values()
    return {grant.holder.claim: grant.devices for grant in grants}


async def test_a_claim_counts_in_the_unit_of_its_node(node: Node) -> None:
    """R-404: 16 units of 128 MiB are 16 of the 126 parts of a V100."""
    node.wiring.node_store.update(unit=MemoryUnit.MIB128)
    ref = node.cluster.allocate("a", 0)
    node.cluster.claims["a"] = replace(node.cluster.claims["a"], name_in_pod="slice-16-30-c0")
    await node.wiring.claim_endpoint.prepare(ref)

    (grant,) = node.wiring.ledger_store.ledger.grants.values()
    assert (fraction_of(grant).mem_units, grant.shares[0].memory_bytes) == (16, 2052 << 20)


async def test_each_container_that_asks_for_a_whole_card_gets_its_own(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, and made again after a loss, they are the same; given back, nothing is left."""
    endpoint, store = node.wiring.claim_endpoint, node.wiring.ledger_store
    spec = [ContainerRequest(name, ContainerKind.APP, n, WHOLE) for n, name in enumerate("ab")]
    know_pod(node, monkeypatch, *spec)
    ref = of_two_containers(node)
    prepared = await endpoint.prepare(ref)

    told = [(each.of.request, each.of.device, each.cdi_ids) for each in prepared]
    assert told == [
        (f"container-{n}-request-0", f"gpu-{n}", (f"gpu-device-plugin/slice={PARTS[n]}",))
        for n in range(2)
    ]
    assert cards(node) == {PARTS[0]: ("GPU-0",), PARTS[1]: ("GPU-1",)}
    before = {grant.slice_id: grant.holder for grant in store.ledger.grants.values()}
    request = PodRequest(POD, tuple(spec))
    of = node.wiring.schemes.container_of
    assert sorted(of(grant, request) for grant in store.ledger.grants.values()) == ["a", "b"]

    lose_grants(node)
    async with serving_claims(node):
        await until(lambda: len(cards(node)) == len(before))
    assert {grant.slice_id: grant.holder for grant in store.ledger.grants.values()} == before
    assert await endpoint.prepare(ref) == prepared
    await endpoint.unprepare(ref)
    assert (cards(node), node.files) == ({}, [])


@pytest.mark.parametrize(
    ("name_in_pod", "kinds", "text"),
    [
        ("cards", (ContainerKind.APP,), "containers that name it get all of them"),
        ("", (ContainerKind.APP, ContainerKind.INIT), "an init container asks as well"),
        ("", (), "its pod is not known yet"),
    ],
)
async def test_a_claim_whose_requests_may_meet_in_one_container_is_refused(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    name_in_pod: str,
    kinds: tuple[ContainerKind, ...],
    text: str,
) -> None:
    """The second card would hide the first; an init container uses those of later ones."""
    if kinds:
        containers = [ContainerRequest(str(kind), kind, n, WHOLE) for n, kind in enumerate(kinds)]
        know_pod(node, monkeypatch, *containers)
    with pytest.raises(RequestError, match=text):
        await node.wiring.claim_endpoint.prepare(of_two_containers(node, name_in_pod))
    assert (cards(node), node.files) == ({}, [])


@pytest.mark.parametrize("know", [know_pod, serve_pod])
async def test_a_container_that_names_two_claims_of_cards_is_refused_the_second(
    node: Node, monkeypatch: pytest.MonkeyPatch, know: Callable[..., None]
) -> None:
    """A slice, and a template's whole card, which would be idle; other containers may have either."""
    endpoint = node.wiring.claim_endpoint
    piece, whole = node.cluster.allocate("a", 0), node.cluster.allocate("b", 1, 15, 100)
    for name, told in (("a", "slice-2-30-c0"), ("b", "card")):
        claim = replace(node.cluster.claims[name], name_in_pod=told, pod=POD)
        node.cluster.claims[name] = replace(claim, owners=frozenset({POD.uid}))
    both = ("slice-2-30-c0", "nic", "card")
    know(node, monkeypatch, ContainerRequest("main", ContainerKind.APP, 0, claims=both))
    await endpoint.prepare(piece)
    with pytest.raises(RequestError, match="container main of pod default/pod-a names several"):
        await endpoint.prepare(whole)
    assert await endpoint.prepare(piece)

    containers = [
        ContainerRequest(f"of-{name}", ContainerKind.APP, n, claims=(name,))
        for n, name in enumerate(both)
    ]
    know(node, monkeypatch, *containers)
    await endpoint.prepare(whole)
    assert cards(node) == {"uid-a": ("GPU-0",), "uid-b": ("GPU-1",)}


@pytest.mark.parametrize(
    ("kinds", "enforcer"),
    [
        pytest.param((ContainerKind.APP,), "driver", id="one container"),
        pytest.param((ContainerKind.INIT, ContainerKind.APP), "driver", id="one after the other"),
        pytest.param((ContainerKind.APP, ContainerKind.APP), "library", id="two at once"),
        pytest.param((ContainerKind.SIDECAR, ContainerKind.INIT), "library", id="a sidecar"),
        pytest.param((), "library", id="the pod is not known"),
    ],
)
async def test_the_driver_limits_a_claim_of_one_container_at_a_time(
    node: Node, monkeypatch: pytest.MonkeyPatch, kinds: tuple[ContainerKind, ...], enforcer: str
) -> None:
    """The kubelet is told the slice's CDI device too, which carries the hook."""
    proven = DriverLimits(dict.fromkeys(("GPU-0", "GPU-1"), "misc"), {}, "")
    node.wiring.node_store.update(driver_limits=proven)
    ref = node.cluster.allocate("a", 0)
    name = "slice-2-30-c0"
    named = [ContainerRequest(f"c{n}", kind, n, claims=(name,)) for n, kind in enumerate(kinds)]
    if named:
        know_pod(node, monkeypatch, *named)
    (prepared,) = await node.wiring.claim_endpoint.prepare(ref)

    (grant,) = node.wiring.ledger_store.ledger.grants.values()
    assert grant.enforcers.memory == enforcer
    device = f"gpu-device-plugin/slice={grant.slice_id}"
    assert (device in prepared.cdi_ids) is (enforcer == "driver")
    assert (node.cdi / f"gpu-slice-{grant.slice_id}.json").is_file() is (enforcer == "driver")
    await node.wiring.claim_endpoint.unprepare(ref)
    assert list(node.cdi.glob("*.json")) == []
