"""A simulated node in a temporary directory."""

from collections.abc import Callable

import pytest

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

MakeNode = Callable[..., SimulatedNode]


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    """Two V100 under a driver that has every struct version."""
    return make_node("v100", cards=2, driver_version="570.86.15")
