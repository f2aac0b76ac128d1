"""CRI-O, which runs a node's containers in containerd's place where CRI is crio.

conmon, which it starts for each container, and skopeo, which fills its store, are Debian packages.
Run as a program it builds what the cache lacks.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.harness.cluster.binaries import (
    CNI_DIRECTORY,
    BinaryError,
    cache_directory,
    one_builder,
    provide_tool,
    source_of,
)
from tools.harness.cluster.images import PAUSE
from tools.harness.cluster.layout import overlay_file
from tools.harness.cluster.oci_runtimes import oci_runtime
from tools.harness.cluster.processes import command_output

# github.com/cri-o/cri-o; its interface to kubelets is the same with each Kubernetes of the tests.
CRIO = "1.34.0"
MODULE = "github.com/cri-o/cri-o"
# Without the libraries gpgme and btrfs.
_TAGS = "containers_image_openpgp exclude_graphdriver_btrfs btrfs_noversion seccomp"
# A boot finds it empty.
RUN = Path("/run/crio")
OCI_ROOT = RUN / "oci"
CGROUPS = Path("/proc/cgroups")


def is_chosen() -> bool:
    """Whether the nodes have it; CRI is containerd by default."""
    name = os.environ.get("CRI", "containerd")
    if name not in ("containerd", "crio"):
        raise BinaryError(f"CRI is {name}; it may be containerd or crio")
    return name == "crio"


def provide_crio() -> Path:
    """Build it and its helper pinns where the cache lacks them, and say where crio stands.

    Raises:
        BinaryError: It cannot be built here: it needs a C compiler and libseccomp.
    """
    program = cache_directory() / f"crio-{CRIO}" / "bin" / "crio"
    provide_tool(program, MODULE, CRIO, ("-tags", _TAGS), is_cgo=True)
    pinns = program.with_name("pinns")
    with one_builder(pinns.parents[1]):
        if not pinns.exists():
            sources = map(str, (source_of(MODULE, CRIO) / "pinns" / "src").glob("*.c"))
            subprocess.run(["cc", "-std=c99", "-Os", "-o", str(pinns), *sources], check=True)
    return program


def hide_unmounted_cgroups(own: Path, enter: Sequence[str]) -> None:
    """CRI-O limits what /proc/cgroups lists; a hybrid tree's v1 lacks what its v2 part has: the runtime fails.

    Args:
        own: A file to show instead.
        enter: The command that enters the node's namespaces.
    """
    listed = [line.split() for line in CGROUPS.read_text().splitlines()]
    own.write_text("".join(f"{' '.join(words)}\n" for words in listed if words[1] != "0"))
    overlay_file(CGROUPS, own, enter)


class Store:
    """The images of one node."""

    def __init__(self, directory: Path, driver: str, enter: Sequence[str]) -> None:
        self.directory = directory
        self.driver = driver
        self._enter = enter

    def copy(self, source: str, reference: str) -> None:
        """Keep an image under this name; the source is in skopeo's words."""
        names = (source, f"{self.place}{reference}")
        command_output([*self._enter, "skopeo", "--insecure-policy", "copy", "--quiet", *names])

    @property
    def place(self) -> str:
        """Skopeo's word for it."""
        return f"containers-storage:[{self.driver}@{self.directory}+{RUN}/storage]"

    def settings(self, socket: Path, networks: Path, cdi: Path) -> str:
        """What crio reads."""
        program, oci = provide_crio(), oci_runtime()
        return f"""[crio]
root = "{self.directory}"
runroot = "{RUN}/storage"
storage_driver = "{self.driver}"
version_file = "{RUN}/version"
# An end without it would empty the store.
clean_shutdown_file = ""
[crio.api]
listen = "{socket}"
[crio.runtime]
default_runtime = "{oci.name}"
cgroup_manager = "cgroupfs"
cdi_spec_dirs = ["{cdi}"]
hooks_dir = []
container_exits_dir = "{RUN}/exits"
container_attach_socket_dir = "{RUN}"
namespaces_dir = "{RUN}"
pinns_path = "{program.with_name("pinns")}"
[crio.runtime.runtimes.{oci.name}]
runtime_path = "{oci}"
runtime_root = "{OCI_ROOT}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{PAUSE}"
pause_command = ""
[crio.network]
network_dir = "{networks}"
plugin_dirs = ["{CNI_DIRECTORY}"]
[crio.nri]
enable_nri = false
"""


if __name__ == "__main__":
    if is_chosen():
        sys.stdout.write(f"{provide_crio()}\n")
