"""What both plugins read of a machine beside NVML, shown to them by mounts of their own.

NVIDIA's plugin has the kubelet's directory and the one of CDI specs built in. Both read which device node opens which MIG
instance below /proc/driver, and NUMA node and class of a card below /sys.
"""

import os
import stat
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from gpu_device_plugin.simulation import driver_library
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

DRIVER_ROOT = "driver-root"
"""What NVIDIA's plugin looks into for its own CDI spec."""
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_NVIDIA, _NVIDIA_MAJOR = 0x10DE, 195
_COMPUTE = 0x030200
_CONFIG_BYTES = 256
_GUEST = "2"  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
_CARDS, _GPU_INSTANCES, _COMPUTE_INSTANCES = 16, 15, 8
_MOUNTS = """
mount --bind "$1/driver" /proc/driver
mount --bind "$1/pci" /sys/bus/pci/devices
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet/device-plugins
mount --bind "$2" /var/lib/kubelet/device-plugins
shift 2
exec "$@"
"""


def make_machine(place: Path, cards: SimulatedNode) -> None:
    """Write the files of the machine that these cards are in; the first half is on NUMA node 0."""
    _write_minors(place / "driver" / "nvidia-caps")
    _put_driver(place / DRIVER_ROOT, cards)
    fields = driver_library.describe(cards.state)
    count = int(fields["cards_count"])
    for slot in range(count):
        domain, bus, device = (
            int(fields.get(f"cards.{slot}.pci_{part}", "0")) for part in ("domain", "bus", "device")
        )
        files = place / "pci" / f"{domain:04x}:{bus:02x}:{device:02x}.0"
        files.mkdir(parents=True)
        (files / "vendor").write_text(f"{_NVIDIA:#06x}\n")
        model = int(fields[f"cards.{slot}.pci_device_id"]) >> 16
        (files / "device").write_text(f"{model:#06x}\n")
        (files / "resource").write_text(
            "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        )
        (files / "class").write_text(f"{_COMPUTE:#08x}\n")
        (files / "config").write_bytes(
            _config(is_virtual=fields.get(f"cards.{slot}.virtualization") == _GUEST)
        )
        (files / "numa_node").write_text(f"{slot * 2 // count}\n")


def _config(*, is_virtual: bool) -> bytes:
    """PCI configuration; a virtual GPU has a capability of the vendor that says so."""
    config = bytearray(_CONFIG_BYTES)
    if is_virtual:
        config[6], config[0x34] = 0x10, 0xD0
        host = b"535.129.03".ljust(10, b"\0") + b"r535_00".ljust(10, b"\0")
        config[0xD0 : 0xD0 + 27] = b"\x09\0\x1bVF\0\x16" + host
    return bytes(config)


def entered(place: Path, plugins: Path) -> Sequence[str]:
    """The command that runs another one on that machine, with these plugin sockets."""
    unshare = ("unshare", "--mount", "--propagation", "private", "--")
    return (*unshare, "sh", "-euc", _MOUNTS, "sh", str(place), str(plugins))


def _put_driver(root: Path, cards: SimulatedNode) -> None:
    """Names of the libraries and nodes that a CDI spec cannot be without; nobody opens them."""
    (root / _LIBRARIES).mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (root / _LIBRARIES / f"{name}.{cards.view().driver_version}").touch()
    (root / "dev").mkdir()
    for card in cards.view().cards:
        node = root / "dev" / f"nvidia{card.slot}"
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(_NVIDIA_MAJOR, card.slot))


def _write_minors(place: Path) -> None:
    """The driver's file of MIG capabilities: every place that an instance can have, in its order."""
    lines = ["config 1", "monitor 2"]
    for card, part in product(range(_CARDS), range(_GPU_INSTANCES)):
        names = ("access", *(f"ci{each}/access" for each in range(_COMPUTE_INSTANCES)))
        lines += [f"gpu{card}/gi{part}/{name} {len(lines) + 1 + i}" for i, name in enumerate(names)]
    place.mkdir(parents=True)
    (place / "mig-minors").write_text("\n".join(lines) + "\n")
