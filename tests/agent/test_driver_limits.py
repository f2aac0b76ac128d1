"""The promise: on a node where the driver is proven to limit memory, a new slice carries the hook for it.

What the hook does is promised by tests/isolation/test_limit_hook.py.
"""

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.isolation.test_limit_hook import cgroup_tree
from tools.harness.rig import Rig, running_rig, slice_of, until

from gpu_device_plugin.disk.native import native_library
from gpu_device_plugin.domain.node.state import MemoryEnforcer

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
    notes = rig.api.objects["/api/v1/nodes/n1"]["metadata"].get("annotations", {})
    return str(notes.get(f"gpu-device-plugin/{name}", ""))


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
        await rig.stop_agent()
        await rig.start_agent(memory_enforcer="library", cdi_dir=rig.root / "cdi")
        await rig.until_ready()
        assert rig.grant("p").memory_enforcer is MemoryEnforcer.DRIVER
        await until(lambda: cdi_files(rig) == [path], 20)


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
    """And the answer is that of a node with an older driver."""
    async with node(choice, is_proven=choice == "library") as rig:
        await rig.admit("p", slice_of(2, 30))
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

        assert rig.grant("p").memory_enforcer is MemoryEnforcer.LIBRARY
        await until(lambda: told(rig, "cards"), 20)
        assert ("--memory-enforcer library" in told(rig, "cards")) is (choice == "library")
        assert start.cdi_names == frozenset()
        assert cdi_files(rig) == []


async def test_a_choice_that_the_node_cannot_fulfil_keeps_it_from_offering_until_it_can() -> None:
    """The reason stands in /readyz; a probe ends it without a restart."""
    async with node("driver", is_proven=False) as rig:
        await rig.until_page("no probe has run", 20)
        probe(rig)
        await rig.until_ready()
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
