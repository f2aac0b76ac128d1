"""What tests of several directories need.

Directories with short paths (a unix socket's is 107 characters at most), a rig in one, simulated
nodes, and containers with programs in them.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Unpack

import pytest
from hypothesis import HealthCheck, settings
from tests.kubelet.rig import Rig
from tests.skips import lines
from tests.told import compile_program
from tools.harness.boxes import Boxes
from tools.harness.isolation.box import native_directory
from tools.harness.kubelet import StandInKubelet

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.simulation.simulated_node import Choices, SimulatedNode

MakeNode = Callable[..., SimulatedNode]

# A busy machine is no finding, and a run finds what the run before it found: examples are the same
# each time, and none is kept in a file. To look further: --hypothesis-profile=default.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each kind of skipped tests, in place of pytest's own for each place in the code."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("skipped, by what is missing")
        for line in lines(report.longrepr[2] for report in skipped):
            terminalreporter.line(line)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty directory with a path of a few characters."""
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Makes a simulated node of a profile, in a directory with the driver's libraries."""

    def make(profile: str, **choices: Unpack[Choices]) -> SimulatedNode:
        place = tmp_path / f"node-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        try:
            return SimulatedNode.create(profile, place, **choices)
        except ConfigError as error:
            pytest.skip(f"the simulated driver is missing: {error}")

    return make


@pytest.fixture
def patient_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls to the API server wait for their answer, however busy the machine is."""
    for method in (ApiServer.call, ApiServer.call_in_turn):
        monkeypatch.setattr(method, "__kwdefaults__", {"deadline_seconds": 600.0})


@pytest.fixture
async def kubelet(short_dir: Path) -> AsyncIterator[StandInKubelet]:
    """A stand-in kubelet that is not started yet."""
    standin = StandInKubelet(short_dir)
    yield standin
    await standin.stop()


@pytest.fixture
async def rig(kubelet: StandInKubelet) -> AsyncIterator[Rig]:
    """Both sides; nothing runs yet."""
    both = Rig(kubelet)
    yield both
    await both.stop_endpoints()


@pytest.fixture(scope="session")
def told_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that uses its card as it is told."""
    if not (native_directory() / "libgpuslice.so").exists():
        pytest.skip("libgpuslice.so is not built: make native")
    return compile_program(tmp_path_factory.mktemp("told"))


@pytest.fixture
def boxes(told_program: Path) -> Iterator[Boxes]:
    """Containers whose programs end with the test."""
    made = Boxes(told_program.parent)
    yield made
    made.close()
