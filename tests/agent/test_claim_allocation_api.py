"""The front of claims: what the scheduler allocated becomes a durable slice, and ends when it is given back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from tests.agent.agent_parts import running
from tests.agent.claim_node import ClaimsOnly, Node, node_at
from tools.harness.claim_kubelet import ClaimKubelet
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.claims import ClaimRef
from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL, AllocationApi
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.errors import DoesNotFitError, NodeError, RequestError
from gpu_device_plugin.kubelet.dra_servicer import HEALTH_NAMES


@dataclass
class Refusing(ClaimsOnly):
    """An API server that takes no offers, and never took one."""

    refused: str = "POST: 403"
    was_taken: bool = False
    asked: int = 0

    async def would_take(self) -> bool:
        self.asked += 1
        return not self.refused


@pytest.fixture
def node(short_dir: Path) -> Node:
    return node_at(short_dir, ClaimsOnly())


@asynccontextmanager
async def serving_claims(node: Node) -> AsyncIterator[None]:
    """The front at work."""
    node.wiring.claim_endpoint.begin()
    async with running(node.wiring.claim_endpoint.run()):
        yield


async def test_a_prepared_claim_has_a_durable_grant_files_and_a_cdi_file(node: Node) -> None:
    """Asked again it is the same slice; given back, nothing is left."""
    ref, endpoint = node.cluster.allocate("a", 1), node.wiring.claim_endpoint
    (device,) = await endpoint.prepare(ref)
    again = await endpoint.prepare(ref)

    (grant,) = node.wiring.ledger_store.ledger.grants.values()
    assert again == [device]
    assert device.cdi_ids == ("gpu-device-plugin/slice=uid-a",)
    assert (grant.devices, grant.core_percent, str(grant.pod)) == (("GPU-1",), 30, "default/pod-a")
    written = json.loads((node.cdi / "gpu-device-plugin-uid-a.json").read_text())
    edits = written["devices"][0]["containerEdits"]
    assert "NVIDIA_VISIBLE_DEVICES=GPU-1" in edits["env"]
    sources = [mount["hostPath"] for mount in edits["mounts"]]
    assert all(Path(source).exists() for source in sources), sources
    for _ in range(2):
        await endpoint.unprepare(ref)
    assert node.files == []
    assert not node.wiring.ledger_store.ledger.grants


async def test_each_wrong_claim_is_refused_with_its_reason(node: Node) -> None:
    """Gone, replaced by one of the same name, another driver's, another node's, not reserved."""
    endpoint, claims = node.wiring.claim_endpoint, node.cluster.claims
    with pytest.raises(RequestError, match="is gone"):
        await endpoint.prepare(ClaimRef("default", "nothing", "u"))
    ref = node.cluster.allocate("a", 0)
    with pytest.raises(RequestError, match="another uid"):
        await endpoint.prepare(replace(ref, uid="of-before"))
    (of,) = claims["a"].devices
    for other in (replace(of, driver="gpu.nvidia.com"), replace(of, pool="n2")):
        claims["a"] = replace(claims["a"], devices=(other,))
        with pytest.raises(RequestError, match="holds no device of gpu-device-plugin on node n1"):
            await endpoint.prepare(ref)
    claims["a"] = replace(claims["a"], devices=(replace(of, device="gpu-7"),))
    with pytest.raises(RequestError, match="node n1 has no gpu-7"):
        await endpoint.prepare(ref)
    claims["a"] = replace(claims["a"], devices=(of, replace(of, share_id="another")))
    with pytest.raises(RequestError, match="has gpu-0 of node n1 more than once"):
        await endpoint.prepare(ref)
    claims["a"] = replace(claims["a"], devices=(of,), pod=None)
    with pytest.raises(RequestError, match="not reserved for one pod"):
        await endpoint.prepare(ref)
    assert not node.wiring.ledger_store.ledger.grants


async def test_a_claim_that_was_made_for_another_pod_is_refused(node: Node) -> None:
    """Anyone who may change a claim could name its own pod as an owner, or remove the first one."""
    ref, pods = node.cluster.allocate("a", 0), ("pod-uid-a", "uid-other")
    for owners in ((), pods[1:], pods):
        claim = node.cluster.claims["a"]
        node.cluster.claims["a"] = replace(claim, owners=frozenset(owners))
        with pytest.raises(RequestError, match="is reserved for pod default/pod-a") as refused:
            await node.wiring.claim_endpoint.prepare(ref)
        assert (", ".join(owners) or "no pod") in str(refused.value)
    assert not node.wiring.ledger_store.ledger.grants


async def test_a_prepared_claim_is_the_same_slice_also_in_another_mode(node: Node) -> None:
    """Its amounts are none of the new mode's, and it holds what it has."""
    ref, endpoint = node.cluster.allocate("a", 0), node.wiring.claim_endpoint
    before = await endpoint.prepare(ref)
    node.wiring.node_store.update(mode=NodeMode.CGPU)

    assert await endpoint.prepare(ref) == before
    assert len(node.wiring.ledger_store.ledger.grants) == 1


async def test_a_claim_beyond_its_card_waits_until_the_other_one_is_given_back(node: Node) -> None:
    """A forced deletion frees a claim at the scheduler while its container still runs."""
    endpoint = node.wiring.claim_endpoint
    first = node.cluster.allocate("a", 0, units=10, percent=80)
    second = node.cluster.allocate("b", 0, units=10, percent=80)
    await endpoint.prepare(first)
    with pytest.raises(DoesNotFitError, match="card 0: 5 of 15 units free"):
        await endpoint.prepare(second)
    await endpoint.unprepare(first)
    await endpoint.prepare(second)

    assert node.files == ["uid-b"]


async def test_an_agent_that_starts_again_has_every_claim_and_no_file_too_many(
    node: Node, short_dir: Path
) -> None:
    """After a boot the directory of CDI files is empty; what was half given back is removed."""
    await node.wiring.claim_endpoint.prepare(node.cluster.allocate("a", 0))
    (node.cdi / "gpu-device-plugin-uid-a.json").unlink()
    (node.cdi / "gpu-device-plugin-uid-gone.json").write_text("{}")
    (node.cdi / "nvidia.json").write_text("{}")
    later = node_at(short_dir, node.cluster)
    await later.wiring.ledger_store.load(0.0)
    async with serving_claims(later):
        await until(lambda: later.files == ["nvidia", "uid-a"])


async def test_every_card_is_offered_and_a_sick_one_is_tainted(node: Node) -> None:
    async with serving_claims(node):
        await until(lambda: node.cluster.offers and node.offered() == {"gpu-0": {}, "gpu-1": {}})
        node.wiring.node_store.update(unhealthy={"GPU-1": "XID79"})
        await until(lambda: node.offered()["gpu-1"] == {"gpu-device-plugin/unhealthy": "XID79"})
        assert node.wiring.claim_endpoint.health() == ("n1", [("gpu-0", ""), ("gpu-1", "XID79")])


def by_units(node: Node) -> set[str]:
    """The cards that the device plugin offers now."""
    pools = node.wiring.offered_pools(node.wiring.node_store.read())
    return {group.card for pool in pools for group in pool.groups}


def label(node: Node, api: str) -> None:
    """The node has this label for its allocation API, and this agent has seen it."""
    node.wiring.mode.follow({"ack.node.gpu.schedule": "core_mem", ALLOCATION_API_LABEL: api})
    node.wiring.claim_endpoint.changed(None)


def notes(node: Node, reason: str) -> list[str]:
    """What Events of this reason say of the node, in order."""
    return [each.text for each in node.api.posted if each.reason == reason]


async def test_a_node_goes_to_claims_when_nobody_holds_units_of_it(short_dir: Path) -> None:
    """Until then it offers what it offered, and says who holds what and how to get there."""
    node = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN)
    await node.hold_units("classic", 0)
    label(node, "device-plugin")
    label(node, "dra")

    assert by_units(node) == {"GPU-0", "GPU-1"}
    assert not node.wiring.claim_endpoint.devices_to_offer()
    (told,) = notes(node, "AllocationApiSwitchRefused")
    assert "default/classic" in told
    assert "Cordon and drain the node" in told

    node.wiring.ledger_store.amend((), ["classic"])
    node.wiring.mode.republish_if_waiting()
    assert by_units(node) == set()
    assert len(node.wiring.claim_endpoint.devices_to_offer()) == 2
    assert notes(node, "AllocationApiSwitched")


async def test_a_node_goes_back_when_no_claim_holds_its_cards_prepared_or_not(node: Node) -> None:
    """While the API server is away nothing is known of claims that are not prepared."""
    endpoint, cluster = node.wiring.claim_endpoint, node.cluster
    endpoint.scheduler_lag_seconds = 0.05
    ref = cluster.allocate("a", 0)
    async with serving_claims(node):
        label(node, "dra")
        await endpoint.prepare(ref)
        label(node, "device-plugin")
        assert "default/pod-a" in notes(node, "AllocationApiSwitchRefused")[-1]
        assert cluster.readings == 0

        await endpoint.unprepare(ref)
        await until(lambda: cluster.readings)
        assert by_units(node) == set()
        assert (
            len(node.offered()) == 2
        )  # of a claim that is allocated the cards are offered as before
        cluster.is_away = True
        del cluster.claims["a"]
        seen = cluster.readings
        endpoint.changed(None)
        await until(lambda: cluster.readings > seen)
        assert by_units(node) == set()

        cluster.is_away = False
        endpoint.changed(None)
        await until(lambda: by_units(node) == {"GPU-0", "GPU-1"})
        await until(lambda: not endpoint.is_needed)
        await until(lambda: node.offered() == {})


async def test_a_claim_that_is_allocated_while_the_offer_is_taken_back_keeps_the_node(
    node: Node,
) -> None:
    """The scheduler may be behind: with the offer gone, the claims are read once more."""
    node.wiring.claim_endpoint.scheduler_lag_seconds = 0.05
    cluster = node.cluster
    async with serving_claims(node):
        label(node, "dra")
        cluster.on_withdrawal = lambda: cluster.allocate("late", 1)
        label(node, "device-plugin")
        await until(lambda: notes(node, "AllocationApiSwitchRefused"))
        assert "default/pod-late" in notes(node, "AllocationApiSwitchRefused")[-1]
        await until(lambda: len(node.offered()) == 2)
        assert by_units(node) == set()
        await node.wiring.claim_endpoint.prepare(ClaimRef("default", "late", "uid-late"))


async def test_a_mode_waits_for_claims_that_are_not_prepared_yet(node: Node) -> None:
    """Their amounts are of the old one."""
    node.wiring.claim_endpoint.scheduler_lag_seconds = 0.05
    node.cluster.allocate("a", 0)
    labels = {"ack.node.gpu.schedule": "core_mem", ALLOCATION_API_LABEL: "dra"}
    async with serving_claims(node):
        node.wiring.mode.follow(labels)
        node.wiring.mode.follow({**labels, "ack.node.gpu.schedule": "cgpu"})
        node.wiring.claim_endpoint.changed(None)
        await until(lambda: notes(node, "ModeSwitchRefused"))
        assert node.wiring.node_store.read().mode is NodeMode.CORE_MEM
        del node.cluster.claims["a"]
        node.wiring.claim_endpoint.changed(None)
        await until(lambda: node.wiring.node_store.read().mode is NodeMode.CGPU)
        await until(lambda: len(node.offered()) == 2)


async def test_a_directory_that_takes_no_files_stops_the_node_until_it_does(
    node: Node, short_dir: Path
) -> None:
    (short_dir / "cdi").write_text("")
    with pytest.raises(NodeError, match="cannot be written"):
        await node.wiring.claim_endpoint.prepare(node.cluster.allocate("early", 1))
    async with serving_claims(node):
        await until(lambda: "CdiDirNotWritable" in node.wiring.node_store.read().faults)
        fault = {"gpu-device-plugin/unhealthy": "CdiDirNotWritable"}
        await until(lambda: node.offered() == {"gpu-0": fault, "gpu-1": fault})
        with pytest.raises(DoesNotFitError, match="unhealthy"):
            await node.wiring.claim_endpoint.prepare(node.cluster.allocate("a", 0))
        (short_dir / "cdi").unlink()
        node.wiring.claim_endpoint.changed(None)
        await until(lambda: not node.wiring.node_store.read().faults)


async def test_a_claim_waits_until_the_kubelet_has_said_who_holds_units(node: Node) -> None:
    """The agent's own grants may be lost: the kubelet asks for the claim again."""
    ref, endpoint = node.cluster.allocate("a", 1), node.wiring.claim_endpoint
    node.wiring.holders.has_passed = False
    with pytest.raises(DoesNotFitError, match="is not known yet"):
        await endpoint.prepare(ref)
    assert not node.wiring.ledger_store.ledger.grants

    node.wiring.holders.has_passed = True
    assert await endpoint.prepare(ref)


async def test_with_allocation_api_dra_the_device_plugin_gives_nothing_new(node: Node) -> None:
    """From the first moment: the kubelet may not have seen the shorter list yet."""
    free = unit_ids(Resource.MEM, 0, 15)
    with pytest.raises(RequestError, match="gives its cards through claims"):
        await node.wiring.fraction_calls.prefer(str(Resource.MEM), free, (), 2)


def apis(node: Node, *labels: str, version: str = "v1.36.3") -> list[str]:
    """The node's allocation API after each of these labels, while nobody holds anything of it."""
    found = []
    for text in labels:
        node.wiring.mode.note_kubelet(version, "")
        node.wiring.mode.follow({ALLOCATION_API_LABEL: text} if text else {})
        if node.wiring.mode.waits_for_claims:
            node.wiring.mode.note_claims(())
        found.append(str(node.wiring.node_store.read().allocation_api))
    return found


async def test_the_label_decides_and_an_unknown_allocation_api_keeps_the_old_one(
    short_dir: Path,
) -> None:
    """A kubelet without it, or a mode of whole cards: the device plugin serves."""
    node = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN)

    assert apis(node, "dra", "window", "device-plugin", "window") == [
        "dra", "dra", "device-plugin", "device-plugin",
    ]  # fmt: skip
    assert apis(node, "dra", version="v1.35.4") == ["device-plugin"]
    whole = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN)
    whole.wiring.mode.follow({ALLOCATION_API_LABEL: "dra", "ack.node.gpu.schedule": "default"})
    assert whole.wiring.node_store.read().allocation_api is AllocationApi.DEVICE_PLUGIN


async def test_an_unknown_allocation_api_keeps_the_old_one_over_a_restart(
    node: Node, short_dir: Path
) -> None:
    """And over the loss of the setting that it began with."""
    labels = {"ack.node.gpu.schedule": "core_mem"}
    node.wiring.mode.follow({**labels, ALLOCATION_API_LABEL: "dra"})
    node.wiring.mode.follow({**labels, ALLOCATION_API_LABEL: "window"})
    await node.wiring.writer.run(lambda: None)  # it writes in turn

    later = node_at(short_dir, node.cluster, AllocationApi.DEVICE_PLUGIN)
    await later.wiring.mode.load(0.0, None)
    assert later.wiring.node_store.read().allocation_api is AllocationApi.DRA
    later.wiring.mode.follow({**labels, ALLOCATION_API_LABEL: "window"})
    assert later.wiring.node_store.read().allocation_api is AllocationApi.DRA


async def test_an_api_server_that_takes_no_offers_is_asked_again_without_a_change_of_allocation_api(
    short_dir: Path,
) -> None:
    """The device plugin serves until it takes them; nobody has to set the label again."""
    cluster = Refusing()
    node = node_at(short_dir, cluster, AllocationApi.DEVICE_PLUGIN)
    node.wiring.claim_endpoint.ask_seconds = 0.02
    apis_seen: list[AllocationApi] = []
    async with serving_claims(node):
        node.wiring.mode.follow({ALLOCATION_API_LABEL: "dra", "ack.node.gpu.schedule": "core_mem"})
        await until(lambda: cluster.asked)
        node.wiring.node_store.subscribe(lambda state: apis_seen.append(state.allocation_api))
        await until(lambda: cluster.asked > 2)
        assert apis_seen == []
        cluster.refused = ""
        await until(lambda: node.wiring.node_store.read().allocation_api is AllocationApi.DRA)


async def test_it_ends_when_told_while_its_server_is_just_ending(node: Node) -> None:
    """The last claim has ended, the kubelet still watches health, and the agent is stopped."""
    node.wiring.claim_endpoint.begin()
    task = asyncio.ensure_future(node.wiring.claim_endpoint.run())
    kubelet = ClaimKubelet(node.directory / "k")
    await until(lambda: bool(node.cluster.offers) and kubelet.registry_socket.exists())
    socket = await kubelet.register()
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        # A stream that is open keeps the server from ending at once.
        watch = channel.unary_stream(f"/{HEALTH_NAMES[0]}/NodeWatchResources")
        assert await watch(b"", wait_for_ready=True).read()
        node.wiring.node_store.update(allocation_api=AllocationApi.DEVICE_PLUGIN)
        await until(lambda: not socket.exists())
        task.cancel()

        done, _ = await asyncio.wait({task}, timeout=60)
    assert done
