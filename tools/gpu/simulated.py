"""A simulated card in place of a real one: proves the checks, says nothing of a real driver."""

import ctypes
from pathlib import Path


def simulated_base(directory: Path, native: Path, base: dict[str, str]) -> dict[str, str]:
    """Makes a node of one V100 on a current driver; returns the environment of its programs."""
    # Only here, so that a real card can be measured where our package is not installed.
    from gpu_device_plugin.simulation.profiles import node_lines

    controls = ctypes.CDLL(str(native / "libnvidia-ml.so.1"))
    controls.gpusim_error.restype = ctypes.c_char_p
    state = directory / "gpu-simulator.state"
    text = "\n".join(node_lines("v100", seed="gpu", cards=1, driver_version="580.95.05"))
    if controls.gpusim_create(str(state).encode(), text.encode()) != 0:
        raise OSError(controls.gpusim_error().decode())
    return {
        **base,
        "LD_LIBRARY_PATH": str(native),
        "GPU_SIMULATOR_STATE": str(state),
        # An empty kernel: shorter than its launch, so that launches never wait for the card.
        "GPU_SIMULATOR_KERNEL_NS": "100",
    }
