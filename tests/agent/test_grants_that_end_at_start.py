"""A grant that ended while its container's start was checked stays ended."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.agent_parts import settings_below
from tests.held import changed, fraction
from tools.harness.rig import put_library

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoCluster
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import ClusterError, UnknownPodError

POD = PodRef("default", "p", "uid-p")
UNCHECKED = fraction(
    slice_id="5111ce",
    pod=POD,
    container="main",
    units={Resource.MEM: ("m00", "m01"), Resource.CORE: ("c00",)},
    cards=("GPU-a",),
    mem_units=2,
    core_percent=5,
    pod_units=2,
    unit_mib=1024,
    mode="core_mem",
    is_isolated=True,
    is_checked=False,
    library_version="0.0.1",
)
SPEC = PodRequest(
    POD, (ContainerRequest("main", ContainerKind.APP, 0, {Resource.MEM: 2, Resource.CORE: 5}),)
)


class Api(NoCluster):
    """An API server of which nothing but the answer to one GET matters."""

    def __init__(self, fetch_spec: Callable[[Wiring], Awaitable[PodRequest | None]]) -> None:
        self._fetch_spec = fetch_spec
        self.wiring: Wiring

    async def fetch_spec(self, _namespace: str, _name: str, /) -> PodRequest | None:
        """The answer."""
        return await self._fetch_spec(self.wiring)


async def wired(
    short_dir: Path, fetch_spec: Callable[[Wiring], Awaitable[PodRequest | None]]
) -> Wiring:
    """The agent's parts without a kubelet, holding one grant that nobody has checked yet."""
    settings = settings_below(short_dir)
    api = Api(fetch_spec)
    edges = replace(real_edges(settings), cluster=lambda _signals, _on_drop: api)
    api.wiring = wiring = Wiring(settings, edges)
    wiring.node_store.update(mode=NodeMode.CORE_MEM, library_version="0.0.1")
    put_library(short_dir / "library_dir" / "0.0.1")
    await wiring.ledger_store.hold(UNCHECKED)
    return wiring


@pytest.mark.parametrize("is_api_away", [False, True], ids=["api answers", "api away"])
async def test_a_grant_released_while_its_start_is_checked_is_not_brought_back(
    short_dir: Path, *, is_api_away: bool
) -> None:
    """The check waits for the API server; reconciling may find meanwhile that the pod has gone."""

    async def fetch_spec(wiring: Wiring) -> PodRequest | None:
        wiring.ledger_store.amend((), ended=[UNCHECKED.slice_id])
        if is_api_away:
            raise ClusterError("away")
        return SPEC

    wiring = await wired(short_dir, fetch_spec)
    with pytest.raises(UnknownPodError):
        await wiring.prestart.check(Resource.MEM, UNCHECKED.ids(Resource.MEM))

    assert wiring.ledger_store.ledger.grants == {}
    assert not (short_dir / "run_dir" / "slices" / UNCHECKED.slice_id).exists()


async def test_what_reconciling_learned_meanwhile_is_kept(short_dir: Path) -> None:
    """The check must not write its older copy of the grant over a newer one."""

    async def fetch_spec(wiring: Wiring) -> PodRequest | None:
        if not wiring.ledger_store.ledger.grants[UNCHECKED.slice_id].is_sized:
            wiring.ledger_store.amend([changed(UNCHECKED, card_bytes=(2154 << 20,))])
        return SPEC

    wiring = await wired(short_dir, fetch_spec)
    await wiring.prestart.check(Resource.MEM, UNCHECKED.ids(Resource.MEM))

    held = wiring.ledger_store.ledger.grants[UNCHECKED.slice_id]
    assert [share.memory_bytes for share in held.shares] == [2154 << 20]
    assert held.is_checked
