"""Where an NVIDIA driver is present: the same agent on this machine's own cards.

Nothing is injected and nothing runs on the cards: they are read through NVML, as the agent
does on every node.
"""

import asyncio
from contextlib import suppress

from gpu_device_plugin.apps.demo.cast import Role
from gpu_device_plugin.apps.demo.node import DemoNode, Surroundings
from gpu_device_plugin.apps.demo.promises import Promises, settled
from gpu_device_plugin.apps.demo.story import START_SECONDS
from gpu_device_plugin.apps.demo.telling import RealCard, Received, Teller
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.reports import CardReport, DriverMissing, Inventory, NvmlReport
from gpu_device_plugin.domain.schemes.aliyun.units import CORE_UNITS_PER_CARD
from gpu_device_plugin.nvml.source import NvmlSource

NODE = "local"
_LOOK_SECONDS = 15.0
"""A driver without its persistence daemon wakes every card at the first call."""


async def look() -> Inventory | str:
    """This machine's cards, or why there are none to show."""
    found: asyncio.Future[Inventory | str] = asyncio.get_running_loop().create_future()

    def take(report: NvmlReport) -> None:
        if found.done():
            return
        if isinstance(report, Inventory):
            found.set_result(report)
        elif isinstance(report, DriverMissing):
            found.set_result(report.reason)

    task = asyncio.ensure_future(NvmlSource(None, take).run())
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await found
    except TimeoutError:
        return f"NVML has not answered within {_LOOK_SECONDS:g} s"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def show(
    inventory: Inventory, around: Surroundings, teller: Teller, promises: Promises
) -> None:
    """Let an agent serve the real cards to a stand-in kubelet, and admit one pod."""
    served = [card for card in inventory.cards if not card.is_mig and card.memory_mib]
    teller.chapter(
        "This machine's own cards",
        f"NVIDIA driver {inventory.driver_version}. They are read, and nothing more: no XID is "
        f"injected, no card is taken out, nothing runs on them.",
    )
    teller.real_cards([_real_card(card) for card in inventory.cards])
    if not served:
        teller.text("None of them can be divided by this agent, so none is offered.")
        return
    node = DemoNode(NODE, NodeMode.CORE_MEM, around, None)
    try:
        await node.start()
        await _serve(node, served, teller, promises)
    finally:
        await node.stop()


async def _serve(
    node: DemoNode, served: list[CardReport], teller: Teller, promises: Promises
) -> None:
    units = [card.memory_mib // MemoryUnit.GIB.mib for card in served]
    expected = (sum(units), CORE_UNITS_PER_CARD * len(served), len(served))
    with teller.waiting("waiting for the agent of the real cards to register"):
        seen = await settled(node.allocatable, expected, START_SECONDS)
    promises.check(f"allocatable of {NODE} (units, percent, cards)", expected, seen)
    smallest = min(range(len(served)), key=lambda n: (units[n], served[n].index))
    role = Role("visitor", NODE, 2, 30, lands_on=(served[smallest].index,))
    admission = await node.admit(role)
    said = admission.message or "admitted"
    promises.check("a pod that asks 2 units and 30 % of a real card is", "admitted", said)
    if admission.is_admitted:
        started = await node.start_container(role)
        teller.received(Received(role.name, NODE, started.env, started.mounts))
        visible = started.env.get("NVIDIA_VISIBLE_DEVICES")
        promises.check("its container is shown", served[smallest].uuid, visible)


def _real_card(card: CardReport) -> RealCard:
    remark = "in MIG mode" if card.is_mig else ""
    return RealCard(card.index, card.model, card.uuid, card.memory_mib, remark)
