"""Runs the demo, and leaves nothing behind."""

import asyncio
import signal
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from gpu_device_plugin.apps.demo import real_cards
from gpu_device_plugin.apps.demo.at_work import run_in_slices
from gpu_device_plugin.apps.demo.cast import CORE_MEM_NODE, OFFERS, PROFILE
from gpu_device_plugin.apps.demo.fault import break_and_recover
from gpu_device_plugin.apps.demo.node import DemoNode, Surroundings
from gpu_device_plugin.apps.demo.nvidia_names import serve_nvidia_names
from gpu_device_plugin.apps.demo.promises import Promises
from gpu_device_plugin.apps.demo.story import Story
from gpu_device_plugin.apps.demo.telling import Promise, Teller
from gpu_device_plugin.domain.reports import Inventory
from gpu_device_plugin.domain.socket_paths import LONGEST_PATH
from gpu_device_plugin.errors import ConfigError, EdgeError
from gpu_device_plugin.simulation.api_server import StandInApiServer
from gpu_device_plugin.simulation.node import SimulatedNode
from gpu_device_plugin.store.native import native_library

LIMIT_SECONDS = 240.0
"""It takes some twenty; what waits for a slow machine ends here."""
_LIBRARY = "libgpuslice.so"
_SELFTEST = "gpu-selftest"
_PREFIX = "gpu-demo-"
_LONGEST_ROOT = LONGEST_PATH - 52
"""An agent's sockets take so much below the root."""


async def run_demo(teller: Teller) -> list[Promise]:
    """Play the demo; every promise that was made.

    Raises:
        ConfigError: The simulated driver is not built.
        EdgeError: An agent ended, or the demo took too long.
    """
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
        looking = asyncio.ensure_future(real_cards.look())
        stage.push_async_callback(_give_up, looking)
        around = await _surroundings(root, stage)
        _opening(teller, around)
        nodes = await _nodes(around, stage)
        story = Story(nodes, teller, promises)
        await story.offers()
        if promises.broken:
            return  # without agents that serve there is nothing more to see
        await _fractions(story)
        await run_in_slices(nodes[CORE_MEM_NODE], root, teller, promises)
        await break_and_recover(nodes[CORE_MEM_NODE], teller, promises)
        await serve_nvidia_names(around, teller, promises)
        with teller.waiting("looking for cards of this machine"):
            found = await looking
        if isinstance(found, Inventory):
            await real_cards.show(found, around, teller, promises)
        else:
            teller.chapter("This machine's own cards", f"None to show: {found}.")


async def _fractions(story: Story) -> None:
    await story.admissions()
    await story.card_maps()
    await story.why()
    await story.receipts()
    await story.refusals()


async def _surroundings(root: Path, stage: AsyncExitStack) -> Surroundings:
    api = StandInApiServer()
    stage.push_async_callback(api.stop)
    await api.start()
    kubeconfig = root / "kubeconfig"
    api.write_kubeconfig(kubeconfig)
    library_dir = root / "library" if _is_built(_LIBRARY) else None
    return Surroundings(root, api, kubeconfig, library_dir, _is_built(_SELFTEST))


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
        "cards (drivers of ours), the kubelets, the API server.",
    )
    if around.library_dir is None:
        teller.text(
            "Not shown: the limits inside a container. libgpuslice.so is not built here, so "
            "the agents run with --isolation off."
        )


async def _give_up(task: asyncio.Future[Inventory | str]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
