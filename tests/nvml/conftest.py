"""A simulated node, and sources that end with the test."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.nvml.watch import Watch

from gpu_device_plugin.nvml.nvml_source import Deadlines
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

Start = Callable[..., Watch]


@pytest.fixture
def node(make_node: Callable[..., SimulatedNode]) -> SimulatedNode:
    """Four V100s."""
    return make_node("v100")


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a source."""
    watches: list[Watch] = []

    def started(library: Path | None, deadlines: Deadlines, **more: object) -> Watch:
        watches.append(Watch(library, deadlines, **more))  # type: ignore[arg-type]
        return watches[-1]

    yield started
    for watch in watches:
        if watch.source.pid is not None:
            os.kill(watch.source.pid, signal.SIGKILL)
        await watch.stop()
