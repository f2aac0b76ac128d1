"""The document on the smallest unit of GPU memory, line by line, on simulated V100s."""

from pathlib import Path

import pytest
from tests.agent.test_modes import check_that_a_unit_waits
from tests.chart.rendering import HELM
from tests.chart.test_nvidia import settings
from tests.sources.containers import Containers, apply
from tests.sources.documents import Walk, walk
from tools.harness.rig import CORE, COUNT, MEM, Rig, running_rig, slice_of

SECONDS = 40
SMALL = {MEM: 4 * 126, CORE: 0, COUNT: 4}  # of 16160 MiB


@pytest.mark.long
@pytest.mark.skipif(not HELM.exists(), reason="helm is not built: tests/e2e/install.sh")
async def test_the_document_on_the_unit(containers: Containers, tmp_path: Path) -> None:
    """Each step that needs no cluster; those that do are in tests/e2e/test_sources.py (R-404, R-408, R-505)."""
    with walk("unit", "here") as step:
        async with running_rig(mode="share") as rig:
            await check_pods_that_are_there(rig, step)
        await check_modes(step, containers)
        key, _, unit = step("the value of the chart").text.partition(": ")
        found = settings(tmp_path, f"{key}={unit}")
        assert found.memory_unit.value == unit
        async with running_rig(mode="cgpu", memory_unit=unit) as rig:
            manifest, values = step("the StatefulSet").data, step("the memory of its pod").data
            assert (await apply(rig, manifest)).is_admitted
            environment = await containers.environment(rig, "binpack")
            assert environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(values["units"])
            assert environment["ALIYUN_COM_GPU_MEM_DEV"] == "126"
            assert values["units"] * values["MiB"] == values["GiB"] * 1024
            # 16 of 126 parts of 16160 MiB: a card has no whole number of them.
            assert "0MiB /   2052MiB" in await containers.run(rig, "binpack", "nvidia_smi")


async def check_pods_that_are_there(rig: Rig, step: Walk) -> None:
    """With another unit an agent goes on with the old one while pods hold slices, and names them."""
    assert step("pods that are there").text == MEM
    await check_that_a_unit_waits(rig, SECONDS, SECONDS)


async def check_modes(step: Walk, containers: Containers) -> None:
    """Modes share and cgpu have the unit; a card takes 16 pods in cgpu, and more in share.

    R-505: in share a container sees its whole card, in cgpu its slice.
    """
    modes = [line.partition("=")[2] for line in step("modes").text.splitlines()]
    most = int(step("pods of a card with isolation").text)
    for mode in modes:
        async with running_rig(is_started=False) as rig:
            await rig.set_labels(schedule=mode)
            await rig.start_agent(memory_unit="128MiB")
            await rig.until_offered(SMALL, SECONDS)
            for number in range(most + 1):
                assert (await rig.admit(f"p{number}", slice_of(1))).is_admitted
            total = {"share": 16160, "cgpu": 128}[mode]
            assert f"0MiB / {total:6}MiB" in await containers.run(rig, "p0", "nvidia_smi")
            cards = [rig.card_of(f"p{number}") for number in range(most + 1)]
            assert len(set(cards[:most])) == 1
            assert (cards[most] == cards[0]) is (mode == "share")
