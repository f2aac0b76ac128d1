"""Tenants: containers of the real containerd in which a CUDA program does what it is told.

The image is made for the run from this machine's own files: a static busybox, glibc, and the
told program of tests/isolation. The driver's libraries come from the simulated node by CDI.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.images import Image, ImageError
from tools.harness.cluster.pods import pod
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode, cdi_spec

CUDA_TEST = "e2e.local/cuda-test:1"
OWN_PRELOAD = "e2e.local/own-preload:1"
MIB = 1024 * 1024
SLICE_MIB = 2154  # 2 of 15 units of a 16160 MiB V100
OUT_OF_MEMORY = 2
INSIDE = "/usr/local/lib/gpu-device-plugin"
APPLETS = (
    *("sh", "cat", "echo", "env", "grep", "head", "id", "ls", "mkfifo", "printf", "ps", "sleep"),
    *("tail", "touch", "true", "wc"),
)
# The program answers each line of /told/in with a line of /told/out; the shell keeps it open.
SERVE = """
mkfifo /told/in
: >/told/out
client </told/in >>/told/out 2>/told/errors &
exec 3>/told/in
trap 'exit 0' TERM
while :; do sleep 1; done
"""
TELL = """
lines=$(wc -l </told/out)
echo "$0" >/told/in
tries=0
while [ "$(wc -l </told/out)" -le "$lines" ] && [ $tries -lt 2000 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
tail -n +$((lines + 1)) /told/out
"""


def cuda_images(program: Path, others: Iterable[Path]) -> tuple[Image, Image]:
    """The tenants' image, and one that brings an /etc/ld.so.preload of its own.

    Args:
        program: The told program.
        others: What else must find its libraries in the image.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise ImageError("busybox is not installed; run tests/e2e/install.sh")
    files = {
        "bin/busybox": Path(busybox).read_bytes(),
        "bin/client": program.read_bytes(),
        **{path.lstrip("/"): Path(path).read_bytes() for path in _needed([program, *others])},
    }
    (loader,) = (content for name, content in files.items() if "ld-linux" in name)
    files["bin/without-preload"] = loader.replace(b"/etc/ld.so.preload", b"/etc/ld.so.nothing")
    links = {f"bin/{name}": "busybox" for name in APPLETS}
    own = {**files, "etc/ld.so.preload": b"/usr/lib/of-the-image.so\n"}
    return Image(CUDA_TEST, files, links, ()), Image(OWN_PRELOAD, own, links, ())


def prepare_for_tenants(cluster: Cluster, agent: Agent, nvidia_smi: NvidiaSmi, place: Path) -> None:
    """Make the agent's cards of nvidia-smi's driver, known to containerd by CDI, and the tenants' images.

    Args:
        cluster: Its first node is the agent's.
        agent: One that has not been started.
        nvidia_smi: The program, which containers find at /usr/bin/nvidia-smi.
        place: A directory where the told program is compiled.
    """
    agent.prepare("--driver-version", nvidia_smi.driver_version)
    node = SimulatedNode(agent.directories.simulated_node / STATE_NAME)
    spec = cdi_spec(node, {"/usr/bin/nvidia-smi": nvidia_smi.path})
    cluster.node.add_cdi_spec("nvidia", json.dumps(spec))
    libraries = [*node.state.parent.glob("*.so.1"), native_library("libgpuslice.so")]
    for image in cuda_images(compile_program(place), [nvidia_smi.path, *libraries]):
        cluster.node.load(image)


def _needed(programs: Sequence[Path]) -> set[str]:
    """Paths of the shared libraries of these programs, and of the loader itself."""
    found: set[str] = set()
    for program in programs:
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        found |= set(re.findall(r"(?:=>|^)\s*(/\S+) \(0x", told, re.MULTILINE))
    return found


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod with one told program in it."""

    cluster: Cluster
    name: str

    def run(self, *command: str, seconds: float = 300.0) -> str:
        """`kubectl exec`: what the command prints."""
        return self.cluster.kubectl("exec", self.name, "--", *command, seconds=seconds)

    def told(self, line: str) -> list[int]:
        """The program's answer: a result of CUDA, then figures."""
        answer = self.run("sh", "-c", TELL, line).split()
        assert answer, f"{self.name}: no answer to {line!r}; {self.run('cat', '/told/errors')}"
        return [int(word) for word in answer]

    def tell(self, line: str) -> None:
        """Have it begin something that takes long."""
        self.run("sh", "-c", 'echo "$0" >/told/in', line)

    def open(self) -> None:
        """Have it start CUDA and make a context."""
        assert self.told("init") == [0]
        assert self.told("retain") == [0]

    def hold(self, mib: int) -> None:
        """Have it take memory until it holds so much, its context included."""
        result, free, total = self.told("info")
        assert result == 0
        assert self.told(f"alloc 0 {mib * MIB - (total - free)}") == [0]

    def once_without_preload(self, *lines: str) -> list[list[int]]:
        """The same, started by a loader that reads no /etc/ld.so.preload: the library is not there."""
        return self.once(*lines, client="without-preload /bin/client")

    def work(self, seconds: int = 600) -> None:
        """Have it keep the card as busy as it may, with kernels of 1 ms."""
        self.tell(f"work stream 1000000 {seconds}")

    def once(self, *lines: str, client: str = "client") -> list[list[int]]:
        """Another process in the container, as `kubectl exec` starts it; its answers."""
        script = f'printf "%s\\n" "$@" | {client}'
        answers = self.run("sh", "-c", script, "sh", *lines).splitlines()
        return [[int(word) for word in answer.split()] for answer in answers]

    def nvidia_smi(self, *arguments: str) -> str:
        """What the real nvidia-smi prints in the container."""
        return self.run("/usr/bin/nvidia-smi", *arguments)


def tenant_pod(
    name: str,
    resources: Mapping[str, Any] | None,
    image: str = CUDA_TEST,
    script: str = SERVE,
    **spec: Any,
) -> dict[str, Any]:
    """The pod of a tenant; `spec` goes to the container, `pod_` entries to the pod."""
    for_pod = {key.removeprefix("pod_"): value for key, value in spec.items() if "pod_" in key}
    for_container = {key: value for key, value in spec.items() if "pod_" not in key}
    body = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "told", "mountPath": "/told"}],
        **({"resources": resources} if resources else {}),
        **for_container,
    }
    return pod(name, body, volumes=[{"name": "told", "emptyDir": {}}], **for_pod)


def start_tenant(cluster: Cluster, body: Mapping[str, Any]) -> Tenant:
    """Create the pod and wait until its program listens."""
    name = str(body["metadata"]["name"])
    cluster.apply(body)
    cluster.wait_for_phase(name, "Running")
    tenant = Tenant(cluster, name)
    wait_for(f"{name} listens", lambda: "out" in tenant.run("ls", "/told").split())
    return tenant


def row(table: str) -> Mapping[str, str]:
    """Memory and utilisation columns of the only card in nvidia-smi's table."""
    found = re.findall(r"\|\s+(\d+MiB / +\d+MiB) \|\s+(\d+)%", table)
    assert len(found) == 1, table
    return {"memory": " ".join(found[0][0].split()), "percent": found[0][1]}


def is_about(percent: float, wanted: float) -> bool:
    """No more than its share, and not starved: how exact it is, tests/isolation say in steps of time.

    These kernels and the library's timers run on the clock of a machine that runs a Kubernetes too.
    """
    return wanted * 0.6 <= percent <= wanted * 1.1


def check_capped(tenant: Tenant) -> None:
    """A process that comes in again sees the slice, and is refused what the card would have."""
    answers = tenant.once("init", "retain", "info", f"alloc 0 {SLICE_MIB * MIB}")

    assert answers[:2] == [[0], [0]]
    assert answers[2][2] == SLICE_MIB * MIB
    assert answers[3] == [OUT_OF_MEMORY]


def same_card(agent: Agent, *tenants: Tenant) -> str:
    """The card that all of them have a slice of."""
    granted = {grant.pod.name: grant.devices for grant in agent.grants()}
    (cards,) = {granted[tenant.name] for tenant in tenants}
    (card,) = cards
    return card
