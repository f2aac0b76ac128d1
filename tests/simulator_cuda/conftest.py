"""A simulated node for each test, and C programs compiled against the simulated libcuda."""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator_cuda.nodes import NATIVE, PROGRAMS, ROOT, Node, described
from tools.harness.compiling import compile_kept

ENGINE = ROOT / "src" / "simulator" / "cuda"
# What the library does not export, a program is built with.
PARTS = {"engine_cases": ("engine.c", "engine_step.c", "engine_turns.c")}
UNLINKED = {"old_driver"}


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
            compile_kept(
                [
                    *(compiler, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
                    *("-isystem", str(include), f"-I{ENGINE}", str(PROGRAMS / f"{name}.c")),
                    *(str(ENGINE / part) for part in PARTS.get(name, ())),
                    *(["-ldl"] if name in UNLINKED else [str(NATIVE / "libcuda.so.1")]),
                    "-lpthread",
                ],
                target,
            )
        return target

    return compile_program


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
def make_node(control: ctypes.CDLL, tmp_path: Path) -> Callable[[str], Node]:
    """Makes a node of what its lines say."""

    def make(lines: str) -> Node:
        state = tmp_path / "state"
        failed = control.gpusim_create(str(state).encode(), lines.encode())
        assert not failed, control.gpusim_error()
        return Node(state)

    return make


@pytest.fixture
def node(make_node: Callable[[str], Node]) -> Node:
    """A node of two V100."""
    return make_node(described(2))
