"""A simulated H200 with a driver of CUDA 13, alone and in a slice; and the Python that has the clients."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.isolation.box import Box, Node, native_directory

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
        return _output(words, native_variables(self._environment(variables)))

    def sliced(self, *words: str | Path, **variables: str) -> str:
        """What it prints in a slice of the card."""
        return _output(words, self._environment(variables))

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        home = str(self.box.root)  # caches, new for each test
        return {**self.box.environment, "HOME": home, "PYTHONUNBUFFERED": "1", **more}


def native_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a container without what makes it a slice."""
    ours = {"LD_PRELOAD", "GPUSLICE_ROOT"}
    return {name: value for name, value in environment.items() if name not in ours}


def _output(words: tuple[str | Path, ...], environment: Mapping[str, str]) -> str:
    ran = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The environment of install.sh, or a skip with the reason why it cannot be had."""
    ran = subprocess.run(
        [HERE / "install.sh"], env=os.environ, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"the clients of .ci/clients.txt cannot be installed: {last}")
    return Path(ran.stdout.strip())


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A slice of the first card of a node."""
    if not (native_directory() / "libgpuslice.so").exists():
        pytest.skip("not built: libgpuslice.so (make native)")
    made = Box(tmp_path / "slice", Node.create(tmp_path, "h200", DRIVER), tmp_path)
    made.allow(SLICE_MIB * 1024 * 1024, 50)
    made.variables["NVIDIA_VISIBLE_DEVICES"] = made.node.uuids[0]
    return made


@pytest.fixture
def client(clients_python: Path, box: Box) -> Client:
    """Starts programs on the first card of a node, or in a slice of it."""
    return Client(clients_python, box)
