"""Drivers that we do not know: what is new is said and counted, what is needed is missed aloud."""

import shutil
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tools.harness.isolation.box import MIB, NOT_READY, OUT_OF_MEMORY, Box

UUID = "GPU-00000000-0000-0000-0000-000000000001"


def with_driver(box: Box, directory: Path, name: str) -> Box:
    """The container with another libcuda.so.1 and no NVML."""
    drivers = directory / name
    drivers.mkdir()
    shutil.copy(box.programs / f"{name}.so", drivers / "libcuda.so.1")
    shutil.copy(box.node.drivers / "libgpuslice.so", drivers)
    box.node.drivers = drivers
    box.write(f"version=1\nslice=a\ndevice={UUID} memory_bytes={1000 * MIB}\n")
    return box


@pytest.mark.parametrize("way", [["handle"], ["address2"]])
def test_a_new_allocation_function_is_said_and_counted(
    box: Box, tmp_path: Path, way: list[str]
) -> None:
    """Once, not at every lookup; the function itself is the driver's."""
    with_driver(box, tmp_path, "libfuture")
    words = [*way, "cuMemAllocEntangled"]
    words += ["20000", "0"] if way == ["address2"] else ["cuMemAllocEntangled"]
    ran = box.run("route", *words)
    region = Region(box.root / "state" / "region")

    assert ran.stdout.split()[2] == "libcuda.so.1"
    assert ran.stderr.count("cuMemAllocEntangled is new here") == 1
    assert region.drift() == 1
    region.close()


@pytest.mark.parametrize(
    "name", ["cuCtxCreate_v5", "cuModuleLoadRemote", "cuMemFreeEntangled", "cuStreamSynchronize_v2"]
)
def test_new_contexts_loads_frees_and_waits_are_said_too(
    box: Box, tmp_path: Path, name: str
) -> None:
    """Not what neither takes nor gives anything."""
    with_driver(box, tmp_path, "libfuture")
    ran = box.run("route", "handle", "cuMemFreeHost", "cuStreamGetPriority_v2", name)
    region = Region(box.root / "state" / "region")

    assert ran.stdout.split()[2::3] == ["libcuda.so.1"] * 3
    assert ran.stderr.count("is new here") == 1
    assert f"{name} is new here" in ran.stderr
    assert region.drift() == 1
    region.close()


def test_a_new_version_of_an_old_function_is_said_and_counted(box: Box, tmp_path: Path) -> None:
    """Its base name is an old acquaintance, but its interface may be another."""
    with_driver(box, tmp_path, "libnewer")
    old, new = (box.run("route", "address2", "cuMemAlloc", v, "0") for v in ("12000", "20000"))
    region = Region(box.root / "state" / "region")

    assert old.stdout.split()[2] == "libgpuslice.so"
    assert old.stderr == ""
    assert new.stdout.split()[2] == "libcuda.so.1"
    assert new.stderr.count("cuMemAlloc is new here") == 1
    assert region.drift() == 1
    region.close()


def test_other_addresses_than_exports_are_recognised_by_name(box: Box, tmp_path: Path) -> None:
    """The one assumption about drivers that was never proved may be false."""
    with_driver(box, tmp_path, "libfuture")
    ran = box.run("route", "address2", "cuMemAlloc", "12000", "0")

    assert ran.stdout.splitlines()[0].split()[2] == "libgpuslice.so"
    assert ran.stdout.splitlines()[1].endswith("_v2")


def test_the_smallest_driver_is_capped(box: Box, tmp_path: Path) -> None:
    """All that may be missing is missing."""
    with_driver(box, tmp_path, "libfuture")
    program = box.start()

    assert program("alloc 1 2000000000") == [OUT_OF_MEMORY]
    assert program("alloc 1 400000000") == [0]
    assert program("free 1") == [0]


def test_a_driver_that_lacks_what_is_needed_closes(box: Box, tmp_path: Path) -> None:
    """It names the function."""
    with_driver(box, tmp_path, "libpast")
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "no cuMemGetInfo_v2" in program.end()


@pytest.mark.parametrize("way", ["default", "next", "self"])
def test_a_driver_that_looks_itself_up_does_not_meet_us(box: Box, tmp_path: Path, way: str) -> None:
    """Seen in HAMi-core 215, 326: NULL as handle found the hook, without end on WSL."""
    with_driver(box, tmp_path, "libasking")
    program = box.start(ASKING=way)

    assert program("alloc 1 2000000000") == [OUT_OF_MEMORY]
    assert program.end().count("cuInit") == 1


def test_a_driver_that_starts_nvml_in_cuinit_comes_back(box: Box, tmp_path: Path) -> None:
    """Seen in HAMi-core 52, 59: with driver 570 the start hung where NVML began."""
    nvml = box.node.drivers / "libnvidia-ml.so.1"
    with_driver(box, tmp_path, "libasking")
    shutil.copy(nvml, box.node.drivers)
    program = box.start(ASKING="nvml")

    assert program("alloc 1 2000000000") == [OUT_OF_MEMORY]
    assert program.end().startswith("NVML 16160\ncuInit 1\n")


@pytest.mark.parametrize("first", ["init", "nvml"])
def test_the_driver_of_cuda_12_8_starts(make_box: MakeBox, first: str) -> None:
    """The same driver's versions, whichever of CUDA and NVML a program starts first."""
    box = make_box(driver="570.124.06")
    box.allow(1000 * MIB)
    program = box.start(ready=False, GPU_SIMULATOR_CUDA_VERSION="12080")

    for line in (first, "init", "retain", "alloc 1 1000000", "nvml"):
        assert program(line)[0] == 0
    assert program("info")[2] == 1000 * MIB
