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

from gpu_device_plugin.domain.grants.cdi_spec import CDI_VERSION, cdi_mount
from gpu_device_plugin.domain.grants.container_edits import VISIBLE_DEVICES_DIR, Mount
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.driver_library import CUDA, NVML
from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE, SimulatedNode

KIND = "nvidia.com/gpu"


def driver_mounts(node: SimulatedNode) -> tuple[Mount, ...]:
    """What a container needs of a node's driver: its libraries, and the state file."""
    node.view()  # a node that is not there is said to be, rather than mounted
    beside = node.library.parent
    directory = f"/usr/lib/{platform.machine()}-linux-gnu"
    files = {f"{directory}/{name}": beside / name for name in (NVML, CUDA)}
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
    mounts = list(driver_mounts(node))
    for inside, path in (extra or {}).items():
        mounts.append(Mount(inside, str(path.absolute()), is_read_only=True))
    cards = node.view().cards
    names = [name for c in cards for name in (c.uuid, *(each.uuid for each in c.instances))]
    every = {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}
    return {
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "containerEdits": {"mounts": [cdi_mount(mount, "bind") for mount in mounts]},
        "devices": [
            *(_device(name, node) for name in names),
            {"name": "all", "containerEdits": every},
        ],
    }


def _device(name: str, node: SimulatedNode) -> dict[str, object]:
    """What device nodes decide on a real node: which cards the libraries show.

    A container may be given several, and a variable of one would replace that of another: so
    each brings a file, in the directory that the variable of all of them names.
    """
    # Any file: a container engine cannot mount /dev/null with other owners, as in a user namespace.
    mark = Mount(f"{VISIBLE_DEVICES_DIR}/{name}", str(node.library.absolute()), is_read_only=True)
    env = [f"NVIDIA_VISIBLE_DEVICES={VISIBLE_DEVICES_DIR}"]
    return {"name": name, "containerEdits": {"env": env, "mounts": [cdi_mount(mark, "bind")]}}
