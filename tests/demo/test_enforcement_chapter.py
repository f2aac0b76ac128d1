"""The promise: a share that is not kept is told, and a machine without the libraries is no error."""

import os
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tools.demo import enforcement_chapter, gpu_program
from tools.demo.demo_node import DemoNode, Surroundings
from tools.demo.demo_output import Promises, Teller
from tools.demo.demo_pods import CORE_MEM_NODE, FIRST, PROFILE
from tools.demo.enforcement_chapter import GpuProcess, environment, node_environment, run_in_slices
from tools.harness.api_server import StandInApiServer
from tools.harness.kubelet_pods import ContainerStart

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


async def test_inside_a_slice_the_chapter_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own limits would count there, not those of the demo."""
    monkeypatch.setattr(enforcement_chapter, "CONFIG_DIR", str(tmp_path))
    node = demo_node(tmp_path, is_isolated=True)
    (tmp_path / "cards" / "libcuda.so.1").touch()

    assert f"Left out: {tmp_path} is here" in await told(node, tmp_path, capsys)


@pytest.mark.parametrize(("percent", "seen"), [(34.9, "30 % +- 5"), (24.9, "24.9 %")])
def test_a_share_is_told_by_its_figure_where_it_is_off(percent: float, seen: str) -> None:
    """Within the tolerance it is what was promised."""
    assert enforcement_chapter._share_promise("it gets", FIRST, percent) == (
        "it gets",
        "30 % +- 5",
        seen,
    )


def test_a_container_is_shown_its_own_files_and_no_others(tmp_path: Path) -> None:
    """Each where the library looks for it below GPUSLICE_ROOT."""
    card = "/run/gpu-device-plugin/cards/GPU-1"
    inside = {
        "/run/gpu-device-plugin/config": (f"{tmp_path}/c", True),
        "/run/gpu-device-plugin/state/region": (f"{tmp_path}/r", False),
        card: (f"{tmp_path}/g", True),
        f"{card}/slice": (f"{tmp_path}/g/slice", False),
        "/usr/local/lib/gpu-device-plugin/libgpuslice.so": (f"{tmp_path}/l.so", True),
        "/etc/ld.so.preload": (f"{tmp_path}/p", True),
    }
    root = tmp_path / "shown"

    env = environment(ContainerStart({"A": "b"}, inside, {}, frozenset()), tmp_path / "d", root)

    links = {
        path.relative_to(root): path.readlink() for path in root.rglob("*") if path.is_symlink()
    }
    assert links == {
        Path("config"): tmp_path / "c",
        Path("state/region"): tmp_path / "r",
        Path("cards/GPU-1"): tmp_path / "g",
    }
    assert env == {
        "A": "b",
        "PATH": os.defpath,
        "LD_LIBRARY_PATH": f"{tmp_path}/d",
        "GPU_SIMULATOR_CONTEXT_MIB": "239",
        "GPU_SIMULATOR_CLOCK_PERMILLE": "0",
        "LD_PRELOAD": f"{tmp_path}/l.so",
        "GPUSLICE_ROOT": str(root),
    }


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
