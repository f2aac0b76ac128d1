"""Drivers that we do not know: what is new is said and counted, what is needed is missed aloud."""

import shutil
from pathlib import Path

import pytest
from tests.isolation.box import MIB, NOT_READY, OUT_OF_MEMORY, Box
from tests.isolation.region import Region

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
    assert program("alloc 1 500000000") == [0]
    assert program("free 1") == [0]


def test_a_driver_that_lacks_what_is_needed_closes(box: Box, tmp_path: Path) -> None:
    """It names the function."""
    with_driver(box, tmp_path, "libpast")
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "no cuMemGetInfo_v2" in program.end()
