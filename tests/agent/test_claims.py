"""A front of claims gets and gives back grants without any call of the kubelet's."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.agent_parts import settings_below
from tests.agent.claim_node import CARDS
from tests.held import fraction
from tools.harness.rig import put_library

from gpu_device_plugin.agent.kubelet_calls.caller_lookup import Sources
from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoCluster
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.domain.cards.memory_unit import MiB, Units
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.grant import Demand, Holder
from gpu_device_plugin.domain.grants.kubelet_snapshot import KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import DeviceUse
from gpu_device_plugin.domain.grants.lifetime import Witnesses
from gpu_device_plugin.domain.node.memory_enforcer import DriverLimits, EnforcerChoice
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.errors import DoesNotFitError, NodeError, RequestError


def claim(name: str) -> Holder:
    """A claim of a pod of that name."""
    return Holder(PodRef("default", name, f"uid-{name}"), claim=f"claim-{name}")


@pytest.fixture
def wiring(short_dir: Path) -> Wiring:
    """The agent's parts without a kubelet, on a node of two cards whose library is there."""
    settings = settings_below(short_dir, cdi_dir=str(short_dir / "cdi"))
    edges = replace(real_edges(settings), cluster=lambda *_: NoCluster())
    wiring = Wiring(settings, edges)
    put_library(short_dir / "library_dir" / "0.0.1")
    state = wiring.node_store
    state.update(mode=NodeMode.CORE_MEM, cards=CARDS, library_version="0.0.1")
    return wiring


async def test_two_fronts_count_on_one_ledger(wiring: Wiring) -> None:
    """What the kubelet's units hold of a card is not there for claims, and nothing is given twice."""
    units: dict[str, tuple[str, ...]] = {Resource.MEM: unit_ids(Resource.MEM, 0, 10)}
    pod = PodRef("default", "classic", "uid-classic")
    await wiring.ledger_store.hold(
        fraction("s1", pod, "main", units=units, cards=("GPU-0",), core_percent=50)
    )
    on_first = ("GPU-0",)

    with pytest.raises(DoesNotFitError, match="card 0: 5 of 15 units free"):
        await wiring.admission.reserve(claim("a"), Demand(Units(6), 30), on_first)
    await wiring.admission.reserve(claim("a"), Demand(Units(5), 30), on_first)
    with pytest.raises(DoesNotFitError):
        await wiring.admission.reserve(claim("b"), Demand(Units(1), 5), on_first)
    await wiring.admission.release(claim("a"))
    await wiring.admission.reserve(claim("b"), Demand(Units(1), 5), on_first)
    use = wiring.ledger_store.ledger.use()["GPU-0"]
    assert use == DeviceUse(MiB(11 * 1024), 55, (pod, claim("b").pod))


async def kubelet_asks(wiring: Wiring, name: str, mem: int, core: int) -> None:
    """The kubelet admits a pod of that name, whose spec is known, by its two pairs of calls."""
    asked: dict[str, int] = {Resource.MEM: mem, Resource.CORE: core}
    ref = PodRef("default", name, f"uid-{name}")
    spec = PodRequest(ref, (ContainerRequest("main", ContainerKind.APP, 0, asked),))

    async def listed() -> Sequence[ListedPod]:
        return [ListedPod(PodRef("default", name))]

    async def get(_: PodRef) -> ListedPod | None:
        return None

    async def fetch(_namespace: str, _name: str) -> PodRequest | None:
        return spec

    wiring.caller_lookup.sources = Sources(
        listed, lambda: {ref.key: spec}, fetch, wiring.snapshots.witnesses
    )
    for resource, amount in asked.items():
        count = 15 if resource == Resource.MEM else 100
        free = [text for number in (0, 1) for text in unit_ids(Resource(resource), number, count)]
        given = await wiring.fraction_calls.prefer(resource, free, (), amount)
        await wiring.fraction_calls.allocate(resource, given)


async def test_the_kubelets_pods_get_nothing_of_what_claims_hold(wiring: Wiring) -> None:
    """A claim has no units of the kubelet's, which offers all of the card; the ledger knows."""
    for name in "ab":
        await wiring.admission.reserve(claim(name), Demand(Units(10), 60))

    with pytest.raises(DoesNotFitError, match="5 of 15 units free"):
        await kubelet_asks(wiring, "big", 10, 50)
    await kubelet_asks(wiring, "small", 5, 40)
    held = wiring.ledger_store.ledger.use().values()
    assert sorted(use.memory_mib for use in held) == [10 * 1024, 15 * 1024]


async def test_of_claims_at_the_same_moment_each_sees_the_others(wiring: Wiring) -> None:
    """Two cards have room for four of these; the fifth is refused, in whatever order."""
    asked = [wiring.admission.reserve(claim(name), Demand(Units(7), 45)) for name in "abcde"]
    results = await asyncio.gather(*asked, return_exceptions=True)

    assert sum(isinstance(found, DoesNotFitError) for found in results) == 1
    assert {u.memory_mib for u in wiring.ledger_store.ledger.use().values()} == {14 * 1024}


async def test_only_its_front_ends_the_grant_of_a_claim(wiring: Wiring) -> None:
    """The kubelet's List lacks a pod that was deleted by force, and its container may still run."""
    await wiring.admission.reserve(claim("a"), Demand(Units(2), 30))
    ledger = wiring.ledger_store.ledger

    assert not Witnesses(KubeletSnapshot((), ())).over(ledger)


async def test_a_node_that_divides_nothing_refuses_a_claim(wiring: Wiring) -> None:
    """With node and mode in the text."""
    wiring.node_store.update(mode=NodeMode.DISABLED)

    with pytest.raises(RequestError, match=r"node n1 \(mode disabled\) divides no cards"):
        await wiring.admission.reserve(claim("a"), Demand(Units(2), 30))


@pytest.mark.parametrize("choice", [EnforcerChoice.AUTO, EnforcerChoice.DRIVER])
async def test_a_claim_of_one_container_is_limited_by_the_driver_and_a_shared_one_is_not(
    wiring: Wiring, choice: EnforcerChoice
) -> None:
    """The limit is of one container: never silently less than the operator chose."""
    proven = DriverLimits({card.uuid: "misc" for card in CARDS}, {}, "")
    wiring.node_store.update(memory_choice=choice, driver_limits=proven)
    alone = await wiring.admission.reserve(claim("a"), Demand(Units(2), 30))
    assert alone.enforcers == ("driver", "library")
    assert wiring.setup.files.cdi_text(alone.slice_id)
    sharing = wiring.admission.reserve(claim("b"), Demand(Units(2), 30), is_shared=True)
    if choice is EnforcerChoice.DRIVER:
        with pytest.raises(NodeError, match="containers that run at once share it"):
            await sharing
    else:
        assert (await sharing).enforcers.memory == "library"
