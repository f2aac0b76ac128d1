"""A simulated H200 with a driver of CUDA 13, alone and in a slice; and the Python that has the clients."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.harness.isolation.box import Box, Node, native_directory

HERE = Path(__file__).parent
DRIVER = "580.65.06"
SLICE_MIB = 4096
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Client:
    """How a client is started: its words, and what it finds in its environment."""

    python: Path
    box: Box

    def native(self, *words: str | Path, **variables: str) -> str:
        """What it prints on a card of its own."""
        return output(words, native_variables(self._environment(variables)))

    def sliced(self, *words: str | Path, **variables: str) -> str:
        """What it prints in a slice of the card."""
        return output(words, self._environment(variables))

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        home = str(self.box.root)  # caches, new for each test
        return {**self.box.environment, "HOME": home, "PYTHONUNBUFFERED": "1", **more}


def native_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a container without what makes it a slice."""
    ours = {"LD_PRELOAD", "GPUSLICE_ROOT"}
    return {name: value for name, value in environment.items() if name not in ours}


def output(words: tuple[str | Path, ...], environment: Mapping[str, str]) -> str:
    """What a program prints that ends well."""
    ran = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def _installed(*words: str) -> Path:
    """The Python of install.sh, or a skip with the reason why it cannot be had."""
    ran = subprocess.run(
        [HERE / "install.sh", *words], env=os.environ, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"the clients cannot be installed: {last}")
    return Path(ran.stdout.strip())


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """With the clients of .ci/clients.txt."""
    return _installed()


@pytest.fixture(scope="session")
def built_python() -> Path:
    """With those of .ci/clients-built.txt as well."""
    return _installed("built")


@pytest.fixture
def make_box(tmp_path: Path) -> Callable[[str], Box]:
    """Makes a slice of the first card of a node with some driver."""
    if not (native_directory() / "libgpuslice.so").exists():
        pytest.skip("not built: libgpuslice.so (make native)")

    def make(driver: str) -> Box:
        made = Box(tmp_path / "slice", Node.create(tmp_path, "h200", driver), tmp_path)
        made.allow(SLICE_MIB * 1024 * 1024, 50)
        made.variables["NVIDIA_VISIBLE_DEVICES"] = made.node.uuids[0]
        return made

    return make


@pytest.fixture
def box(make_box: Callable[[str], Box]) -> Box:
    """One with a driver of CUDA 13."""
    return make_box(DRIVER)


@pytest.fixture
def client(clients_python: Path, box: Box) -> Client:
    """Starts programs on the first card of a node, or in a slice of it."""
    return Client(clients_python, box)
