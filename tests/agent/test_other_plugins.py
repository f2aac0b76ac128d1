"""Another plugin on the same kubelet that shares our cards, above all gpushare, which has our own resource's name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.e2e.time_slicing_plugin import GPUSHARE, start
from tools.harness.rig import CORE, COUNT, FOUR_CARDS, MEM, NODE, Rig, running_rig
from tools.harness.waiting import until

THEIRS = {MEM: 15, CORE: 0, COUNT: 0}
NOTHING = dict.fromkeys(FOUR_CARDS, 0)
SERVES = f"another device plugin serves {MEM}, or pods hold units of it"


@asynccontextmanager
async def gpushare(rig: Rig) -> AsyncIterator[None]:
    """Alibaba Cloud's plugin at work: it writes how many cards there are into the node's status, and never removes that."""
    path = f"/api/v1/nodes/{NODE}"
    counted = {"capacity": {COUNT: "4"}, "allocatable": {COUNT: "4"}, "nodeInfo": {}}
    await rig.api.put(path, {**rig.api.objects[path], "status": counted})
    server = await start(rig.kubelet.plugin_dir, 15, *GPUSHARE)
    try:
        await rig.until_offered(THEIRS)
        yield
    finally:
        await server.stop(0)


@asynccontextmanager
async def rig_with_clock(clock: Path) -> AsyncIterator[Rig]:
    """A node whose agent is not started, and on which time since boot stands still."""
    async with running_rig(is_started=False) as rig:
        set_clock(rig, 1000)
        rig.environment |= {"LD_PRELOAD": str(clock), "BOOT_SECONDS": str(rig.root / "boot")}
        yield rig


def set_clock(rig: Rig, seconds: int) -> None:
    """The time since boot from now on."""
    (rig.root / "boot").write_text(str(seconds))


async def looks(rig: Rig) -> None:
    """Wait until the agent has heard from the kubelet again what that is served."""
    server = rig.kubelet.pod_resources
    before = server.asked_for_served
    # The first may have been answered before what this waits for.
    await until(lambda: server.asked_for_served >= before + 2, 60)


async def test_gpushare_keeps_its_node_until_it_has_been_gone_for_a_while(clock: Path) -> None:
    """Also over a restart of the agent without the API server. The Event names its socket; its end hands the node over."""
    async with rig_with_clock(clock) as rig:
        async with gpushare(rig):
            await rig.start_agent()
            await until(lambda: bool(rig.events("OtherPlugin")), 60)
            message = rig.events("OtherPlugin")[0]["message"]
            assert f"{SERVES} (sockets that answer: {GPUSHARE[1]})" in message
            await rig.stop_agent()
            await rig.api.stop()
            await rig.start_agent()
            await rig.until_page(SERVES, 60)
            set_clock(rig, 1040)
            await looks(rig)
            assert rig.allocatable() == THEIRS
        await looks(rig)
        assert rig.allocatable() == NOTHING
        set_clock(rig, 1080)
        await rig.until_offered(FOUR_CARDS, 30)


async def test_gpushare_keeps_its_node_where_it_and_the_agent_start_again_together(
    clock: Path,
) -> None:
    """After a reboot the kubelet is served by nobody for a moment."""
    async with rig_with_clock(clock) as rig:
        async with gpushare(rig):
            await rig.start_agent()
            await rig.until_page(SERVES, 60)
            await rig.stop_agent()
        await rig.until_offered(NOTHING)
        await rig.start_agent()
        await rig.until_page(SERVES, 60)
        await looks(rig)
        assert rig.allocatable() == NOTHING
        async with gpushare(rig):
            set_clock(rig, 1040)
            await looks(rig)
            assert rig.allocatable() == THEIRS


async def test_pods_that_hold_gpushares_units_keep_their_node_and_what_it_wrote_into_them(
    clock: Path,
) -> None:
    """Its units are not ours to take over, also where it is gone: the pod's card is not known."""
    key = "scheduler.framework.gpushare.allocation"
    async with rig_with_clock(clock) as rig:
        async with gpushare(rig):
            admission = await rig.admit("old", {MEM: 3}, annotations={key: '{"0":{"1":3}}'})
            assert admission.is_admitted, admission.message
        await rig.until_offered(NOTHING)
        await rig.start_agent()
        await rig.until_page(SERVES, 60)
        set_clock(rig, 1040)
        await looks(rig)
        assert rig.allocatable() == NOTHING
        pod = "/api/v1/namespaces/default/pods/old"
        assert rig.annotations(pod) == {key: '{"0":{"1":3}}'}
        assert not rig.events("SliceAdopted")
        rig.kubelet.finish(rig.uid("old"))
        await looks(rig)
        set_clock(rig, 1080)
        await rig.until_offered(FOUR_CARDS, 30)


async def test_what_gpushare_leaves_in_the_status_and_what_koordinator_writes_there_is_no_plugin() -> (
    None
):
    """Nor is the agent's own former life, whose state directory is lost: the kubelet serves nothing of it any more."""
    async with running_rig(is_started=False) as rig:
        path = f"/api/v1/nodes/{NODE}"
        left = {MEM: "60", COUNT: "4", "koordinator.sh/gpu-core": "400"}
        status = {"capacity": left, "allocatable": left, "nodeInfo": {}}
        await rig.api.put(path, {**rig.api.objects[path], "status": status})
        await rig.serve()
        assert rig.allocatable() == FOUR_CARDS
        assert not rig.events("OtherPlugin")


async def test_a_first_agent_waits_for_the_kubelet_to_say_whom_it_serves_and_a_later_one_does_not() -> (
    None
):
    """What was ours goes on at once."""
    async with running_rig(is_started=False) as rig:
        rig.kubelet.pod_resources.tells_served = False
        await rig.start_agent()
        await until(lambda: rig.kubelet.pod_resources.asked_for_served >= 3, 60)
        await rig.until_page("the kubelet does not tell which device plugins serve it", 60)
        assert len(rig.events("OtherPlugin")) == 1
        assert not rig.events("OtherPluginOver")
        assert rig.allocatable() == NOTHING
        rig.kubelet.pod_resources.tells_served = True
        await rig.until_offered(FOUR_CARDS, 30)
        await rig.until_ready()
        rig.kubelet.pod_resources.tells_served = False
        await rig.restart_agent()
        assert rig.allocatable() == FOUR_CARDS


@pytest.mark.parametrize("mode", ["core_mem", "default"])
async def test_a_plugin_of_another_project_that_comes_later_ends_our_offers(mode: str) -> None:
    """Also where NVIDIA's names are our own."""
    async with running_rig(mode=mode) as rig:
        server = await start(rig.kubelet.plugin_dir, 4, "volcano.sh/vgpu-number", "volcano.sock")
        path = f"/api/v1/nodes/{NODE}"
        status = {"allocatable": {"volcano.sh/vgpu-number": "4"}, "nodeInfo": {}}
        await rig.api.put(path, {**rig.api.objects[path], "status": status})
        await rig.until_page("another device plugin serves volcano.sh/vgpu-number", 60)
        await rig.until_offered(NOTHING)
        assert rig.kubelet.allocatable("nvidia.com/gpu") == 0
        await server.stop(0)
