"""A node goes from NVIDIA's plugin to the agent and back under running pods, on one kubelet.

Both list the same ids, so that what the kubelet has given away stays given.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agent.test_nvidia import annotated
from tools.harness.nvidia_plugin.machine import entered, make_machine
from tools.harness.nvidia_plugin.programs import NvidiaPlugin
from tools.harness.nvidia_plugin.seen import counted
from tools.harness.rig import Rig, running_rig
from tools.harness.waiting import until

pytestmark = pytest.mark.long

GPU = "nvidia.com/gpu"


async def test_pods_keep_their_cards_when_a_node_moves_over_and_back() -> None:
    """And nobody else gets these cards: not here, and not there afterwards."""
    async with one_kubelet() as (theirs, rig):
        await theirs.start({})
        await until(lambda: counted(rig.kubelet) == {GPU: 8}, 20)
        assert (await rig.admit("before", {GPU: 2})).is_admitted
        before = held(rig, "before")
        await rig.set_labels(schedule="disabled")
        await rig.start_agent()
        await rig.set_labels(schedule="default")
        await rig.until_page("another device plugin answers on nvidia-gpu.sock")
        assert rig.kubelet.registry.links[GPU].socket.name == "nvidia-gpu.sock"

        await theirs.stop()
        await until(lambda: counted(rig.kubelet) == {GPU: 8}, 20)
        await rig.until_ready()
        assert set((await annotated(rig, "before"))["0"]) == before
        assert (await rig.admit("here", {GPU: 1})).is_admitted
        assert before.isdisjoint(held(rig, "here"))
        await rig.stop_agent()
        await until(lambda: counted(rig.kubelet) == {}, 20)

        await theirs.start({})
        await until(lambda: counted(rig.kubelet) == {GPU: 8}, 20)
        assert (await rig.admit("after", {GPU: 1})).is_admitted
        pods = ("before", "here", "after")
        assert len({card for pod in pods for card in held(rig, pod)}) == 4
        assert held(rig, "before") == before


def held(rig: Rig, pod: str) -> frozenset[str]:
    """The ids that the kubelet has given to a pod's container."""
    ((_, ids),) = rig.kubelet.held(rig.uid(pod)).items()
    return ids


@asynccontextmanager
async def one_kubelet() -> AsyncIterator[tuple[NvidiaPlugin, Rig]]:
    """NVIDIA's plugin and this one beside the same kubelet, neither of them started."""
    with tempfile.TemporaryDirectory(prefix="side", dir="/tmp") as directory:
        async with running_rig("dgx-1", is_started=False) as rig:
            theirs = NvidiaPlugin(Path(directory), rig.cards)
            theirs.kubelet = rig.kubelet
            make_machine(Path(directory) / "machine", rig.cards)
            rig.enter = tuple(entered(Path(directory) / "machine", rig.kubelet.plugin_dir))
            try:
                yield theirs, rig
            finally:
                await theirs.stop()
