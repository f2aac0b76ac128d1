"""Another plugin that serves the very names that this agent serves: the kubelet counts them, and the agent has not registered."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.harness.rig import NODE, Rig, running_rig
from tools.harness.waiting import until

MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
OFFERED = {MEM: 60, CORE: 400, COUNT: 4}
NOTHING = dict.fromkeys(OFFERED, 0)


async def count(rig: Rig, amounts: Mapping[str, str]) -> None:
    """What the kubelet writes into the node's status."""
    node = rig.api.objects[f"/api/v1/nodes/{NODE}"]
    status = {"allocatable": dict(amounts), "capacity": {}, "nodeInfo": {}}
    await rig.api.put(f"/api/v1/nodes/{NODE}", {**node, "status": status})


@contextmanager
def answering(path: Path) -> Iterator[None]:
    """A plugin that listens at `path`."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


async def test_a_plugin_that_serves_our_names_before_our_first_start_keeps_them() -> None:
    """Nothing is registered, the Event names its socket, and it ends when the kubelet counts nothing any more."""
    async with running_rig(is_started=False) as rig:
        await count(rig, {MEM: "60"})
        with answering(rig.kubelet.plugin_dir / "aliyungpushare.sock"):
            await rig.start_agent()
            await until(lambda: bool(rig.events("OtherPlugin")), 60)
            message = rig.events("OtherPlugin")[0]["message"]
            assert MEM in message
            assert "aliyungpushare.sock" in message
            assert not rig.kubelet.registry.links
            await rig.stop_agent()
            await rig.start_agent()
            await rig.until_page(f"another device plugin serves {MEM}")
            assert not rig.kubelet.registry.links
        await count(rig, {MEM: "0"})
        await rig.until_offered(OFFERED, 20)


async def test_a_lost_state_directory_is_no_other_plugin() -> None:
    """The kubelet writes within 10 s that nobody serves what the agent served in its former life."""
    async with running_rig(is_started=False) as rig:
        await count(rig, {MEM: "60", CORE: "400"})
        await rig.start_agent()
        await rig.until_page("the kubelet counts names that this agent did not register")
        assert not rig.kubelet.registry.links
        await count(rig, {MEM: "0", CORE: "0"})
        await rig.until_offered(OFFERED, 20)
        assert not rig.events("OtherPlugin")


async def test_names_that_this_agent_serves_or_has_served_are_its_own() -> None:
    """With its state directory a restart waits for nothing, whatever the kubelet counts."""
    async with running_rig() as rig:
        await rig.until_offered(OFFERED, 20)
        await count(rig, {MEM: "60"})
        await rig.stop_agent()
        await rig.start_agent()
        await rig.until_offered(OFFERED, 20)
        assert not rig.events("OtherPlugin")


@pytest.mark.parametrize("mode", ["cgpu", "default"])
@pytest.mark.parametrize(
    "name",
    [
        "volcano.sh/vgpu-number",
        "nvidia.com/vgpu-number",
        "koordinator.sh/gpu-core",
        "tencent.com/vcuda-core",
    ],
)
async def test_names_of_other_sharing_plugins_keep_us_from_offering_their_cards(
    mode: str, name: str
) -> None:
    """Also where this agent offers whole cards under NVIDIA's names; it ends with the amount."""
    async with running_rig(is_started=False) as rig:
        await count(rig, {name: "40"})
        await rig.start_agent(mode=mode)
        await rig.until_page(f"{name}: 40")
        assert not rig.kubelet.registry.links
        await count(rig, {name: "0"})
        await rig.until_ready()


async def test_nvidias_names_are_anothers_in_mode_default_too_while_nothing_is_registered() -> None:
    """HAMi's plugin has them, on a socket of another name."""
    async with running_rig(is_started=False) as rig:
        await count(rig, {"nvidia.com/gpu": "40"})
        await rig.start_agent(mode="default")
        await rig.until_page("another device plugin serves nvidia.com/gpu", 60)
        assert not rig.kubelet.registry.links
