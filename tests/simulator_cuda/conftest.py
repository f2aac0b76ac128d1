"""A simulated node for each test, and C programs compiled against the simulated libcuda."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = Path(os.environ.get("NATIVE_DIRECTORY", ROOT / "build" / "native"))
PROGRAMS = HERE / "programs"
V100_MIB = 16160


def _cuda_include() -> Path:
    """The folder of cuda.h, which a build dependency brought into some Python on the way."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "src" / "find_header.py"), "cuda.h"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip("cuda.h is missing: install the build dependencies of pyproject.toml")
    return Path(found.stdout.strip())


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles programs/NAME.c once and returns the executable."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not (NATIVE / "libcuda.so.1").exists():
        pytest.skip("needs a C compiler and `make native`")
    include = _cuda_include()
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(name: str) -> Path:
        target = folder / name
        if not target.exists():
            subprocess.run(
                [
                    *(compiler, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
                    *("-isystem", str(include), str(PROGRAMS / f"{name}.c"), "-o", str(target)),
                    *(str(NATIVE / "libcuda.so.1"), "-lpthread"),
                ],
                check=True,
            )
        return target

    return compile_program


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated node: where its state lies, and the environment that finds it."""

    state: Path

    def environment(self, **extra: str) -> dict[str, str]:
        """What a process needs to use this node."""
        kept = {key: value for key, value in os.environ.items() if "VISIBLE_DEVICES" not in key}
        libraries = {"LD_LIBRARY_PATH": str(NATIVE), "GPU_SIMULATOR_STATE": str(self.state)}
        return kept | libraries | extra

    def run(self, program: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Runs a program on the node to its end."""
        return subprocess.run(
            [str(program), *words],
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def uuid_of(card: int) -> str:
    """The UUID that the nodes of these tests give a card."""
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


def _lines(cards: int) -> str:
    described = [f"cards_count={cards}", "driver_version=575.57.08", "cuda_version=12090"]
    for card in range(cards):
        values = {
            "present": 1,
            "uuid": uuid_of(card),
            "name": "Tesla V100-SXM2-16GB",
            "memory_total_mib": V100_MIB,
            "multiprocessors": 80,
            "compute_major": 7,
            "pci_bus": 16 + card,
            "minor_number": card,
            "order": card,
        }
        described += [f"cards.{card}.{name}={value}" for name, value in values.items()]
    return "\n".join(described) + "\n"


@pytest.fixture(scope="session")
def control() -> ctypes.CDLL:
    """The interface that makes and changes nodes: control.h, exported by libnvidia-ml."""
    library = NATIVE / "libnvidia-ml.so.1"
    if not library.exists():
        pytest.skip("needs `make native`")
    loaded = ctypes.CDLL(str(library))
    loaded.gpusim_error.restype = ctypes.c_char_p
    return loaded


@pytest.fixture
def make_node(control: ctypes.CDLL, tmp_path: Path) -> Callable[[int], Node]:
    """Makes a node of so many V100 cards."""

    def make(cards: int) -> Node:
        state = tmp_path / f"state-{cards}"
        failed = control.gpusim_create(str(state).encode(), _lines(cards).encode())
        assert not failed, control.gpusim_error()
        return Node(state)

    return make


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Iterator[Node]:
    """A node of one V100."""
    yield make_node(1)
