"""Simulated cards in containers, by mounts of the agent's answer or by a CDI spec.

An agent with `--simulator-dir` answers Allocate with these mounts. A CDI spec brings them as
NVIDIA's tools bring real cards: the container runtime reads it (containerd: `enable_cdi`,
`cdi_spec_dirs`), and the agent names cards with `--device-list-strategy cdi-cri`. Mounted are the simulated
libraries, where the loader of a Debian image looks, and the node's state file, which is what
the libraries have for a device node.
"""

import platform
from collections.abc import Mapping
from pathlib import Path

from gpu_device_plugin.domain.grants.container_edits import VISIBLE_DEVICES_DIR, Mount
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.driver_library import CUDA, NVML
from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE, SimulatedNode
from gpu_device_plugin.simulation.view import SimulatedCard

KIND = "nvidia.com/gpu"
_CDI_VERSION = "0.6.0"
_MOUNT_OPTIONS = ("nosuid", "nodev", "bind")


def driver_mounts(node: SimulatedNode) -> tuple[Mount, ...]:
    """What a container needs of a node's driver: its libraries, and the state file."""
    node.view()  # a node that is not there is said to be, rather than mounted
    beside = node.library.parent
    files = {f"{_library_directory()}/{name}": beside / name for name in (NVML, CUDA)}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]} is not there: create the node again after `make native`")
    libraries = (
        Mount(inside, str(path.absolute()), is_read_only=True) for inside, path in files.items()
    )
    return (*libraries, Mount(str(DEFAULT_STATE), str(node.state.absolute()), is_read_only=False))


def cdi_spec(node: SimulatedNode, extra: Mapping[str, Path] | None = None) -> dict[str, object]:
    """The spec of a node's cards, ready for JSON: one device a card or MIG slice, and `all`.

    `extra` are further files of every container, path there -> path here; a real spec brings
    nvidia-smi this way.
    """
    mounts = [_mount(made) for made in driver_mounts(node)]
    mounts += [
        _mount(Mount(inside, str(path.absolute()), is_read_only=True))
        for inside, path in (extra or {}).items()
    ]
    names = [name for card in node.view().cards for name in _names(card)]
    return {
        "cdiVersion": _CDI_VERSION,
        "kind": KIND,
        "containerEdits": {"mounts": mounts},
        "devices": [*map(_device, names), _every_device()],
    }


def _names(card: SimulatedCard) -> list[str]:
    return [card.uuid, *(instance.uuid for instance in card.instances)]


def _device(name: str) -> dict[str, object]:
    """What device nodes decide on a real node: which cards the libraries show.

    A container may be given several, and a variable of one would replace that of another: so
    each brings a file, in the directory that the variable of all of them names.
    """
    mark = Mount(f"{VISIBLE_DEVICES_DIR}/{name}", "/dev/null", is_read_only=True)
    env = [f"NVIDIA_VISIBLE_DEVICES={VISIBLE_DEVICES_DIR}"]
    return {"name": name, "containerEdits": {"env": env, "mounts": [_mount(mark)]}}


def _every_device() -> dict[str, object]:
    return {"name": "all", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}


def _mount(made: Mount) -> dict[str, object]:
    return {
        "containerPath": made.container_path,
        "hostPath": made.host_path,
        "options": ["ro" if made.is_read_only else "rw", *_MOUNT_OPTIONS],
    }


def _library_directory() -> str:
    return f"/usr/lib/{platform.machine()}-linux-gnu"
