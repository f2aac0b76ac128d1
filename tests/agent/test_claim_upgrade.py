"""The promise: an upgrade under prepared claims changes no slice, and each can still be given back.

`data/claims` holds what the agent of 0.1.0 left: two claims of 2 units and 30 %, one a card. The
zeros up to a whole block are left out.
"""

import json
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at
from tests.agent.test_claim_allocation_api import serving_claims
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.claims import ClaimRef

LEFT = Path(__file__).parent / "data" / "claims"
BLOCK = 4096
SLICES = {"uid-a": "35906dcc68046a2c", "uid-b": "8d7d0f2fcef0b2dc"}


@pytest.fixture
async def upgraded(short_dir: Path) -> Node:
    """A node of this release on what the older one left, whose library is still there."""
    (short_dir / "s").mkdir()
    (short_dir / "cdi").mkdir()
    for file in LEFT.iterdir():
        content = file.read_bytes()
        if file.suffix == ".json":
            (short_dir / "cdi" / file.name).write_bytes(content)
        else:
            (short_dir / "s" / file.name).write_bytes(content + bytes(-len(content) % BLOCK))
    cluster = ClaimsOnly()
    cluster.allocate("a", 0)
    cluster.allocate("b", 1)
    node = node_at(short_dir, cluster)
    assert (await node.wiring.ledger_store.load(0.0)).bad is None
    return node


def slices(node: Node) -> dict[str, str]:
    """Claim's uid -> its slice, where its CDI file names the same one."""
    found = {}
    for grant in node.wiring.ledger_store.ledger.grants.values():
        uid = grant.holder.claim
        spec = json.loads((node.cdi / f"gpu-device-plugin-{uid}.json").read_text())
        assert spec["annotations"]["gpu-device-plugin/slice"] == grant.slice_id
        found[uid] = grant.slice_id
    return found


async def test_claims_that_the_older_agent_prepared_keep_their_slices(upgraded: Node) -> None:
    """Asked again they are the same ones; given back, nothing of them is left."""
    endpoint = upgraded.wiring.claim_endpoint
    async with serving_claims(upgraded):
        await until(lambda: upgraded.cluster.offers)
        for name in "ab":
            (device,) = await endpoint.prepare(ClaimRef("default", name, f"uid-{name}"))
            assert device.cdi_ids == (f"gpu-device-plugin/slice=uid-{name}",)
        assert slices(upgraded) == SLICES
        for name in "ab":
            await endpoint.unprepare(ClaimRef("default", name, f"uid-{name}"))
    assert (slices(upgraded), upgraded.files) == ({}, [])


async def test_lost_grants_are_made_again_from_the_older_agents_cdi_files(upgraded: Node) -> None:
    store = upgraded.wiring.ledger_store
    store.amend((), list(store.ledger.grants))
    store.may_lack_grants = True
    async with serving_claims(upgraded):
        await until(lambda: len(store.ledger.grants) == len(SLICES))
    assert slices(upgraded) == SLICES
