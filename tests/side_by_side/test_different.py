"""NVIDIA's own plugin and this one, side by side: every difference that docs/nvidia.md lists, seen.

Nothing here is chance: where theirs chooses by chance, it is left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.side_by_side.test_same import TEN_REPLICAS, wait_settled
from tools.harness.nvidia_plugin.programs import both
from tools.harness.nvidia_plugin.seen import answered, counted, is_settled
from tools.harness.waiting import until

pytestmark = pytest.mark.long

GPU, SEVENTH = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
ONE_AT_A_TIME = TEN_REPLICAS.replace(
    "timeSlicing:\n", "timeSlicing:\n    failRequestsGreaterThanOne: true\n"
)
BY_MODEL = """
version: v1
resources:
  gpus:
  - {pattern: "*V100*", name: volta}
"""
BY_DEVICE = """
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, rename: nvidia.com/slow, devices: ["0", "1"], replicas: 3}]
"""
UNSERVED: Mapping[str, tuple[Mapping[int, Sequence[str] | None], str]] = {
    "one card is whole": (
        {0: None},
        "all devices on the node must be configured with the same migEnabled value",
    ),
    "two kinds": ({0: ("2g.10gb",)}, "more than one MIG device type present on node"),
    "one card is not cut": ({0: ()}, "device 0 has no MIG devices configured"),
}


async def test_without_a_strategy_a_card_in_mig_mode_is_left_out_and_theirs_offers_it_whole() -> (
    None
):
    """A container with such a card has no device that computes (R-706)."""
    async with both("a100-mig", {}, {0: None}) as (theirs, rig):
        await until(lambda: counted(theirs.kubelet) == {GPU: 8}, 20)
        await until(lambda: counted(rig.kubelet) == {GPU: 1}, 20)
        await until(lambda: len(rig.events("MigCardSkipped")) == 7, 20)


@pytest.mark.parametrize(("cuts", "words"), UNSERVED.values(), ids=UNSERVED.keys())
async def test_over_a_layout_that_strategy_single_cannot_show_theirs_exits_and_ours_waits(
    cuts: Mapping[int, Sequence[str] | None], words: str
) -> None:
    """R-707: in the same words."""
    async with both("a100-mig", {"mig_strategy": "single"}, cuts) as (theirs, rig):
        await until(lambda: theirs.has_ended, 20)
        assert words in theirs.log.read_text()
        await rig.until_page(words)
        assert rig.is_running


async def test_without_a_required_imex_channel_theirs_exits_and_ours_waits(tmp_path: Path) -> None:
    """In the same words; a channel that is not required is left out by both."""
    file = tmp_path / "config.yaml"
    for required in (True, False):
        file.write_text(
            f"version: v1\nimex: {{channelIDs: [0], required: {str(required).lower()}}}\n"
        )
        async with both("v100", {"config_file": str(file)}) as (theirs, rig):
            if required:
                await until(lambda ended=theirs: ended.has_ended, 20)
                words = "requested IMEX channel channel0 does not exist"
                assert words in theirs.log.read_text()
                await rig.until_page(words)
                assert rig.is_running
            else:
                await wait_settled(theirs, rig)


async def test_a_card_heals_here_and_stays_unhealthy_there() -> None:
    """R-709: until theirs is started again."""
    async with both("v100", {}, recovery_seconds=1) as (theirs, rig):
        await wait_settled(theirs, rig)
        rig.cards.xid(2, 48)
        await until(lambda: counted(theirs.kubelet) == {GPU: 3}, 20)
        await until(lambda: counted(rig.kubelet) == {GPU: 3}, 20)
        rig.cards.restore(2)
        await until(lambda: counted(rig.kubelet) == {GPU: 4}, 20)
        assert counted(theirs.kubelet) == {GPU: 3}


async def test_a_new_cut_is_followed_here_and_needs_a_restart_there() -> None:
    """R-207: theirs goes on offering instances that are gone."""
    async with both("a100-mig", {"mig_strategy": "mixed"}) as (theirs, rig):
        await wait_settled(theirs, rig)
        rig.cards.cut(0, ["7g.40gb"])
        now = {SEVENTH: 49, "nvidia.com/mig-7g.40gb": 1}
        await until(lambda: counted(rig.kubelet) == now, 20)
        assert counted(theirs.kubelet) == {SEVENTH: 56}


async def test_a_changed_file_is_followed_here_and_needs_a_signal_there(tmp_path: Path) -> None:
    """R-730: theirs has a sidecar that sends SIGHUP."""
    file = tmp_path / "config.yaml"
    file.write_text(TEN_REPLICAS)
    async with both("v100", {"config_file": str(file)}) as (theirs, rig):
        await wait_settled(theirs, rig)
        file.write_text(TEN_REPLICAS.replace("10", "2"))
        await until(lambda: counted(rig.kubelet) == {GPU: 8}, 20)
        assert counted(theirs.kubelet) == {GPU: 40}


async def test_patterns_and_devices_of_the_file_are_followed_here_and_dropped_there(
    tmp_path: Path,
) -> None:
    for text, ours, dropped in (
        (BY_MODEL, {"nvidia.com/volta": 4}, {GPU: 4}),
        (BY_DEVICE, {"nvidia.com/slow": 6, GPU: 2}, {GPU: 12}),
    ):
        file = tmp_path / "config.yaml"
        file.write_text(text)
        async with both("v100", {"config_file": str(file)}) as (theirs, rig):
            await until(lambda: counted(theirs.kubelet) == dropped, 20)  # noqa: B023 - awaited here
            await until(lambda: counted(rig.kubelet) == ours, 20)  # noqa: B023 - awaited here


async def test_a_refusal_has_nvidias_words_and_says_where_and_what_was_asked(
    tmp_path: Path,
) -> None:
    """R-702, R-703."""
    file = tmp_path / "config.yaml"
    file.write_text(ONE_AT_A_TIME)
    async with both("v100", {"config_file": str(file)}) as (theirs, rig):
        await wait_settled(theirs, rig)
        links = [kubelet.registry.links[GPU] for kubelet in (theirs.kubelet, rig.kubelet)]
        two = [f"{rig.cards.view().cards[0].uuid}::{number}" for number in range(2)]
        for ids, expected in (
            (two, "maximum request size for shared resources is 1; found 2"),
            (["GPU-0"], "unknown device: GPU-0"),
        ):
            there, here = [(await answered(link, ids)).error for link in links]
            words = there.partition("desc = ")[2]
            assert expected in words
            assert here.endswith(f"a pod on node n1 (mode default) asks {GPU}: {len(ids)}: {words}")


async def test_cdi_names_are_those_of_nvidias_tools_here_and_of_a_spec_of_its_own_there() -> None:
    """R-720: and a runtime that reads the variable gives no card besides."""
    async with both("v100", {"device_list_strategy": "cdi-annotations,cdi-cri"}) as (theirs, rig):
        await wait_settled(theirs, rig)
        links = [kubelet.registry.links[GPU] for kubelet in (theirs.kubelet, rig.kubelet)]
        card = rig.cards.view().cards[0].uuid
        there, here = [await answered(link, [card]) for link in links]
        own, tools = f"k8s.device-plugin.nvidia.com/gpu={card}", f"nvidia.com/gpu={card}"
        assert (there.cdi, there.annotations, there.envs) == ([own], {"cdi.k8s.io/": own}, {})
        assert (here.cdi, here.annotations) == ([tools], {"cdi.k8s.io/": tools})
        assert here.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_sockets_have_a_new_name_at_each_start_here_and_the_resources_there() -> None:
    """R-708: a kubelet ends a new registration with the stream of an older one of that name."""
    async with both("v100", {}) as (theirs, rig):
        await wait_settled(theirs, rig)
        assert theirs.kubelet.registry.links[GPU].socket.name == "nvidia-gpu.sock"
        first = rig.kubelet.registry.links[GPU].socket.name
        await rig.stop_agent()
        await rig.start_agent(mode="default")
        await until(lambda: rig.kubelet.registry.links[GPU].stopped_at is None, 20)
        await until(lambda: is_settled(rig.kubelet), 20)
        assert rig.kubelet.registry.links[GPU].socket.name != first


async def test_an_unknown_key_is_refused_here_and_overlooked_there(tmp_path: Path) -> None:
    """Exit code 2, and the key."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharings: {timeSlicing: {}}\n")
    async with both("v100", {"config_file": str(file)}) as (theirs, rig):
        await until(lambda: counted(theirs.kubelet) == {GPU: 4}, 20)
        assert await rig.exit_code() == 2
        assert "config.yaml: sharings: unknown key" in rig.log.read_text()


async def test_a_value_that_both_refuse_is_named_here_by_its_place(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEN_REPLICAS.replace("10", "1"))
    async with both("v100", {"config_file": str(file)}) as (theirs, rig):
        await until(lambda: theirs.has_ended, 20)
        words = "number of replicas must be >= 2"
        assert words in theirs.log.read_text()
        assert await rig.exit_code() == 2
        told = rig.log.read_text()
        assert "sharing.timeSlicing.resources[0].replicas" in told
        assert words in told
