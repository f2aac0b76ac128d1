"""What containers use shows in the metrics, as their libraries write it down, and only then."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.held import fraction
from tools.harness.boxes import Boxes
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY
from tools.harness.rig import NODE, Rig, running_rig, slice_of, until

from gpu_device_plugin.agent.publish.usage_reader import UsageReader
from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.disk.region import CARDS_OFFSET, USED_OFFSET
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import PodRef

SLICE_MIB = 2154
USED = "gpu_device_plugin_slice_memory_used_bytes"
RATIO = "gpu_device_plugin_slice_core_used_ratio"
REFUSED = "gpu_device_plugin_slice_refused_total"


async def figures(rig: Rig, name: str) -> dict[str, float]:
    """Pod -> value of a metric of slices."""
    page = (await rig.page("metrics"))[1]
    lines = [line for line in page.splitlines() if line.startswith(name + "{")]
    return {line.split('pod="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


async def test_what_a_container_uses_shows_and_goes_with_it(boxes: Boxes) -> None:
    """Memory to the byte, refusals counted; a pod that never used its card has no series."""
    async with running_rig() as rig:
        await rig.admit("busy", slice_of(2, 30))
        await rig.admit("idle", slice_of(2, 30))
        program = await boxes.start(rig, "busy")
        _, free, total = program("info")
        assert total == SLICE_MIB * MIB
        # An even number: a card gives memory in pieces of 2 MiB.
        assert program(f"alloc 0 {338 * MIB - (total - free)}") == [0]
        assert program(f"alloc 1 {SLICE_MIB * MIB}") == [OUT_OF_MEMORY]

        async def is_synced() -> bool:
            return await figures(rig, REFUSED) == {"busy": 1.0}

        await until(is_synced, 20)
        assert await figures(rig, USED) == {"busy": float(338 * MIB)}
        program.kill()
        await rig.delete(rig.uid("busy"))

        async def is_gone() -> bool:
            return await figures(rig, USED) == {}

        await until(is_gone, 60)


async def test_the_share_of_the_card_that_a_container_has_had_shows(boxes: Boxes) -> None:
    """Kernel after kernel under a cap of 30 %: about 0.3, and nought when it has ended."""
    async with running_rig() as rig:
        await rig.admit("busy", slice_of(2, 30))
        program = await boxes.start(rig, "busy")
        program.tell("work stream 1000000 600")

        async def is_near_its_cap() -> bool:
            return 0.2 < (await figures(rig, RATIO)).get("busy", 0) < 0.4

        await until(is_near_its_cap, 40)
        program.kill()

        async def is_idle() -> bool:
            return await figures(rig, RATIO) == {"busy": 0.0}

        await until(is_idle, 40)


async def test_without_a_compute_cap_no_share_is_told(boxes: Boxes) -> None:
    """The library does not measure then, and 0 would be untrue."""
    async with running_rig() as rig:
        await rig.admit("whole", slice_of(2, 100))
        await boxes.start(rig, "whole")

        async def is_synced() -> bool:
            return "whole" in await figures(rig, USED)

        await until(is_synced, 20)
        assert await figures(rig, RATIO) == {}


async def test_a_region_full_of_nonsense_is_not_believed(boxes: Boxes) -> None:
    """No series of it, and the neighbour's figures come as ever."""
    async with running_rig() as rig:
        await rig.admit("liar", slice_of(2, 30))
        await rig.admit("honest", slice_of(2, 30))
        region = rig.run / "slices" / rig.grant("liar").slice_id / "region"
        size = region.stat().st_size
        with region.open("r+b") as file:
            file.write(b"\xa5" * size)
        await boxes.start(rig, "honest")

        async def is_synced() -> bool:
            return "honest" in await figures(rig, USED)

        await until(is_synced, 20)
        assert (await figures(rig, USED)).keys() == {"honest"}


async def test_more_than_the_card_has_is_no_figure(boxes: Boxes) -> None:
    """A container that writes what it likes into its own region is not quoted."""
    async with running_rig() as rig:
        await rig.admit("liar", slice_of(2, 30))
        await rig.admit("honest", slice_of(2, 30))
        for pod in ("liar", "honest"):
            await boxes.start(rig, pod)
        with (rig.run / "slices" / rig.grant("liar").slice_id / "region").open("r+b") as file:
            file.seek(CARDS_OFFSET + USED_OFFSET)
            file.write((1 << 45).to_bytes(8, "little"))

        async def only_one_is_told() -> bool:
            return (await figures(rig, USED)).keys() == {"honest"}

        await until(only_one_is_told, 20)


UNEXPLAINED = "gpu_device_plugin_card_memory_unexplained_bytes"


async def unexplained(rig: Rig) -> list[float]:
    """By card."""
    page = (await rig.page("metrics"))[1]
    lines = [line for line in page.splitlines() if line.startswith(UNEXPLAINED + "{")]
    return [float(line.split()[-1]) for line in lines]


async def test_memory_that_no_grant_explains_shows_on_its_card(boxes: Boxes) -> None:
    """A program that has a card without asking for one; what slices use is explained (R-722)."""
    async with running_rig() as rig:
        await rig.admit("busy", slice_of(2, 30))
        held = rig.cards.view().cards.index(
            next(c for c in rig.cards.view().cards if c.uuid == rig.card_of("busy"))
        )
        program = await boxes.start(rig, "busy")
        assert program(f"alloc 0 {300 * MIB}") == [0]
        rig.cards.use(1 if held == 0 else 0, memory_mib=700)
        expected = [0.0] * 4
        expected[1 if held == 0 else 0] = 700.0 * MIB

        async def is_shown() -> bool:
            return await unexplained(rig) == expected

        await until(is_shown, 40)


async def test_where_a_container_has_the_whole_card_nothing_is_said_of_it() -> None:
    async with running_rig(isolation="off") as rig:
        assert len(await unexplained(rig)) in (0, 4)
        await rig.admit("whole", slice_of(2, 30))

        async def is_left_out() -> bool:
            return len(await unexplained(rig)) == 3

        await until(is_left_out, 40)


async def test_slices_go_where_no_stranger_holds_memory_and_what_no_longer_fits_is_told() -> None:
    """A slice went to the card of which 9,000 MiB were gone, beside three empty ones."""
    async with running_rig() as rig:
        await rig.admit("first", slice_of(10, 30))
        (held,) = (c for c in rig.cards.view().cards if c.uuid == rig.card_of("first"))
        rig.cards.use(held.slot, memory_mib=9000)
        await until(lambda: rig.events("MemoryTaken"), 30)
        assert "9000 MiB that programs without a grant hold" in str(rig.events("MemoryTaken"))

        async def is_short() -> bool:
            page = (await rig.page("metrics"))[1]
            short = "gpu_device_plugin_card_memory_short_bytes"
            return any(line.startswith(short) and line[-4:] != " 0.0" for line in page.splitlines())

        await until(is_short, 20)
        await rig.admit("second", slice_of(2, 30))
        assert rig.card_of("second") != held.uuid
        rig.cards.use(held.slot, memory_mib=0)
        await until(lambda: rig.events("MemoryTakenOver"), 30)
        await rig.admit("third", slice_of(3, 30))
        assert rig.card_of("third") == held.uuid


async def acks_metrics(rig: Rig) -> dict[str, list[float]]:
    """Labels -> mode, MiB and held share of each card."""
    found: dict[str, list[float]] = {}
    for line in (await rig.page("metrics"))[1].splitlines():
        if line.startswith("DCGM_CUSTOM_"):
            labels = line.partition("{")[2].partition("}")[0]
            found.setdefault(labels, []).append(float(line.split()[-1]))
    return found


async def test_acks_metrics_tell_how_a_card_is_allocated() -> None:
    """R-580: nobody 0, a pod alone 1, shared 2; with all labels of the source."""
    for mode, asked, held, ratio in (
        ("core_mem", slice_of(3, 30), 2, 3 / 15),
        ("default", {"nvidia.com/gpu": 1}, 1, 1.0),
    ):
        async with running_rig(mode=mode) as rig:
            for resource in asked:
                await until(partial(rig.kubelet.allocatable, resource), 10)
            await rig.admit("p", asked)

            async def is_told(rig: Rig = rig, held: int = held) -> bool:
                return any(found[0] == held for found in (await acks_metrics(rig)).values())

            await until(is_told, 10)
            found = await acks_metrics(rig)
            assert found.keys() == {
                f'NodeName="{NODE}",NodePoolId="",PodSource="",UUID="{card.uuid}",'
                f'device="nvidia{index}",gpu="{index}",modelName="Tesla-V100-SXM2-16GB"'
                for index, card in enumerate(rig.cards.view().cards)
            }
            free = [[0.0, 16160.0, 0.0]] * 3
            assert sorted(found.values()) == [*free, [held, 16160.0, pytest.approx(ratio)]]


async def test_where_the_driver_limits_a_slice_its_account_is_what_shows(tmp_path: Path) -> None:
    """That of a program too that the library is not in."""
    held = fraction("s1", PodRef("ns", "p", "u"), "main", cards=("GPU-a",), card_bytes=(1,))
    live = LiveLedger()
    live.ledger = Ledger().hold(replace(held, is_isolated=True))
    files = SliceFiles(tmp_path, tmp_path)
    reader = UsageReader(files, live, lambda _: {"GPU-a": 5}, lambda _: None)
    await reader.refresh()
    found = reader.of("s1", "GPU-a")
    assert found is not None
    assert (found.memory_bytes, found.core_ratio, found.refused_total) == (5, None, 0)
