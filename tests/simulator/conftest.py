"""Simulated nodes in temporary directories."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest
from tests.simulator.programs import directory

from gpu_device_plugin.simulation.simulated_node import Choices, SimulatedNode

MakeNode = Callable[..., SimulatedNode]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Makes a node of a profile, with the libraries beside its state."""

    def make(profile: str, **choices: Unpack[Choices]) -> SimulatedNode:
        place = directory(tmp_path / f"node-{len(list(tmp_path.iterdir()))}")
        return SimulatedNode.create(profile, place, **choices)

    return make


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    """Two V100 under a driver that has every struct version."""
    return make_node("v100", cards=2, driver_version="570.86.15")
