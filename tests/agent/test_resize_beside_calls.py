"""No step of a resize falls between a call of the kubelet and its grant, which would undo it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.agent.agent_parts import running, settings_below
from tests.held import fraction
from tools.harness.waiting import until

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoCluster
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.disk.slice_files import SliceSpec
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.pod_annotations import RESIZE
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest

POD = PodRef("default", "p", "uid-p")
UNITS = ("m00", "m01", "m02", "m03")


class OnePod(NoCluster):
    """An API server with one pod, which asks for less."""

    def specs(self) -> Specs:
        asked = ContainerRequest("main", ContainerKind.APP, 0, {Resource.MEM: len(UNITS)})
        return {POD.key: PodRequest(POD, (asked,))}

    def annotations_of(self, _pod: PodRef, /) -> Mapping[str, str]:
        return {RESIZE: "main=mem:1"}


class AskedGate(CallGate):
    """Tells when somebody waits for a moment between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        self.is_asked.set()
        async with super().quiet():
            yield


async def test_a_slice_shrinks_after_the_call_that_is_being_answered(short_dir: Path) -> None:
    """The call writes the grant as it was when it began."""
    settings = settings_below(short_dir)
    place = short_dir / "library_dir" / "v"
    place.mkdir()
    (place / "libgpuslice.so").write_bytes(b"bad revision")
    (place / "ld.so.preload").touch()
    wiring = Wiring(settings, replace(real_edges(settings), cluster=lambda *_: OnePod()))
    card = Card("GPU-a", CardNumber(0), CardIndex(0), 0, "V100", MiB(16160))
    wiring.node_store.update(mode=NodeMode.CGPU, cards=(card,))
    units: dict[str, tuple[str, ...]] = {Resource.MEM: UNITS}
    held = fraction(
        "5111ce", POD, "main", units=units, cards=["GPU-a"], mode="cgpu", library_version="v"
    )
    wiring.ledger_store.amend([held])
    wiring.setup.files.make(SliceSpec("5111ce", "limits", ("GPU-a",)))
    wiring.holders.has_passed = True
    wiring.resizer.gate = gate = AskedGate()
    async with running(wiring.resizer.run()):
        async with gate.lock, asyncio.timeout(20):
            wiring.resizer.pod_synced(POD)
            await gate.is_asked.wait()
            assert wiring.ledger_store.ledger.grants["5111ce"] == held
        await until(lambda: wiring.ledger_store.ledger.grants["5111ce"].resized is not None, 20)
