"""Lost grants of claims are made again, each by itself, and only for as long as the claim is not given back."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at
from tests.agent.test_claim_allocation_api import serving_claims
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.claims import Claim, ClaimRef
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.errors import ClusterError


@dataclass
class Waiting(ClaimsOnly):
    """An API server that answers when it is let, and not for every claim."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    broken: str = ""

    async def fetch(self, _namespace: str, name: str, /) -> Claim | None:
        found = self.claims.get(name)
        self.asked.append(name)
        await self.may_answer.wait()
        if name == self.broken:
            raise ClusterError("it cannot be read")
        return found


@pytest.fixture
def cluster() -> Waiting:
    found = Waiting()
    found.may_answer.set()
    return found


@pytest.fixture
def node(short_dir: Path, cluster: Waiting) -> Node:
    return node_at(short_dir, cluster)


async def prepare(node: Node, *names: str) -> None:
    """Small claims, in turn on both cards."""
    for number, name in enumerate(names):
        ref = node.cluster.allocate(name, number % 2, units=1, percent=5)
        await node.wiring.claim_endpoint.prepare(ref)


def lose_grants(node: Node) -> None:
    """As if the file of grants were damaged."""
    store = node.wiring.ledger_store
    store.amend((), list(store.ledger.grants))
    store.may_lack_grants = True


def held(node: Node) -> list[str]:
    """Uids of the claims that hold a slice."""
    grants = node.wiring.ledger_store.ledger.grants.values()
    return sorted(grant.holder.claim for grant in grants)


async def test_lost_grants_are_made_again_from_files_and_claims(node: Node) -> None:
    """With the slice that the containers have mounted; a file whose claim is over stays."""
    endpoint, store = node.wiring.claim_endpoint, node.wiring.ledger_store
    await prepare(node, "a", "b")
    before = {g.holder.claim: g for g in store.ledger.grants.values()}
    lose_grants(node)
    del node.cluster.claims["b"]
    async with serving_claims(node):
        await until(lambda: store.ledger.grants)
        await until(lambda: node.cluster.offers)

    (grant,) = store.ledger.grants.values()
    assert replace(grant, created_seconds=0) == replace(before["uid-a"], created_seconds=0)
    assert node.files == ["uid-a", "uid-b"]
    await endpoint.unprepare(ClaimRef("default", "b", "uid-b"))
    assert node.files == ["uid-a"]


async def test_a_claim_that_cannot_be_made_again_leaves_the_others_alone(
    node: Node, cluster: Waiting
) -> None:
    """One is reserved for nobody any more, one cannot be read; the second is tried again later."""
    await prepare(node, *"abcdef")
    lose_grants(node)
    cluster.claims["c"] = replace(cluster.claims["c"], pod=None)
    cluster.broken = "e"
    async with serving_claims(node):
        await until(lambda: held(node) == ["uid-a", "uid-b", "uid-d", "uid-f"])
        cluster.broken = ""
        node.wiring.claim_endpoint.changed(None)
        await until(lambda: "uid-e" in held(node))
    assert held(node) == ["uid-a", "uid-b", "uid-d", "uid-e", "uid-f"]


async def test_a_claim_that_is_given_back_meanwhile_is_not_made_again(
    node: Node, cluster: Waiting
) -> None:
    """Its grant would never end: the kubelet gives a claim back once."""
    await prepare(node, "a")
    lose_grants(node)
    cluster.may_answer.clear()
    cluster.asked.clear()
    async with serving_claims(node):
        await until(lambda: cluster.asked == ["a"])
        await node.wiring.claim_endpoint.unprepare(ClaimRef("default", "a", "uid-a"))
        cluster.may_answer.set()
        await until(lambda: cluster.offers)

    assert (held(node), node.files) == ([], [])
    await node.wiring.claim_endpoint.prepare(cluster.allocate("b", 0, units=15, percent=100))


async def test_a_file_that_cannot_be_restored_leaves_the_others_alone(
    node: Node, short_dir: Path
) -> None:
    """After a boot the directory is empty, and a card has gone."""
    await prepare(node, *"abcd")
    for path in node.cdi.glob("*.json"):
        path.unlink()
    later = node_at(short_dir, node.cluster)
    await later.wiring.ledger_store.load(0.0)
    later.wiring.node_store.update(cards=later.wiring.node_store.read().cards[1:])
    async with serving_claims(later):
        await until(lambda: later.files == ["uid-b", "uid-d"])


async def test_prepared_claims_are_served_where_grants_and_what_was_offered_are_lost(
    node: Node,
) -> None:
    """With allocation API device-plugin only the CDI files tell of them; the kubelet has to give them back."""
    await prepare(node, "a")
    lose_grants(node)
    node.wiring.node_store.update(allocation_api=AllocationApi.DEVICE_PLUGIN)
    assert node.wiring.claim_endpoint.is_needed
    async with serving_claims(node):
        await until(lambda: held(node) == ["uid-a"])

    await node.wiring.claim_endpoint.unprepare(ClaimRef("default", "a", "uid-a"))
    assert not node.wiring.claim_endpoint.is_needed
