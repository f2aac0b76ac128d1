"""The test programs, compiled once; a node and a container a test."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.isolation.box import Box, Node, native_directory

HERE = Path(__file__).parent
NEEDED = ("libgpuslice.so", "libgpuslice-testing.so", "libcuda.so.1", "libnvidia-ml.so.1")

MakeBox = Callable[..., Box]


def _header_directories() -> list[str]:
    finder = HERE.parents[1] / "src" / "find_header.py"
    command = [sys.executable, str(finder)]
    return [
        subprocess.run(
            [*command, header], capture_output=True, text=True, check=True
        ).stdout.strip()
        for header in ("cuda.h", "nvml.h")
    ]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/*.c, each a program of its name; libraries where the name begins with lib."""
    missing = [name for name in NEEDED if not (native_directory() / name).exists()]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)} (make native)")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: cc")
    directory = tmp_path_factory.mktemp("programs")
    includes = [word for path in _header_directories() for word in ("-isystem", path)]
    for source in sorted((HERE / "programs").glob("*.c")):
        name = source.stem
        shared = (
            ["-shared", "-fPIC", "-o", f"{name}.so"] if name.startswith("lib") else ["-o", name]
        )
        command = [
            compiler,
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]
        command += [*includes, str(source), *shared]
        if "LINKED TO THE DRIVER" in source.read_text():
            command += [f"-L{native_directory()}", "-Wl,--no-as-needed", "-l:libcuda.so.1"]
        subprocess.run([*command, "-ldl", "-lpthread"], cwd=directory, check=True)
    return directory


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
    box.allow(2154 * 1024 * 1024)
    return box
