"""What a container receives: environment, mounts, device nodes and CDI names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

CONFIG_DIR = "/run/gpu-device-plugin/config"
REGION_FILE = "/run/gpu-device-plugin/state/region"
CARDS_DIR = "/run/gpu-device-plugin/cards"
LIBRARY_FILE = "/usr/local/lib/gpu-device-plugin/libgpuslice.so"
SELFTEST_FILE = "/usr/local/lib/gpu-device-plugin/gpu-selftest"
PRELOAD_FILE = "/etc/ld.so.preload"
VISIBLE_DEVICES_DIR = "/var/run/nvidia-container-devices"
"""Where the NVIDIA runtime looks for cards named by mounts instead of by environment."""


class DeviceAccess(StrEnum):
    """How cards reach containers (R-720, R-721)."""

    NVIDIA = "nvidia"
    DEVICE_SPECS = "device-specs"
    VOLUME_MOUNTS = "volume-mounts"
    CDI = "cdi"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host in the container."""

    container_path: str
    host_path: str
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host in the container; `permissions` out of r, w and m."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """The whole answer to one Allocate; empty for a resource that does not carry it."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_names: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths on the host.

    Attributes:
        run_dir: The agent's `--run-dir`.
        library_dir: The agent's `--library-dir`.
        library_version: Version of the isolation library to mount.
        has_selftest: Whether that version includes gpu-selftest.
        control_devices: Device nodes beside the cards' own that exist on this host, for instance
            `/dev/nvidiactl` and `/dev/nvidia-uvm`.
        driver: Files of a driver that no container runtime brings: the simulated one's.
        mig_minors: Card's minor, GPU instance, compute instance or None -> minor of the node that
            opens it.
    """

    run_dir: str = ""
    library_dir: str = ""
    library_version: str = ""
    has_selftest: bool = False
    control_devices: tuple[str, ...] = ()
    driver: tuple[Mount, ...] = ()
    mig_minors: Mapping[tuple[int, int, int | None], int] = field(default_factory=dict)


def slice_of_mounts(mounts: Mapping[str, str]) -> tuple[str, str]:
    """Slice id and library version that an answer in the checkpoint names, or "" each.

    Args:
        mounts: Container path -> host path, as in the kubelet's checkpoint.

    >>> slice_of_mounts({CONFIG_DIR: "/run/x/slices/s1/config", PRELOAD_FILE: "/l/0.1/ld.so.preload"})
    ('s1', '0.1')
    """
    config = mounts.get(CONFIG_DIR, "").split("/")
    preload = mounts.get(PRELOAD_FILE, "").split("/")
    return (config[-2] if len(config) > 1 else "", preload[-2] if len(preload) > 1 else "")
