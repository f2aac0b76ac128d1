"""The agent brings the isolation library: installed at start, kept while a pod needs it."""

import shutil
from pathlib import Path

import pytest
from tools.harness.rig import Rig, running_rig, slice_of, until

from gpu_device_plugin import __version__
from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.errors import ConfigError

TARGET = "/usr/local/lib/gpu-device-plugin/libgpuslice.so"
PRELOAD = "/etc/ld.so.preload"
SELFTEST = "/usr/local/lib/gpu-device-plugin/gpu-selftest"


@pytest.fixture(autouse=True)
def needs_the_library() -> None:
    try:
        native_library("libgpuslice.so")
    except ConfigError as error:
        pytest.skip(str(error))


def build(rig: Rig, name: str, *, selftest: bool = False) -> Path:
    """Another build of the library, for the agent to bring; named by the rig's environment."""
    place = rig.root / name
    place.mkdir()
    content = native_library("libgpuslice.so").read_bytes()
    (place / "libgpuslice.so").write_bytes(content + name.encode())
    if selftest:
        (place / "gpu-selftest").write_bytes(b"#!/bin/sh\n")
    rig.environment["GPU_DEVICE_PLUGIN_NATIVE"] = str(place)
    return place


async def restart(rig: Rig, name: str, *, selftest: bool = False) -> None:
    """The agent ends, and one that brings another build serves in its place."""
    await rig.stop_agent()
    build(rig, name, selftest=selftest)
    await rig.serve()


async def mounts_of(rig: Rig, name: str) -> dict[str, Path]:
    """Container path -> host path of a container that starts now."""
    start = await rig.kubelet.start_container(rig.uid(name), "main-0")
    return {inside: Path(outside) for inside, (outside, _) in start.mounts.items()}


def versions(rig: Rig) -> set[str]:
    return {path.name for path in rig.library.iterdir()}


async def test_the_packaged_library_is_installed_and_mounted() -> None:
    """Byte for byte, under a name that holds its release; nothing has to be put there by hand."""
    async with running_rig(is_started=False) as rig:
        shutil.rmtree(rig.library)
        await rig.serve()
        await rig.admit("p", slice_of(2, 30))
        mounts = await mounts_of(rig, "p")

        assert mounts[TARGET].read_bytes() == native_library("libgpuslice.so").read_bytes()
        assert mounts[PRELOAD].read_text() == f"{TARGET}\n"
        assert mounts[TARGET].parent.name.startswith(f"{__version__}-")
        assert mounts[TARGET].parent == mounts[PRELOAD].parent


async def test_gpu_selftest_is_mounted_where_the_version_has_it() -> None:
    """Beside the library; where there is none, nothing is mounted, for a directory would appear."""
    async with running_rig(is_started=False) as rig:
        build(rig, "without")
        await rig.serve()
        await rig.admit("before", slice_of(2, 30))
        await restart(rig, "with", selftest=True)
        await rig.admit("after", slice_of(2, 30))

        assert SELFTEST not in await mounts_of(rig, "before")
        selftest = (await mounts_of(rig, "after"))[SELFTEST]
        assert selftest.read_bytes() == b"#!/bin/sh\n"
        assert selftest.stat().st_mode & 0o777 == 0o755


async def test_a_version_stays_until_the_last_pod_that_mounts_it_is_gone() -> None:
    """Two builds on one node: each pod keeps its own, over restarts of agent and container."""
    async with running_rig(is_started=False) as rig:
        shutil.rmtree(rig.library)
        build(rig, "old")
        await rig.serve()
        await rig.admit("a", slice_of(15, 30))
        (old,) = versions(rig)
        await restart(rig, "new")
        await rig.admit("b", slice_of(2, 30))
        new = rig.grant("b").library_version

        assert versions(rig) == {old, new}
        assert (await mounts_of(rig, "a"))[TARGET].parent.name == old
        assert (await mounts_of(rig, "b"))[TARGET].parent.name == new
        await rig.delete(rig.uid("a"))
        for name in ("c", "d", "e"):  # three empty cards: one of these pods holds what a held
            await rig.admit(name, slice_of(15, 30))
        assert {grant.pod.name for grant in rig.grants()} == {"b", "c", "d", "e"}
        await restart(rig, "newest")
        newest = (versions(rig) - {old, new}).pop()
        await until(lambda: versions(rig) == {new, newest}, 20, lambda: versions(rig))


async def test_a_version_wiped_from_the_node_is_there_again_when_a_container_starts() -> None:
    """A missing preload file would be a container without a cap: it is made before the start."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))

        async def is_synced() -> bool:
            # The agent's own look may come first; then there is nothing to tell.
            shutil.rmtree(rig.library, ignore_errors=True)
            mounts = await mounts_of(rig, "p")
            assert mounts[TARGET].read_bytes() == native_library("libgpuslice.so").read_bytes()
            return bool(rig.events("IsolationLibraryMadeAgain"))

        await until(is_synced, 20)


async def test_a_wiped_version_of_an_older_agent_gets_the_content_of_this_one() -> None:
    """The layouts are frozen; a container that starts again is capped by the newer library."""
    async with running_rig(is_started=False) as rig:
        build(rig, "old")
        await rig.serve()
        await rig.admit("p", slice_of(2, 30))
        await rig.stop_agent()
        shutil.rmtree(rig.library)
        new = build(rig, "new")
        await rig.serve()
        mounts = await mounts_of(rig, "p")

        assert mounts[TARGET].parent.name == rig.grant("p").library_version
        assert mounts[TARGET].read_bytes() == (new / "libgpuslice.so").read_bytes()
        await until(lambda: rig.events("IsolationLibraryMadeAgain"), 10)


async def test_a_wiped_version_that_cannot_be_made_keeps_its_container_from_starting() -> None:
    """No package here: what an operator has put there is gone, and said to be."""
    async with running_rig(is_started=False, has_library=False) as rig:
        rig.install_library("0.0.1")
        await rig.serve()
        await rig.admit("p", slice_of(2, 30))
        shutil.rmtree(rig.library)
        rig.install_library("0.0.2")

        with pytest.raises(Exception, match=r"version 0\.0\.1 .* is missing or incomplete"):
            await mounts_of(rig, "p")
        await until(lambda: rig.events("IsolationLibraryMissing"), 10)


async def test_a_directory_that_cannot_be_written_is_said_in_the_fault() -> None:
    """The node does not attract pods whose slices it could not enforce."""
    async with running_rig(is_started=False) as rig:
        shutil.rmtree(rig.library)
        rig.library.write_text("a file stands here")
        await rig.start_agent()
        await until(lambda: rig.events("IsolationLibraryMissing"), 20)
        assert "cannot be installed" in rig.events("IsolationLibraryMissing")[0]["message"]

        rig.library.unlink()
        await rig.until_ready()
