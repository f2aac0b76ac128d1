"""One node of the cluster: containerd or CRI-O, a kubelet and kube-proxy."""

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.harness.cluster import crio
from tools.harness.cluster.binaries import Binaries
from tools.harness.cluster.credentials import PROXY, Credentials, node_user
from tools.harness.cluster.images import PAUSE, Image, write_archive
from tools.harness.cluster.layout import overlay, overlay_file, uncovered_proc
from tools.harness.cluster.oci_runtimes import oci_runtime
from tools.harness.cluster.processes import Program, ProgramError, command_output
from tools.harness.cluster.waiting import wait_for

KUBELET_DIRECTORY = Path("/var/lib/kubelet")
AGENT_STATE = "agent-state"
AGENT_RUN = "agent-run"
AGENT_LIBRARY = "agent-library"
# Directories that programs use whatever they are told, shown from the node's own: those on disk,
FIXED_DIRECTORIES = {
    "kubelet": KUBELET_DIRECTORY,
    "container-logs": Path("/var/log/containers"),
    "network-state": Path("/var/lib/cni"),
    AGENT_STATE: Path("/var/lib/gpu-device-plugin"),
    AGENT_LIBRARY: Path("/usr/local/lib/gpu-device-plugin"),
}
# and those that a boot finds empty.
VOLATILE_DIRECTORIES = {
    "containerd": Path("/run/containerd"),
    "crio": crio.RUN,
    "network-namespaces": Path("/var/run/netns"),
    AGENT_RUN: Path("/run/gpu-device-plugin"),
}
CONTAINERD_OCI_ROOT = VOLATILE_DIRECTORIES["containerd"] / "runc" / "k8s.io"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAXIMUM_PODS = 250
# The other kind copies an image's files for each container, and needs nothing of the kernel.
HAS_OVERLAY = "overlay" in Path("/proc/filesystems").read_text()
SNAPSHOTTER, STORAGE_DRIVER = ("overlayfs", "overlay") if HAS_OVERLAY else ("native", "vfs")


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Who a node is and where it keeps its things.

    Attributes:
        name: Of the Node object.
        address: Of the machine that the node would be.
        pods: The range of its pods' addresses.
        directory: What kubelet and runtime keep.
        logs: What they say.
        enter: The command that enters the node's namespaces; empty: it has those of the tests.
    """

    name: str
    address: str
    pods: str
    directory: Path
    logs: Path
    enter: Sequence[str] = ()


class Node:
    """containerd or CRI-O, the kubelet and kube-proxy of one node."""

    def __init__(self, place: NodePlace, binaries: Binaries, credentials: Credentials) -> None:
        self.place = place
        self.name = place.name
        self._binaries = binaries
        self._credentials = credentials
        self._socket = place.directory / "runtime.sock"
        self._loaded: dict[str, Image] = {}
        self._store = crio.Store(self._file("crio-root"), STORAGE_DRIVER, place.enter)
        self._is_crio = crio.is_chosen()
        runtime = crio.provide_crio() if self._is_crio else binaries.containerd / "containerd"
        self.runtime = self._program(runtime.name, runtime, "--config", self._file("runtime.toml"))
        self.kubelet = self._program("kubelet", binaries.kubernetes / "kubelet", *self._flags())
        proxy = binaries.kubernetes / "kube-proxy"
        self.proxy = self._program("kube-proxy", proxy, *self._proxy_flags())

    @property
    def programs(self) -> tuple[Program, ...]:
        """All of them, in the order of their start."""
        return (self.runtime, self.kubelet, self.proxy)

    @property
    def kubelet_directory(self) -> Path:
        """The kubelet's directory, as the tests see it."""
        return self.place.directory / "kubelet"

    @property
    def cdi_directory(self) -> Path:
        """Where the runtime finds CDI files."""
        return self._file("cdi")

    @property
    def nri_socket(self) -> Path:
        """Where containerd takes plugins that change containers; CRI-O takes none here."""
        return self._file("nri.sock")

    @property
    def static_pods(self) -> Path:
        """The directory whose manifests the kubelet runs without the API."""
        return self.place.directory / "static-pods"

    def start(self, images: Sequence[Image]) -> None:
        """Start the runtime, give it the images, and start the kubelet."""
        for name, target in {**FIXED_DIRECTORIES, **VOLATILE_DIRECTORIES}.items():
            overlay(target, self.place.directory / name, self.place.enter)
        if self._is_crio:
            crio.hide_unmounted_cgroups(self._file("cgroups"), self.place.enter)
        self.static_pods.mkdir()
        self._file("runtime.toml").write_text(self._runtime_settings())
        self._file("kubelet.json").write_text(json.dumps(self._kubelet_settings()))
        networks = self._file("networks")
        networks.mkdir()
        (networks / "10-e2e.conflist").write_text(json.dumps(_network(self.place.pods)))
        self.runtime.start()
        wait_for("the runtime answers", self._runtime_answers, 30)
        for image in images:
            self.load(image)
        self.kubelet.start()
        self.proxy.start()

    def load(self, image: Image) -> None:
        """Make an image known to this node; one that it has stays."""
        if self._loaded.get(image.reference) == image:
            return
        archive = self._file("image.tar")
        write_archive(image, archive)
        self.load_archive(archive, image.reference, "docker-archive")
        archive.unlink()
        self._loaded[image.reference] = image

    def load_archive(self, archive: Path, reference: str, kind: str = "oci-archive") -> None:
        """Make the image of this name in an archive known to this node, as skopeo calls its kind."""
        if self._is_crio:
            self._store.copy(f"{kind}:{archive}:{reference}", reference)
        else:
            self.containerd_command(
                "images", "import", "--local", "--snapshotter", SNAPSHOTTER, str(archive)
            )

    def tag(self, reference: str, other: str) -> None:
        """Give an image that this node has another name too."""
        if self._is_crio:
            self._store.copy(f"{self._store.place}{reference}", other)
        else:
            self.containerd_command("images", "tag", "--force", reference, other)

    def add_cdi_spec(self, name: str, content: str) -> None:
        """Make devices known to the runtime, which looks at the directory for every container."""
        self.cdi_directory.mkdir(exist_ok=True)
        (self.cdi_directory / f"{name}.json").write_text(content)

    def restart_kubelet(self, *, kill: bool = False) -> None:
        """End the kubelet, politely or not, and start it again; running pods are left alone."""
        if kill:
            self.kubelet.kill()
        else:
            self.kubelet.stop()
        self.kubelet.start()

    def power_off(self) -> None:
        """Everything is killed at once; what is on disk stays, /run does not."""
        self.proxy.kill()
        self.kubelet.kill()
        self._kill_containers()
        wait_for("no container runs", lambda: not self._containers(), 30)
        self.runtime.kill()
        self._socket.unlink()
        for name in VOLATILE_DIRECTORIES:
            self._empty(self._file(name))

    def power_on(self) -> None:
        """A boot, with an id of its own; the containers are the kubelet's to start again."""
        boot_id = self._file("boot-id")
        boot_id.write_text(f"{uuid.uuid4()}\n")
        # A user namespace may mount /proc where one that nothing covers is there already.
        uncovered_proc(self._file("proc"), self.place.enter)
        overlay_file(BOOT_ID, boot_id, self.place.enter)
        self.runtime.start()
        wait_for("the runtime answers", self._runtime_answers, 30)
        self.kubelet.start()
        self.proxy.start()

    def stop(self) -> None:
        """Stop kube-proxy and the kubelet, then every container, then the runtime."""
        self.proxy.stop()
        self.kubelet.stop()
        if self.runtime.running():
            self._kill_containers()
        self.runtime.stop()

    def _kill_containers(self) -> None:
        for identity in self._containers():
            try:
                self._oci_command("kill", identity, "KILL")
            except ProgramError:
                # It may have ended with its sandbox, which was killed before it.
                if identity in self._containers():
                    raise

    def _containers(self) -> Sequence[str]:
        """The ids of those that have not ended."""
        told = json.loads(self._oci_command("list", "--format", "json")) or []
        return [str(each["id"]) for each in told if each["status"] != "stopped"]

    def _oci_command(self, *arguments: str) -> str:
        """Ask this node's OCI runtime about the containers of containerd or CRI-O."""
        root = crio.OCI_ROOT if self._is_crio else CONTAINERD_OCI_ROOT
        command_output([*self.place.enter, "mkdir", "-p", str(root)])
        command = [*self.place.enter, str(oci_runtime()), "--root", str(root), *arguments]
        return command_output(command)

    def _empty(self, directory: Path) -> None:
        """Network namespaces and root file systems are mounts of the node's namespace."""
        mounts = command_output([*self.place.enter, "cat", "/proc/self/mounts"]).splitlines()
        below = [fields[1] for line in mounts if (fields := line.split())]
        roots = {directory, VOLATILE_DIRECTORIES.get(directory.name, directory).resolve()}
        for mount in reversed(below):
            if roots.intersection(Path(mount).parents):
                command_output([*self.place.enter, "umount", "--lazy", mount])
        for entry in directory.iterdir():
            is_tree = entry.is_dir() and not entry.is_symlink()
            shutil.rmtree(entry) if is_tree else entry.unlink()

    def containerd_command(self, *arguments: str) -> str:
        """Ask this node's containerd with its own client."""
        client = str(self._binaries.containerd / "ctr")
        command = [*self.place.enter, client, "-a", str(self._socket), "-n", "k8s.io", *arguments]
        return command_output(command)

    def _runtime_answers(self) -> bool:
        self.runtime.check()
        return self._socket.exists()

    def _file(self, name: str) -> Path:
        return self.place.directory / name

    def _program(self, name: str, path: Path, *arguments: str | Path) -> Program:
        command = [*self.place.enter, str(path), *map(str, arguments)]
        environment = {**os.environ, "PATH": self._binaries.path_variable()}
        return Program(name, command, self.place.logs / f"{self.name}-{name}.log", environment)

    def _flags(self) -> list[str]:
        return [
            f"--config={self._file('kubelet.json')}",
            f"--root-dir={KUBELET_DIRECTORY}",
            f"--kubeconfig={self._credentials.kubeconfig(node_user(self.name))}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.place.address}",
        ]

    def _proxy_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self._credentials.kubeconfig(PROXY)}",
            f"--hostname-override={self.name}",
            f"--bind-address={self.place.address}",
            "--proxy-mode=iptables",
            # The machine's limits are not this namespace's to set.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ]

    def _kubelet_settings(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.place.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self._credentials.path("ca.crt"))},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "staticPodPath": str(self.static_pods),
            "podLogsDir": str(self._file("pod-logs")),
            "maxPods": MAXIMUM_PODS,
            "nodeStatusUpdateFrequency": "2s",
            # A kubelet whose claim is refused, or whose driver is away, tries again so much later.
            "syncFrequency": "5s",
            "fileCheckFrequency": "2s",
            "resolvConf": "",
            "clusterDomain": "cluster.local",
            # Small machines, containers and old control groups included.
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        }

    def _runtime_settings(self) -> str:
        if self._is_crio:
            return self._store.settings(self._socket, self._file("networks"), self.cdi_directory)
        return f"""version = 3
root = "{self._file("containerd-root")}"
state = "{VOLATILE_DIRECTORIES["containerd"]}"
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "{self.nri_socket}"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self._file("containerd-opt")}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{SNAPSHOTTER}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{self.cdi_directory}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{self._binaries.cni}"]
    conf_dir = "{self._file("networks")}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{oci_runtime()}"
"""


def _network(pods: str) -> dict[str, object]:
    # The route leads to addresses of services, which kube-proxy answers on the node.
    routes = [{"dst": "0.0.0.0/0"}]
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": routes}
    link = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "e2e", "plugins": [link]}
