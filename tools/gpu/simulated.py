"""A simulated card in place of a real one: proves the checks, says nothing of a real driver."""

from pathlib import Path


def simulated_base(directory: Path, base: dict[str, str]) -> dict[str, str]:
    """Makes a node of one V100 on a current driver; returns the environment of its programs."""
    # Only here, so that a real card can be measured where our package is not installed.
    from gpu_device_plugin.simulation.simulated_node import SimulatedNode

    node = SimulatedNode.create("v100", directory, seed="gpu", cards=1, driver_version="615.71.09")
    return {
        **base,
        "LD_LIBRARY_PATH": str(node.library.parent),
        "GPU_SIMULATOR_STATE": str(node.state),
        # An empty kernel: shorter than its launch, so that launches never wait for the card.
        "GPU_SIMULATOR_KERNEL_NS": "100",
    }
