"""Directories with short paths (a unix socket's is 107 characters at most) and a rig in one."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.kubelet.rig import Rig

from gpu_device_plugin.simulation.kubelet import StandInKubelet

# A busy machine is no finding, and a run finds what the run before it found: examples are the same
# each time, and none is kept in a file. To look further: --hypothesis-profile=default.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty directory with a path of a few characters."""
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


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
