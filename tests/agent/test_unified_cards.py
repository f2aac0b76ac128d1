"""Cards that use the system's memory (GB10): NVML answers NOT_SUPPORTED for it, beside an ordinary card."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tools.harness.rig import Rig, running_rig, slice_of
from tools.harness.waiting import until

from gpu_device_plugin.simulation import driver_library

GPU, MEM = "nvidia.com/gpu", "aliyun.com/gpu-mem"
SYSTEM_MIB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


@asynccontextmanager
async def spark(*, unified: int = 1, **settings: object) -> AsyncIterator[Rig]:
    """A node of four cards, the first of which are GB10s."""
    async with running_rig(is_started=False) as rig:
        for card in range(unified):
            lines = [f"cards.{card}.memory_unified=1", f"cards.{card}.name=NVIDIA GB10"]
            driver_library.set_fields(rig.cards.state, lines)
        await rig.start_agent(**settings)
        yield rig


async def test_modes_of_whole_cards_offer_it() -> None:
    """Nothing of it is divided, so nobody has to know its memory."""
    async with spark(mode="default") as rig:
        await until(lambda: rig.kubelet.allocatable(GPU) == 4, 20)


async def test_slices_divide_the_systems_memory_less_the_reserve() -> None:
    """Its units are beside those of the others; a slice is granted there and capped as anywhere."""
    reserve = SYSTEM_MIB - 5 * 1024 - 100
    async with spark(unified_memory_reserve_mib=reserve) as rig:
        await rig.until_ready()
        await until(lambda: rig.allocatable().get(MEM) == 3 * 15 + 5, 20, rig.allocatable)
        admitted = [await rig.admit(f"p{n}", slice_of(5, 90)) for n in range(4)]
        assert all(each.is_admitted for each in admitted)
        assert {card for grant in rig.grants() for card in grant.devices} == {
            card.uuid for card in rig.cards.view().cards
        }


async def test_two_of_them_share_the_systems_memory() -> None:
    """What both hold together is there."""
    async with spark(unified=2, unified_memory_reserve_mib=SYSTEM_MIB - 5 * 1024) as rig:
        await until(lambda: rig.allocatable().get(MEM) == 2 * 15 + 2 * 2, 20, rig.allocatable)


async def test_where_the_reserve_leaves_less_than_a_unit_the_others_are_offered() -> None:
    """And an Event says that this one cannot be divided."""
    async with spark(unified_memory_reserve_mib=1 << 24) as rig:
        await until(lambda: rig.allocatable().get(MEM) == 3 * 15, 20, rig.allocatable)
        await until(lambda: bool(rig.events("DeviceLeftOut")), 20)
        assert "it cannot be divided" in rig.events("DeviceLeftOut")[0]["message"]
