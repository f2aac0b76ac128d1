"""The promise: on a node where the driver is proven to limit memory, a new slice carries the hook for it.

And a limit that a running container lacks is set by the limit keeper. What the hook does is promised by
tests/isolation/test_limit_hook.py, what the keeper does by tests/cards_tools/test_limit_keeper.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.cards_tools.test_limit_keeper import Container
from tests.isolation.test_limit_hook import cgroup_tree
from tools.harness.rig import FOUR_CARDS, MEM, Rig, running_rig, slice_of, until

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer

DRIVER = "615.71.09"


@asynccontextmanager
async def node(choice: str = "auto", *, is_proven: bool = True) -> AsyncIterator[Rig]:
    """A node of that driver, whose probe has run before the agent started or not at all."""
    async with running_rig(is_started=False) as rig:
        rig.cards.upgrade_driver(DRIVER)
        if is_proven:
            probe(rig)
        await rig.start_agent(memory_enforcer=choice, cdi_dir=rig.root / "cdi")
        if is_proven or choice != "driver":
            await rig.until_ready()
        yield rig


def probe(rig: Rig) -> None:
    """As the part with the rights does it; any directory stands for the tree."""
    rig.run.mkdir(exist_ok=True)
    roots = ("--driver-root", rig.cards.library.parent, "--cgroup-root", rig.root)
    hook = native_library("gpu-limit-hook")
    subprocess.run([hook, "--probe", rig.run / "driver-limits", *roots], check=True)


def told(rig: Rig, name: str) -> str:
    """The node's annotation of that name, as far as it is written."""
    return rig.annotations().get(f"gpu-device-plugin/{name}", "")


def cdi_files(rig: Rig) -> list[Path]:
    """Of slices that the driver limits."""
    return sorted((rig.root / "cdi").glob("gpu-slice-*.json"))


async def test_a_slice_on_a_proven_card_names_its_cdi_device_with_the_hook() -> None:
    """The hook is installed; another setting changes nothing for a slice that is there."""
    async with node() as rig:
        await rig.admit("p", slice_of(2, 30))
        grant = rig.grant("p")
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

        assert grant.memory_enforcer is MemoryEnforcer.DRIVER
        limits = rig.run / "slices" / grant.slice_id / "config" / "limits"
        assert "\nmemory_enforcer=driver\n" in limits.read_text()
        assert f"gpu-device-plugin/slice={grant.slice_id}" in start.cdi_names
        [path] = cdi_files(rig)
        [device] = json.loads(path.read_text())["devices"]
        assert device["name"] == grant.slice_id
        edits = device["containerEdits"]
        assert edits["env"] == ["NVIDIA_GPU_MEMORY_REQUEST=0", "NVIDIA_GPU_MEMORY_LIMIT=2154"]
        [hook] = edits["hooks"]
        assert hook["hookName"] == "createRuntime"
        assert os.access(hook["path"], os.X_OK)
        assert hook["args"][1:3] == ["--slice", str(rig.run / "slices" / grant.slice_id)]
        path.unlink()
        await rig.restart_agent(memory_enforcer="library", cdi_dir=rig.root / "cdi")
        assert rig.grant("p").memory_enforcer is MemoryEnforcer.DRIVER
        await until(lambda: cdi_files(rig) == [path], 20)


async def test_by_the_toolkit_the_device_has_its_variables_and_no_hook_until_the_slice_ends() -> (
    None
):
    """A slice keeps the way that it began with; the keeper's word stands for the mark of a hook."""
    tree = cgroup_tree()
    async with node() as rig:
        await rig.admit("p", slice_of(2, 30))
        before = cdi_files(rig)[0].read_text()
        await rig.restart_agent(cdi_dir=rig.root / "cdi", driver_limit_by="toolkit")
        await rig.admit("q", slice_of(2, 30))
        edits = {
            path.name: json.loads(path.read_text())["devices"][0]["containerEdits"]
            for path in cdi_files(rig)
        }
        slice_id = rig.grant("q").slice_id
        assert edits[f"gpu-slice-{slice_id}.json"] == {
            "env": ["NVIDIA_GPU_MEMORY_REQUEST=0", "NVIDIA_GPU_MEMORY_LIMIT=2154"]
        }
        kept = rig.root / "cdi" / f"gpu-slice-{rig.grant('p').slice_id}.json"
        assert kept.read_text() == before
        leaf, directory = tree / f"toolkit-{os.getpid()}", rig.run / "slices" / slice_id
        container = Container(leaf, directory / "config", rig.root / "in")
        try:
            as_nvidias_hook(rig, tree, directory, container.process.pid)
            with keeper(rig, tree):
                mark = directory / "driver-limit"
                await until(lambda: mark.is_file() and mark.read_text() == f"cgroup={leaf}\n", 30)
                assert not SliceFiles(rig.run, rig.root).is_hook_unseen()
        finally:
            container.end()


async def test_readyz_node_annotations_and_metrics_name_the_enforcers() -> None:
    """Of the node with the driver's way to count, and of the slice."""
    async with node() as rig:
        await rig.admit("p", slice_of(2, 30))
        await rig.until_page("memory by driver (")
        await until(lambda: '"memory_by":"driver (' in told(rig, "cards"), 20)
        held = '"enforcers":[["driver","library"]]'
        await until(lambda: held in told(rig, "holdings"), 20)
        await rig.until_metric("slice_enforcers{", "} 1.0")
        page = (await rig.page("metrics"))[1]
        assert 'compute="library",container="main-0",memory="driver"' in page
        assert 'card_memory_enforcer{card="0",enforcer="driver (' in page


@pytest.mark.parametrize("choice", ["auto", "library"])
async def test_without_a_proof_or_by_choice_the_library_enforces(choice: str) -> None:
    """And the answer is that of a node with an older driver: nothing is told of it but a metric."""
    async with node(choice, is_proven=choice == "library") as rig:
        await rig.admit("p", slice_of(2, 30))
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

        assert rig.grant("p").memory_enforcer is MemoryEnforcer.LIBRARY
        await until(lambda: told(rig, "cards"), 20)
        assert "memory_by" not in told(rig, "cards")
        assert "memory by" not in (await rig.page("readyz"))[1]
        why = "--memory-enforcer library" if choice == "library" else "no probe has run"
        await rig.until_metric(
            f'card_memory_enforcer{{card="0",enforcer="library ({why})"', "} 1.0"
        )
        assert start.cdi_names == frozenset()
        assert cdi_files(rig) == []


async def test_a_choice_that_the_node_cannot_fulfil_keeps_it_from_offering_until_it_can() -> None:
    """The reason stands in /readyz, an Event and the annotation; a probe ends it without a restart."""
    async with node("driver", is_proven=False) as rig:
        offered: set[int] = set()

        def is_reported() -> bool:
            offered.add(rig.kubelet.allocatable(MEM))
            return bool(rig.events("DriverLimitsMissing"))

        await until(is_reported, 30)
        await rig.until_page("no probe has run", 20)
        await until(lambda: '"memory_by":"no slices (no probe has run)"' in told(rig, "cards"), 20)
        assert offered == {0}
        probe(rig)
        await rig.until_ready()
        await rig.until_offered(FOUR_CARDS, 20)
        await rig.admit("p", slice_of(2, 30))
        assert rig.grant("p").memory_enforcer is MemoryEnforcer.DRIVER


async def test_what_the_cdi_file_says_is_run_and_sets_the_slice_on_the_containers_cgroup() -> None:
    """As a container runtime runs it; the tests' roots of driver and cgroups stand behind its own."""
    tree = cgroup_tree()
    async with node() as rig:
        await rig.admit("p", slice_of(2, 30))
        [path] = cdi_files(rig)
        [hook] = json.loads(path.read_text())["devices"][0]["containerEdits"]["hooks"]
        leaf = tree / f"limits-{os.getpid()}"
        leaf.mkdir()
        process = subprocess.Popen(["sleep", "600"])
        try:
            (leaf / "cgroup.procs").write_text(str(process.pid))
            roots = ("--driver-root", rig.cards.library.parent, "--cgroup-root", tree)
            subprocess.run(
                [hook["path"], *hook["args"][1:], *roots],
                input=json.dumps({"pid": process.pid}).encode(),
                check=True,
            )
        finally:
            process.kill()
            process.wait()
            leaf.rmdir()
        mark = rig.run / "slices" / rig.grant("p").slice_id / "driver-limit"
        assert mark.read_text() == f"cgroup={leaf}\n"


def as_nvidias_hook(rig: Rig, tree: Path, directory: Path, pid: int) -> None:
    """Sets what the slice has, and leaves no mark."""
    roots = (f"--driver-root={rig.cards.library.parent}", f"--cgroup-root={tree}")
    command = [str(native_library("gpu-limit-hook")), f"--slice={directory}", *roots]
    subprocess.run(command, input=json.dumps({"pid": pid}).encode(), check=True)
    (directory / "driver-limit").unlink()


@contextmanager
def keeper(rig: Rig, tree: Path) -> Iterator[None]:
    """The limit keeper of the node."""
    command = [sys.executable, "-m", "gpu_device_plugin", "limit-keeper", f"--run-dir={rig.run}"]
    roots = [f"--driver-root={rig.cards.library.parent}", f"--cgroup-root={tree}"]
    with (rig.root / "keeper.log").open("wb") as log:
        process = subprocess.Popen([*command, *roots], stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0, (rig.root / "keeper.log").read_text()


async def test_a_running_container_without_its_limit_gets_it_and_the_node_counts_as_unable() -> (
    None
):
    """As where the runtime has CDI switched off; and again after a reload of the driver."""
    tree = cgroup_tree()
    async with node(is_proven=False) as rig:
        with keeper(rig, tree):
            await rig.until_page("ready", 20)
            await until(lambda: (rig.run / "driver-limits").is_file(), 20)
            await rig.restart_agent(cdi_dir=rig.root / "cdi")
            await rig.admit("p", slice_of(2, 30))
            grant = rig.grant("p")
            assert grant.memory_enforcer is MemoryEnforcer.DRIVER
            directory, files = rig.run / "slices" / grant.slice_id, SliceFiles(rig.run, rig.root)
            leaf = tree / f"agent-{os.getpid()}"
            container = Container(leaf, directory / "config", rig.root / "in")
            try:
                await rig.until_metric('slice_repairs_total{reason="DriverLimitSet"}', " 1.0", 30)
                rig.cards.upgrade_driver(DRIVER)
                await rig.until_metric('slice_repairs_total{reason="DriverLimitSet"}', " 2.0", 30)
                await rig.admit("q", slice_of(2, 30))
                assert rig.grant("q").memory_enforcer is MemoryEnforcer.LIBRARY
                assert files.is_hook_unseen()
                (directory / "driver-limit").write_text(f"cgroup={leaf}\n")
                assert not files.is_hook_unseen()
            finally:
                container.end()


async def test_the_nodes_label_stands_over_the_setting() -> None:
    """An unknown word changes nothing."""
    async with node() as rig:
        await rig.set_labels(memory_enforcer="library")
        await rig.set_labels(memory_enforcer="nobody")
        await until(lambda: rig.events("UnknownMemoryEnforcer"), 20)
        await rig.admit("p", slice_of(2, 30))
        assert rig.grant("p").memory_enforcer is MemoryEnforcer.LIBRARY
        (rig.run / "driver-limits").write_text("reason=none\n")
        await rig.set_labels(memory_enforcer="driver")
        await rig.until_page("not proven to limit memory here: none", 20)


async def test_without_a_directory_for_the_hook_the_library_enforces() -> None:
    """Whatever the probe has proved."""
    async with running_rig(is_started=False) as rig:
        rig.cards.upgrade_driver(DRIVER)
        probe(rig)
        (rig.root / "file").touch()
        await rig.serve(cdi_dir=rig.root / "file" / "cdi")
        await rig.admit("p", slice_of(2, 30))
        assert rig.grant("p").memory_enforcer is MemoryEnforcer.LIBRARY


async def test_a_lost_grant_that_is_made_again_names_the_driver_still() -> None:
    """Its container restarts with the hook; the proof of another driver proves nothing more."""
    async with node() as rig:
        await rig.admit("p", slice_of(2, 30))
        slice_id = rig.grant("p").slice_id
        await rig.stop_agent()
        for path in rig.state.glob("grants*"):
            path.unlink()
        await rig.serve(memory_enforcer="driver", cdi_dir=rig.root / "cdi")
        assert (rig.grant("p").slice_id, rig.grant("p").memory_enforcer) == (slice_id, "driver")
        rig.cards.upgrade_driver("620.10")
        assert await rig.exit_code() == 75
        await rig.start_agent(memory_enforcer="driver", cdi_dir=rig.root / "cdi")
        await rig.until_page("the probe was of driver 615.71.09", 20)
        await until(lambda: rig.kubelet.allocatable(MEM) == 0, 20)
