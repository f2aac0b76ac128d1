"""Runs the demo chapter by chapter, and leaves nothing behind."""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpu_device_plugin.disk.library_versions import LIBRARY, SELFTEST
from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.cards.nvml_reports import (
    CardReport,
    DriverMissing,
    Inventory,
    NvmlReport,
)
from gpu_device_plugin.domain.fractions.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.errors import ConfigError, EdgeError
from gpu_device_plugin.kubelet.unix_sockets import LONGEST_PATH
from gpu_device_plugin.nvml.nvml_source import NvmlSource
from gpu_device_plugin.simulation.simulated_node import SimulatedNode
from tools.demo.demo_node import RECOVERY_SECONDS, DemoNode, Surroundings
from tools.demo.demo_output import NamedOffer, Promise, Promises, Teller, wait_for
from tools.demo.demo_pods import (
    CONTAINER,
    CORE_MEM_NODE,
    CROWDED_OUT,
    NAMESPACE,
    OFFERS,
    PROFILE,
    Role,
)
from tools.demo.enforcement_chapter import run_in_slices
from tools.demo.story import START_SECONDS, Story
from tools.harness.api_server import StandInApiServer, kubeconfig
from tools.harness.kubelet_pods import StandInContainer, StandInPod

NODE = "gpu-c"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
GPU = "nvidia.com/gpu"
_PROFILE = "a100-mig"
_CARDS = 8
_LAST = _CARDS - 1
_REPLICAS = 4
_SECONDS = 60.0
"""Long enough for a slow machine; the time it took is shown."""
_FILES = {
    "mixed": "version: v1\nflags: {migStrategy: mixed}\n",
    "single": "version: v1\nflags: {migStrategy: single}\n",
    "four-replicas": "version: v1\nflags: {migStrategy: mixed}\nsharing:\n  timeSlicing:\n"
    f"    resources: [{{name: {GPU}, replicas: {_REPLICAS}}}]\n",
}
_SEVENTH, _HALF = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


async def serve_nvidia_names(around: Surroundings, teller: Teller, promises: Promises) -> None:
    """Show what one node offers under three configurations and two cuts, and pods on a shared card."""
    teller.chapter(
        "NVIDIA's names, by the same agent",
        f"{NODE} has eight A100, each cut into seven instances, in mode default: no fractions. Its "
        f"label {CONFIG_LABEL} chooses one of NVIDIA's configuration files: mixed and single say how "
        f"instances are named (migStrategy), four-replicas divides whole cards in time. Nothing is restarted.",
    )
    files, cards = around.root / f"{NODE}-files", around.root / f"{NODE}-cards"
    for directory in (files, cards):
        directory.mkdir()
    for name, text in _FILES.items():
        (files / name).write_text(text)
    simulated = SimulatedNode.create(_PROFILE, cards, seed=NODE)
    settings = {"--config-file-srcdir": str(files)}
    node = DemoNode(NODE, NodeMode.DEFAULT, around, simulated, settings)
    node.labels[CONFIG_LABEL] = "mixed"
    async with AsyncExitStack() as stage:
        stage.push_async_callback(node.stop)
        await node.start()
        shown = await _changes(node, teller)
        teller.named_offers(shown)
        promises.check(
            f"what {NODE} offers after each change",
            [each.expected for each in shown],
            [each.seen for each in shown],
        )
        seen = await _share(node)
        wanted = [simulated.view().cards[_LAST].uuid] * _REPLICAS
        promises.check(f"{_REPLICAS} pods that ask {GPU}: 1 share card {_LAST}", wanted, seen)


async def _changes(node: DemoNode, teller: Teller) -> list[NamedOffer]:
    """Other files by the node's label, and other cuts, of which nobody tells the agent."""
    label, cut = partial(node.relabel, CONFIG_LABEL), node.cards.cut
    half = {_SEVENTH: 49, _HALF: 2}
    whole = {_SEVENTH: 42, _HALF: 2, GPU: 1}
    changes: Sequence[tuple[str, Callable[[], object], Mapping[str, int]]] = (
        ("label mixed", lambda: None, {_SEVENTH: 56}),
        ("label single", partial(label, "single"), {GPU: 56}),
        ("label mixed", partial(label, "mixed"), {_SEVENTH: 56}),
        ("card 0 cut in two", partial(cut, 0, ["3g.20gb", "3g.20gb"]), half),
        (f"card {_LAST} out of MIG mode", partial(cut, _LAST, None), whole),
        ("label four-replicas", partial(label, "four-replicas"), {**whole, GPU: _REPLICAS}),
    )
    shown = []
    for what, change, expected in changes:
        change()
        with teller.waiting(what):
            seen = await wait_for(node.counts_by_name, expected, _SECONDS)
        shown.append(NamedOffer(what, expected, seen))
    return shown


async def _share(node: DemoNode) -> list[str]:
    """The card that each of as many pods sees as there are replicas of one."""
    cards = []
    for number in range(_REPLICAS):
        container = StandInContainer(CONTAINER, {GPU: 1})
        pod = StandInPod(NAMESPACE, f"sliced-{number}", f"uid-sliced-{number}", (container,))
        admission = await node.kubelet.admit(pod)
        if admission.is_admitted:
            started = await node.kubelet.start_container(pod.uid, CONTAINER)
            cards.append(started.env["NVIDIA_VISIBLE_DEVICES"])
    return cards


LIMIT_SECONDS = 240.0
"""It takes some twenty; what waits for a slow machine ends here."""
_PREFIX = "gpu-demo-"
_LONGEST_ROOT = LONGEST_PATH - 52
"""An agent's sockets take so much below the root."""


async def run_demo(teller: Teller) -> list[Promise]:
    """Play the demo; every promise that was made."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if task is not None:
            loop.add_signal_handler(number, task.cancel)
    promises = Promises(teller)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await _play(teller, promises)
    except TimeoutError as error:
        raise EdgeError(f"the demo has not ended within {LIMIT_SECONDS:g} s") from error
    return promises.made


async def _play(teller: Teller, promises: Promises) -> None:
    async with AsyncExitStack() as stage:
        root = Path(stage.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        if len(bytes(root)) > _LONGEST_ROOT:
            raise ConfigError(f"TMPDIR: {root.parent} is too long for Unix sockets; use a shorter")
        looking = asyncio.ensure_future(look_for_cards())
        stage.push_async_callback(_give_up, looking)
        around = await _surroundings(root, stage)
        _opening(teller, around)
        nodes = await _nodes(around, stage)
        story = Story(nodes, teller, promises)
        await story.offers()
        if promises.broken:
            return  # without agents that serve there is nothing more to see
        for chapter in (
            story.admissions,
            story.card_maps,
            story.why,
            story.receipts,
            story.refusals,
        ):
            await chapter()
        await run_in_slices(nodes[CORE_MEM_NODE], root, teller, promises)
        await break_and_recover(nodes[CORE_MEM_NODE], teller, promises)
        await serve_nvidia_names(around, teller, promises)
        with teller.waiting("looking for cards of this machine"):
            found = await looking
        if isinstance(found, Inventory):
            await show_real_cards(found, around, teller, promises)
        else:
            teller.chapter("This machine's own cards", f"None to show: {found}.")


async def _surroundings(root: Path, stage: AsyncExitStack) -> Surroundings:
    api = StandInApiServer()
    stage.push_async_callback(api.stop)
    await api.start()
    config = kubeconfig(root / "kubeconfig", api.url, {})
    library_dir = root / "library" if _is_built(LIBRARY) else None
    return Surroundings(root, api, config, library_dir, _is_built(SELFTEST))


async def _nodes(around: Surroundings, stage: AsyncExitStack) -> dict[str, DemoNode]:
    nodes = {}
    for offer in OFFERS:
        directory = around.root / f"{offer.node}-cards"
        directory.mkdir()
        simulated = SimulatedNode.create(PROFILE, directory, seed=offer.node)
        node = nodes[offer.node] = DemoNode(offer.node, offer.mode, around, simulated)
        stage.push_async_callback(node.stop)
        await node.start()
    return nodes


def _is_built(name: str) -> bool:
    try:
        native_library(name)
    except ConfigError:
        return False
    return True


def _opening(teller: Teller, around: Surroundings) -> None:
    teller.chapter(
        "Two nodes with four V100 each, on this machine",
        "Real: one agent process a node, the same program as on a GPU node. Simulated: the "
        "cards (simulated drivers), the kubelets, the API server.",
    )
    if around.library_dir is None:
        teller.text(
            "Not shown: the limits inside a container. libgpuslice.so is not built here, so "
            "the agents run with --isolation off."
        )


async def _give_up(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


REAL_NODE = "local"
_LOOK_SECONDS = 15.0
"""A driver without its persistence daemon wakes every card at the first call."""


async def look_for_cards() -> Inventory | str:
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
        await _give_up(task)


async def show_real_cards(
    inventory: Inventory, around: Surroundings, teller: Teller, promises: Promises
) -> None:
    """Let an agent serve the real cards to a stand-in kubelet, and admit one pod."""
    served = [card for card in inventory.cards if not card.is_mig and card.memory_mib]
    teller.chapter(
        "This machine's own cards",
        f"NVIDIA driver {inventory.driver_version}. They are read, and nothing more: no XID is "
        f"injected, no card is taken out, nothing runs on them.",
    )
    rows = (
        (
            str(card.index),
            f"{card.model} (in MIG mode)" if card.is_mig else card.model,
            str(card.memory_mib),
            card.uuid,
        )
        for card in inventory.cards
    )
    teller.table(("card", "model", "MiB", "UUID"), rows)
    if not served:
        teller.text("None of them can be divided by this agent, so none is offered.")
        return
    node = DemoNode(REAL_NODE, NodeMode.CORE_MEM, around, None)
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
        seen = await wait_for(node.allocatable, expected, START_SECONDS)
    promises.check(f"allocatable of {REAL_NODE} (units, percent, cards)", expected, seen)
    smallest = min(range(len(served)), key=lambda n: (units[n], served[n].index))
    role = Role("visitor", REAL_NODE, 2, 30, lands_on=(served[smallest].index,))
    admission = await node.admit(role)
    said = admission.message or "admitted"
    promises.check("a pod that asks 2 units and 30 % of a real card is", "admitted", said)
    if admission.is_admitted:
        started = await node.start_container(role)
        teller.received(role.name, REAL_NODE, started)
        visible = started.env.get("NVIDIA_VISIBLE_DEVICES")
        promises.check("its container is shown", served[smallest].uuid, visible)


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
    teller.chapter(
        "A card breaks, and comes back",
        f"Card {CARD} of {CORE_MEM_NODE}, on which {CROWDED_OUT.name} runs, reports XID {XID}: "
        f"fallen off the bus. Only this card leaves allocatable; what runs is left alone. It is "
        f"back once probes have been clean for {RECOVERY_SECONDS} s (--recovery-seconds, "
        f"otherwise 30).",
    )
    loop = asyncio.get_running_loop()
    began = loop.time()
    node.cards.xid(CARD, XID)
    with teller.waiting(f"waiting for card {CARD} to leave allocatable"):
        out = await wait_for(node.allocatable, WITHOUT_ONE_CARD, _OUT_SECONDS)
        seconds = loop.time() - began
        broken = await wait_for(partial(_events, node, f"XID{XID}"), 1, _OUT_SECONDS)
    teller.note(f"out {seconds:.1f} s after the XID")
    promises.check(f"allocatable of {node.name} without card {CARD}", WITHOUT_ONE_CARD, out)
    _check_the_rest(node, promises)
    promises.check(f"Events XID{XID} on the Node", 1, broken)
    with teller.waiting(f"waiting for clean probes of card {CARD}, a few seconds"):
        back = await wait_for(node.allocatable, WHOLE, _BACK_SECONDS)
        seconds = loop.time() - began
        recovered = await wait_for(partial(_events, node, "Recovered"), 1, _OUT_SECONDS)
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
