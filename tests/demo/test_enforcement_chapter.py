"""The promise: a share that is not kept is told, and a machine without the libraries is no error."""

import sys
from pathlib import Path

import pytest
from rich.console import Console
from tools.demo import gpu_program
from tools.demo.demo_node import DemoNode, Surroundings
from tools.demo.demo_output import Promises, Teller
from tools.demo.demo_pods import CORE_MEM_NODE, PROFILE
from tools.demo.enforcement_chapter import GpuProcess, node_environment, run_in_slices
from tools.harness.api_server import StandInApiServer

from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.simulation.simulated_node import SimulatedNode


def demo_node(tmp_path: Path, *, is_isolated: bool) -> DemoNode:
    """A node of the demo that was not started."""
    cards = tmp_path / "cards"
    cards.mkdir()
    library_dir = tmp_path / "library" if is_isolated else None
    api, kubeconfig = StandInApiServer(), tmp_path / "kubeconfig"
    around = Surroundings(tmp_path, api, kubeconfig, library_dir, has_selftest=False)
    simulated = SimulatedNode.create(PROFILE, cards, seed="test")
    return DemoNode(CORE_MEM_NODE, NodeMode.CORE_MEM, around, simulated)


async def told(node: DemoNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the chapter tells of that node, with not one promise made."""
    screen = Teller(Console(width=80, highlight=False))
    promises = Promises(screen)
    await run_in_slices(node, tmp_path, screen, promises)
    assert promises.made == []
    return " ".join(capsys.readouterr().out.split())


async def test_without_the_library_the_chapter_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it says so."""
    node = demo_node(tmp_path, is_isolated=False)

    assert "Left out: libgpuslice.so is not built here" in await told(node, tmp_path, capsys)


async def test_without_the_driver_the_chapter_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it says so."""
    node = demo_node(tmp_path, is_isolated=True)
    (tmp_path / "cards" / "libcuda.so.1").unlink(missing_ok=True)

    text = await told(node, tmp_path, capsys)

    assert "Left out: the simulated libcuda.so.1 is not built here" in text


async def test_a_program_that_ends_is_told_with_what_it_said(tmp_path: Path) -> None:
    """No driver here: the loader's words reach the person."""
    process = GpuProcess("lonely", node_environment(tmp_path))
    await process.start()
    try:
        with pytest.raises(EdgeError, match=r"(?s)lonely: its process ended.*libcuda\.so\.1"):
            await process.ask("start")
    finally:
        await process.stop()


def test_the_program_needs_python_alone() -> None:
    """It runs without site-packages, so it imports nothing but what comes with Python."""
    imported = {
        line.split()[1].partition(".")[0]
        for line in Path(gpu_program.__file__).read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "from "))
    }

    assert imported <= sys.stdlib_module_names
