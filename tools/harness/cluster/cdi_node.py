"""A node as the GPU Operator's NRI mode leaves it: no RuntimeClass, cards by CDI alone.

NVIDIA's own installer writes the specification for management access and is the NRI plugin; the chart's pod asks it for
its cards by annotation and writes the specification of the slices. A simulated driver is laid out as NVIDIA's is:
libraries with its version and device nodes below a root of their own.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from tools.harness.cluster.binaries import cdi_hook_path, ctk_path, toolkit_installer_path
from tools.harness.cluster.helm import RELEASE_NAMESPACE
from tools.harness.cluster.node import Node
from tools.harness.cluster.processes import Program, command_output
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.simulation.driver_library import CUDA, NVML
from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE, STATE_NAME, SimulatedNode

LIBRARIES = "usr/lib/x86_64-linux-gnu"
OPERATOR = "gpu-operator"
MANAGEMENT = "management.nvidia.com/gpu=all"
_MAJOR = 195  # of NVIDIA's character devices


@dataclass(frozen=True, slots=True)
class CdiNode:
    """What such a node has of NVIDIA's.

    Attributes:
        node: In the cluster.
        place: A directory of its own.
        driver: The driver's root.
        state: The state of a simulated driver, which a real one has in the kernel.
    """

    node: Node
    place: Path
    driver: Path
    state: Path | None = None

    @property
    def _toolkit(self) -> Path:
        return self.place / "nvidia"

    def start_plugin(self, log: Path) -> Program:
        """What runs in the operator's toolkit container, on the node's own paths."""
        for program in (ctk_path(), cdi_hook_path()):
            packaged = self.place / "package/usr/bin" / program.name
            packaged.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(program, packaged)
        flags = {
            "debug": "true",
            "enable-nri-plugin": "true",
            "nri-socket": self.node.nri_socket,
            "nri-namespace": OPERATOR,
            "nri-management-cdi-device-namespaces": RELEASE_NAMESPACE,
            "cdi-enabled": "true",
            "cdi-output-dir": self.node.cdi_directory,
            "driver-root": self.driver,
            "driver-root-ctr-path": self.driver,
            "create-device-nodes": "none",
            "toolkit-install-dir": self._toolkit,
            "toolkit-source-root": self.place / "package",
            "ignore-errors": "true",  # the package has only what CDI needs
            "pid-file": self.place / "toolkit.pid",
        }
        command = [str(toolkit_installer_path()), *(f"--{k}={value}" for k, value in flags.items())]
        plugin = Program("nri-plugin", command, log, os.environ)
        plugin.start()

        def waits() -> bool:
            plugin.check()
            return "Waiting for signal" in plugin.tail()

        wait_for("the NRI plugin runs", waits, 30)
        if self.state:
            (written,) = self.node.cdi_directory.glob("management.nvidia.com-*")
            specification = yaml.safe_load(written.read_text())
            mount = {"hostPath": str(self.state), "containerPath": str(DEFAULT_STATE)}
            specification["containerEdits"]["mounts"].append({**mount, "options": ["bind"]})
            written.write_text(yaml.safe_dump(specification))
        return plugin

    def settings(self) -> Sequence[str]:
        """The chart's values, as docs/install.md has them for such nodes."""
        return (
            "deviceListStrategy=cdi-cri",
            "cdi.managementAnnotation=true",
            f"cdi.generator={self._toolkit}/toolkit/nvidia-ctk.real",
            f"policies.cdiNamespaces={{{OPERATOR}}}",
            f"nvidiaDriverRoot={self.driver}",
            f"cdiDir={self.node.cdi_directory}",
        )


def lay_out(
    driver: Path,
    state: Path,
    profile: str,
    version: str,
    programs: Sequence[Path],
    *,
    cards: int = 0,
) -> int:
    """Make the root of a simulated driver; its state lies elsewhere: what mounts the root may not write there.

    Args:
        driver: The root, which is not there yet.
        state: The file of its state.
        profile: Of its cards.
        version: Of the driver.
        programs: What is to stand in its usr/bin.
        cards: How many; 0: as many as the profile has.

    Returns:
        How many cards it has.
    """
    libraries = driver / LIBRARIES
    for directory in (libraries, driver / "dev", driver / "usr/bin"):
        directory.mkdir(parents=True)
    words = ["simulate", "create", f"--profile={profile}", f"--driver-version={version}"]
    words += [f"--cards={cards}"] if cards else []
    program = Path(sys.executable).parent / "gpu-device-plugin"
    command_output([str(program), *words, f"--state={libraries}"])
    (libraries / STATE_NAME).rename(state)
    for name in (NVML, CUDA):
        versioned = f"{name.removesuffix('.1')}.{version}"
        (libraries / name).rename(libraries / versioned)
        (libraries / name).symlink_to(versioned)
    for each in programs:
        shutil.copy(each, driver / "usr/bin" / each.name)
    cards = len(SimulatedNode(state).view().cards)
    minors = {"nvidiactl": 255, **{f"nvidia{card}": card for card in range(cards)}}
    for name, minor in minors.items():
        os.mknod(driver / "dev" / name, 0o020666, os.makedev(_MAJOR, minor))
    return cards
