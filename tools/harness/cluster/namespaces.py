"""Mounts and a network of its own for a further node, beside the first one's.

A process that does nothing keeps both; anyone who works for the node enters them by its id. Processes
are shared: all of them end with the tests.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.harness.cluster.layout import ADDRESS, BRIDGE
from tools.harness.cluster.processes import Program, command_output
from tools.harness.cluster.waiting import wait_for

KINDS = ("mnt", "net")
INTERFACE = "eth0"


class Namespaces:
    """Opened before the node starts, closed after it has stopped."""

    def __init__(self, name: str, address: str, pods: str, logs: Path) -> None:
        self._address = address
        self._pods = pods
        self._outside = f"veth-{name}"
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity"]
        self._keeper = Program("namespaces", command, logs / f"{name}-namespaces.log", os.environ)

    def open(self) -> Sequence[str]:
        """Make them, with a way to the first node and its pods; the command that enters them."""
        self._keeper.start()
        wait_for("the namespaces are there", self._are_apart, 10)
        enter = ("nsenter", f"--target={self._keeper.pid}", "--mount", "--net", "--")
        peer = f"peer name {INTERFACE} netns {self._keeper.pid}"
        for command in (
            f"ip link add {self._outside} type veth {peer}",
            f"ip link set {self._outside} master {BRIDGE} up",
            # Of an earlier node in this place the route is still there.
            f"ip route replace {self._pods} via {self._address}",
        ):
            command_output(command.split())
        for command in (
            "ip link set lo up",
            f"ip address add {self._address}/24 dev {INTERFACE}",
            f"ip link set {INTERFACE} up",
            f"ip route add default via {ADDRESS}",
        ):
            command_output([*enter, *command.split()])
        command_output([*enter, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        return enter

    def close(self) -> None:
        """Let go of them; interfaces and mounts end with them."""
        self._keeper.stop()
        # The kernel takes the interface away some time after its namespace.
        subprocess.run(["ip", "link", "delete", self._outside], capture_output=True, check=False)
        wait_for("the interface is gone", self._is_gone, 30)

    def _are_apart(self) -> bool:
        self._keeper.check()
        theirs = Path(f"/proc/{self._keeper.pid}/ns")
        own = Path("/proc/self/ns")
        is_entered = all((theirs / kind).readlink() != (own / kind).readlink() for kind in KINDS)
        return is_entered and Path(f"/proc/{self._keeper.pid}/comm").read_text() == "sleep\n"

    def _is_gone(self) -> bool:
        return self._outside not in Path("/proc/net/dev").read_text()
