"""The test programs, compiled once; a node and a container a test."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.harness.isolation.box import SLICE, Box, Node, native_directory
from tools.harness.isolation.compile import compile_programs

NEEDED = ("libgpuslice.so", "libgpuslice-testing.so", "libcuda.so.1", "libnvidia-ml.so.1")

MakeBox = Callable[..., Box]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/*.c, each a program of its name; libraries where the name begins with lib."""
    missing = [name for name in NEEDED if not (native_directory() / name).exists()]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)} (make native)")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")
    return compile_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def make_box(tmp_path: Path, programs: Path) -> Iterator[MakeBox]:
    """Makes containers on one node; what runs in them ends with the test."""
    nodes: dict[tuple[str, str | None], Node] = {}
    boxes: list[Box] = []

    def make(
        name: str = "a", profile: str = "v100", driver: str | None = "535.309.01", **fields: str
    ) -> Box:
        key = (profile, driver)
        if key not in nodes:
            nodes[key] = Node.create(tmp_path, profile, driver)
        box = Box(tmp_path / name, nodes[key], programs, **fields)  # type: ignore[arg-type]
        boxes.append(box)
        return box

    yield make
    for box in boxes:
        box.close()


@pytest.fixture
def box(make_box: MakeBox) -> Box:
    """One container with 2154 MiB of a simulated V100."""
    box = make_box()
    box.allow(SLICE)
    return box


@pytest.fixture
def box_without_nvml(box: Box, tmp_path: Path) -> Box:
    """A container into which only libcuda was brought (NVIDIA_DRIVER_CAPABILITIES=compute)."""
    drivers = tmp_path / "drivers"
    drivers.mkdir()
    for name in ("libcuda.so.1", "libgpuslice.so"):
        shutil.copy(box.node.drivers / name, drivers)
    box.node.drivers = drivers
    return box


@pytest.fixture
def box_in_namespace(box: Box) -> Box:
    """Each program in a pid namespace of its own, as in a pod, with a driver that knows its pid."""
    box.enter_namespaces()
    box.variables["GPU_SIMULATOR_NVML_PIDS"] = "known"
    return box


@pytest.fixture
def box_without_sizes(box_in_namespace: Box) -> Box:
    """The same with a driver of 535.113.01 to 565: NVML lists its processes with 0 bytes."""
    box_in_namespace.variables["GPU_SIMULATOR_NVML_PIDS"] = "unsized"
    return box_in_namespace


@pytest.fixture
def box_of_strangers(box_in_namespace: Box) -> Box:
    """The same with a driver before 535.113.01: NVML knows the card, and nobody's pid."""
    box_in_namespace.variables["GPU_SIMULATOR_NVML_PIDS"] = "none"
    return box_in_namespace


@pytest.fixture(params=["box", "box_without_nvml"])
def any_box(request: pytest.FixtureRequest) -> Box:
    """With a look at NVML now and then, and without any."""
    box: Box = request.getfixturevalue(request.param)
    return box


@pytest.fixture(params=["box", "box_without_sizes", "box_of_strangers", "box_without_nvml"])
def every_box(request: pytest.FixtureRequest) -> Box:
    """NVML knows the process, or its pid alone, or only the card, or is not there."""
    box: Box = request.getfixturevalue(request.param)
    return box
