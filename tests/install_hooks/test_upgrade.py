"""An upgrade that would change slices under the pods that hold them is refused, with a list."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tools.harness.api_server import StandInApiServer, running
from tools.harness.objects import claiming

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.grants.grant import UnitsAndPercent
from gpu_device_plugin.domain.grants.holdings_annotation import (
    HOLDINGS_ANNOTATION,
    Holding,
    holdings_annotation,
)
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.install_hooks.upgrade import check_release, check_upgrade
from gpu_device_plugin.kubernetes.objects.fleet import Fleet

CORE_MEM, SHARE, CGPU = NodeMode.CORE_MEM, NodeMode.SHARE, NodeMode.CGPU
GIB, SMALL = MemoryUnit.GIB, MemoryUnit.MIB128


async def node(
    server: StandInApiServer,
    name: str,
    mode: str,
    unit_mib: int,
    claimed: Mapping[str, int] | None = None,
    **labels: str,
) -> None:
    """A node that publishes how it serves, with an agent; of one card, what is `claimed`."""
    entries = [{"claimed": claimed} if claimed else {}]
    plain = {"version": 1, "mode": mode, "unit_mib": unit_mib, "cards": entries}
    cards = {CARDS_ANNOTATION: json.dumps(plain)}
    told = {f"ack.node.gpu.{key}": value for key, value in labels.items()}
    metadata = {"name": name, "labels": told, "annotations": cards}
    await server.put(f"/api/v1/nodes/{name}", {"metadata": metadata})
    owners = [{"uid": labels.get("installation", "ours"), "controller": True}]
    agent = {"metadata": {"ownerReferences": owners}, "spec": {"nodeName": name}}
    await server.put(f"/api/v1/namespaces/gpu/pods/agent-on-{name}", agent)
    daemonset = {"metadata": {"name": "agents", "uid": "ours"}}
    await server.put("/apis/apps/v1/namespaces/gpu/daemonsets/agents", daemonset)


async def pod(
    server: StandInApiServer, name: str, at: str, mem: int | str = 2, **status: Any
) -> None:
    """A pod with so many units of memory."""
    limits = {"aliyun.com/gpu-mem": str(mem)} if mem else {"cpu": "1500m"}
    spec = {"nodeName": at, "containers": [{"name": "main", "resources": {"limits": limits}}]}
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    made = {"metadata": metadata, "spec": spec, "status": status}
    await server.put(f"/api/v1/namespaces/default/pods/{name}", made)


async def settings(server: StandInApiServer, mode: str) -> None:
    """The ConfigMap of the release that is there."""
    made = {"metadata": {"name": "agents"}, "data": {"config.yaml": f"mode: {mode}\nnew_key: 1\n"}}
    await server.put("/api/v1/namespaces/gpu/configmaps/agents", made)


async def refusal(server: StandInApiServer, api: Any, mode: NodeMode, unit: MemoryUnit) -> str:
    """The text of the refusal."""
    with pytest.raises(ConfigError) as refused:
        await check_upgrade(Fleet(api, "gpu", "agents"), mode, unit)
    assert not server.seen("PATCH")
    return str(refused.value)


async def test_another_unit_is_refused_while_pods_hold_slices_and_lists_them() -> None:
    """R-402, R-403."""
    async with running() as (server, api):
        await settings(server, "share")
        await node(server, "a", "share", 128)
        await node(server, "b", "share", 128)
        await pod(server, "binpack-1", "a")
        await pod(server, "binpack-0", "a")
        await pod(server, "web", "a", mem=0)
        await pod(server, "done", "b", phase="Succeeded")
        await pod(server, "rejected", "b", phase="Failed")

        text = await refusal(server, api, SHARE, GIB)
        assert "node a counts in 128MiB, not GiB: default/binpack-0, default/binpack-1" in text
        assert "node b" not in text
        assert "web" not in text


@pytest.mark.parametrize("amount", ["10E", "2e0000", "1" * 5000])
async def test_a_pod_that_cannot_be_read_stops_no_upgrade(amount: str) -> None:
    """Any tenant may create one. What the kubelet counts as nothing holds nothing; else its node's agent says it."""
    async with running() as (server, api):
        await settings(server, "share")
        await node(server, "a", "share", 128)
        await pod(server, "odd", "a", mem=amount)
        fleet = Fleet(api, "gpu", "agents")
        if amount != "2e0000":
            assert await check_upgrade(fleet, SHARE, GIB) == 1
        made = server.objects["/api/v1/nodes/a"]
        held = {"uid-odd": Holding({"GPU-0": UnitsAndPercent(Units(2), 0)})}
        made["metadata"]["annotations"][HOLDINGS_ANNOTATION] = holdings_annotation(held)
        await server.put("/api/v1/nodes/a", made)
        if amount != "10E":
            assert "default/odd" in await refusal(server, api, SHARE, GIB)


async def test_the_same_unit_and_mode_are_no_obstacle() -> None:
    async with running() as (server, api):
        await settings(server, "core_mem")
        await node(server, "a", "core_mem", 1024)
        await pod(server, "p", "a")
        assert await check_upgrade(Fleet(api, "gpu", "agents"), CORE_MEM, GIB) == 1


async def test_another_unit_on_empty_nodes_is_no_obstacle() -> None:
    async with running() as (server, api):
        await node(server, "a", "share", 1024)
        await pod(server, "waits", "")
        assert await check_upgrade(Fleet(api, "gpu", "agents"), SHARE, SMALL) == 1


async def test_nodes_of_another_release_count_as_they_like() -> None:
    async with running() as (server, api):
        await node(server, "a", "core_mem", 1024)
        await node(server, "b", "share", 128, installation="of-another-release")
        await pod(server, "p", "b")
        assert await check_upgrade(Fleet(api, "gpu", "agents"), CORE_MEM, GIB) == 1


async def test_another_mode_is_refused_on_nodes_without_a_label() -> None:
    """Labelled nodes do not follow the value."""
    async with running() as (server, api):
        await settings(server, "core_mem")
        await node(server, "a", "core_mem", 1024)
        await node(server, "b", "core_mem", 1024, schedule="core_mem")
        await pod(server, "p", "a")
        await pod(server, "q", "b")

        text = await refusal(server, api, CGPU, GIB)
        assert "node a serves in mode core_mem, not cgpu: default/p" in text
        assert "node b" not in text


async def test_a_node_that_keeps_the_mode_of_a_former_label_is_no_obstacle() -> None:
    """The upgrade does not change it."""
    async with running() as (server, api):
        await settings(server, "core_mem")
        await node(server, "a", "share", 1024)
        await pod(server, "p", "a")
        assert await check_upgrade(Fleet(api, "gpu", "agents"), CORE_MEM, GIB) == 1


async def test_claims_are_not_switched_off_while_pods_hold_slices_by_them() -> None:
    """Only an agent that serves claims can give them back: the pods would stay Terminating."""
    async with running() as (server, api):
        await settings(server, "core_mem")
        claimed = {"pods": 1, "units": 2, "percent": 30}
        await node(server, "a", "core_mem", 1024, claimed=claimed)
        await node(server, "b", "core_mem", 1024)
        # What a pod's claims are called decides nothing: anybody may write such a name.
        made = claiming("forged", 2, 30, on="b")
        await server.put("/api/v1/namespaces/ns/pods/forged", made)
        await pod(server, "classic", "b")
        fleet = Fleet(api, "gpu", "agents")

        assert await check_upgrade(fleet, CORE_MEM, GIB) == 2
        with pytest.raises(ConfigError, match=r"never end:\n  node a\n`kubectl get"):
            await check_upgrade(fleet, CORE_MEM, GIB, has_claims=False)
        with pytest.raises(
            ConfigError, match=r"node a counts in GiB, not 128MiB: pods with claims"
        ):
            await check_upgrade(fleet, CORE_MEM, SMALL)
        await node(server, "a", "core_mem", 1024)
        assert await check_upgrade(fleet, CORE_MEM, GIB, has_claims=False) == 2


async def test_a_list_that_comes_in_pages_is_read_to_its_end() -> None:
    async with running() as (server, api):
        await node(server, "a", "share", 128)
        for number in range(3):
            await pod(server, f"p{number}", "a")
        server.page_size = 1
        text = await refusal(server, api, SHARE, GIB)
        assert "default/p0, default/p1, default/p2" in text


@pytest.mark.parametrize(
    ("installed", "is_refused"),
    [("0.1.9", True), ("0.2.0", False), ("0.10.0", False), ("0.2.0-rc.1", False), ("", False)],
)
async def test_a_release_too_old_to_be_read_has_to_be_uninstalled_first(
    installed: str, *, is_refused: bool
) -> None:
    """R-122. One that does not say its version is none of our releases, and in nobody's way."""
    async with running() as (server, api):
        labels = {"app.kubernetes.io/version": installed} if installed else {}
        daemonset = {"metadata": {"name": "agents", "uid": "ours", "labels": labels}}
        await server.put("/apis/apps/v1/namespaces/gpu/daemonsets/agents", daemonset)
        fleet = Fleet(api, "gpu", "agents")
        if is_refused:
            with pytest.raises(ConfigError, match=r"release 0\.1\.9 of gpu/agents .* from 0\.2\.0"):
                await check_release(fleet, "0.2.0")
        else:
            await check_release(fleet, "0.2.0")


async def test_where_nothing_is_installed_there_is_no_older_release() -> None:
    async with running() as (_, api):
        await check_release(Fleet(api, "gpu", "agents"), "0.2.0")
