"""Simulated cards in containers, brought there as NVIDIA's tools bring real ones: by a CDI spec.

The container runtime reads the spec (containerd: `enable_cdi`, `cdi_spec_dirs`); the agent names
a card with `--device-access cdi`. A real spec mounts the driver's libraries and device nodes.
This one mounts the simulated libraries where the loader of a Debian image looks, and the node's
state file, which is what the libraries have for a device node.
"""

import platform
from collections.abc import Mapping
from pathlib import Path

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.library import CUDA, NVML
from gpu_device_plugin.simulation.node import DEFAULT_STATE, SimulatedNode
from gpu_device_plugin.simulation.view import CardView

KIND = "nvidia.com/gpu"
_CDI_VERSION = "0.6.0"
_MOUNT_OPTIONS = ("nosuid", "nodev", "bind")


def cdi_spec(node: SimulatedNode, extra: Mapping[str, Path] | None = None) -> dict[str, object]:
    """The spec of a node's cards, ready for JSON: one device a card or MIG slice, and `all`.

    Args:
        node: Made in a directory, which holds its libraries.
        extra: Further files that every container gets: path there -> path here. A real spec
            brings nvidia-smi this way.

    Raises:
        ConfigError: No libraries stand beside the node.
    """
    node.view()  # a node that is not there is said to be, rather than mounted
    beside = node.library.parent
    files = {f"{_library_directory()}/{name}": beside / name for name in (NVML, CUDA)}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]} is not there: create the node anew after `make native`")
    mounts = [_mount(inside, path, "ro") for inside, path in {**files, **(extra or {})}.items()]
    mounts.append(_mount(str(DEFAULT_STATE), node.state, "rw"))
    names = [name for card in node.view().cards for name in _names(card)]
    return {
        "cdiVersion": _CDI_VERSION,
        "kind": KIND,
        "containerEdits": {"mounts": mounts},
        "devices": [*(_device(name, name) for name in names), _device("all", "all")],
    }


def _names(card: CardView) -> list[str]:
    return [card.uuid, *(instance.uuid for instance in card.instances)]


def _device(name: str, visible: str) -> dict[str, object]:
    # What device nodes decide on a real node: which cards the libraries show.
    return {"name": name, "containerEdits": {"env": [f"NVIDIA_VISIBLE_DEVICES={visible}"]}}


def _mount(inside: str, outside: Path, access: str) -> dict[str, object]:
    return {
        "containerPath": inside,
        "hostPath": str(outside.absolute()),
        "options": [access, *_MOUNT_OPTIONS],
    }


def _library_directory() -> str:
    return f"/usr/lib/{platform.machine()}-linux-gnu"
