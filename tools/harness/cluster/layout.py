"""Where one cluster keeps its files, and the mounts and interfaces that it makes for itself."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.harness.cluster.processes import command_output

NAMESPACE_MARK = "GPU_DEVICE_PLUGIN_E2E"
BRIDGE = "cluster0"
ADDRESS = "10.200.0.1"


class IsolationError(Exception):
    """The tests run where they could touch the machine's own kubelet."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of one cluster.

    The state lives in memory, in a mount that ends with the namespace. The logs stay on disk.
    """

    state: Path
    logs: Path

    @property
    def credentials(self) -> Path:
        """Keys, certificates, tokens and kubeconfigs."""
        return self.state / "credentials"

    def node(self, name: str) -> Path:
        """What one node's kubelet and containerd keep."""
        return self.state / "nodes" / name


def isolate(layout: Layout) -> None:
    """Give the cluster a state directory in memory and a network of its own.

    Raises:
        IsolationError: the tests were not started by tests/e2e/run.sh.
    """
    if os.environ.get(NAMESPACE_MARK) != "1":
        raise IsolationError("start the end-to-end tests with tests/e2e/run.sh, as root")
    layout.state.mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir(parents=True, exist_ok=True)
    command_output(["mount", "-t", "tmpfs", "-o", "size=6g,mode=755", "cluster", str(layout.state)])
    for command in (
        "ip link set lo up",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {ADDRESS}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
        f"ip route add default dev {BRIDGE}",
    ):
        command_output(command.split())
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def overlay(target: Path, source: Path, enter: Sequence[str] = ()) -> None:
    """Let a directory that programs insist on show one of this cluster's, in one namespace only.

    Args:
        target: The directory that programs insist on.
        source: Ours.
        enter: The command that enters the namespace; empty: this one.
    """
    source.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    command_output([*enter, "mount", "--bind", str(source), str(target)])


def overlay_file(target: Path, source: Path, enter: Sequence[str]) -> None:
    """The same for a file, which is there already; a second one hides the first."""
    command_output([*enter, "mount", "--bind", str(source), str(target)])


def uncovered_proc(target: Path, enter: Sequence[str]) -> None:
    """Mount /proc once more; a second mount at the same place hides the first."""
    target.mkdir(parents=True, exist_ok=True)
    command_output([*enter, "mount", "-t", "proc", "proc", str(target)])
