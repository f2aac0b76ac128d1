"""A chapter of its own: a card breaks while a pod is on it, and comes back by itself."""

import asyncio
from functools import partial

from gpu_device_plugin.apps.demo.cast import CORE_MEM_NODE, CROWDED_OUT
from gpu_device_plugin.apps.demo.node import RECOVERY_SECONDS, DemoNode
from gpu_device_plugin.apps.demo.promises import Promises, settled
from gpu_device_plugin.apps.demo.telling import Teller
from gpu_device_plugin.domain.schemes.aliyun.units import Resource
from gpu_device_plugin.errors import EdgeError

CARD = CROWDED_OUT.lands_on[0]
XID = 79
WHOLE = (60, 400, 4)
WITHOUT_ONE_CARD = (45, 300, 3)
_OUT_SECONDS = 30.0
"""Long enough for a slow machine; the time it took is shown."""
_BACK_SECONDS = 60.0
"""Two probes, five seconds apart, and the time that they must have been clean, take ten."""


async def break_and_recover(node: DemoNode, teller: Teller, promises: Promises) -> None:
    """Take out a card by XID, and see it come back."""
    simulated = node.simulated
    if simulated is None:
        raise EdgeError(f"{node.name}: real cards are not broken for a demo")
    teller.chapter(
        "A card breaks, and comes back",
        f"Card {CARD} of {CORE_MEM_NODE}, on which {CROWDED_OUT.name} runs, reports XID {XID}: "
        f"fallen off the bus. Only this card leaves allocatable; what runs is left alone. It is "
        f"back once probes have been clean for {RECOVERY_SECONDS} s (--recovery-seconds, "
        f"otherwise 30).",
    )
    loop = asyncio.get_running_loop()
    began = loop.time()
    simulated.xid(CARD, XID)
    with teller.waiting(f"waiting for card {CARD} to leave allocatable"):
        out = await settled(node.allocatable, WITHOUT_ONE_CARD, _OUT_SECONDS)
        seconds = loop.time() - began
        broken = await settled(partial(_events, node, f"XID{XID}"), 1, _OUT_SECONDS)
    teller.note(f"out {seconds:.1f} s after the XID")
    promises.check(f"allocatable of {node.name} without card {CARD}", WITHOUT_ONE_CARD, out)
    _check_the_rest(node, promises)
    promises.check(f"Events XID{XID} on the Node", 1, broken)
    with teller.waiting(f"waiting for clean probes of card {CARD}, a few seconds"):
        back = await settled(node.allocatable, WHOLE, _BACK_SECONDS)
        seconds = loop.time() - began
        recovered = await settled(partial(_events, node, "Recovered"), 1, _OUT_SECONDS)
    teller.note(f"back {seconds:.1f} s after the XID")
    promises.check(f"allocatable of {node.name} with card {CARD}", WHOLE, back)
    promises.check("Events Recovered on the Node", 1, recovered)
    texts = [*node.events(f"XID{XID}"), *node.events("Recovered")]
    teller.quote(f"Events on node {node.name}", "\n".join(texts))


def _check_the_rest(node: DemoNode, promises: Promises) -> None:
    """What an unhealthy card must not touch."""
    capacity = tuple(node.kubelet.capacity(resource) for resource in Resource)
    promises.check(f"capacity of {node.name} stays", WHOLE, capacity)
    held = {CARD: (CROWDED_OUT.mem_units, CROWDED_OUT.core_percent)}
    what = f"{CROWDED_OUT.name} keeps its units and percent, by card"
    promises.check(what, held, node.holding(CROWDED_OUT))


async def _events(node: DemoNode, reason: str) -> int:
    return len(node.events(reason))
