"""README's quick starts as they run here: the commands of the page, and the images that they name.

The tests have no registry, so nvidia-smi's image is made for the run from this machine's own files.
"""

import re
import tempfile
from pathlib import Path

from tests.e2e.agent_image import AgentImage
from tests.e2e.tenants import cuda_images
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import ADDRESS, load_scheduler
from tools.harness.cluster.images import Image

from gpu_device_plugin.disk.native_library import native_library

ROOT = Path(__file__).resolve().parents[2]
SMI_IMAGE = "docker.io/library/nvidia-smi:1"
BUILT = "docker.io/library/gpu-device-plugin"
_AT = f" --set controller.clusterIP={ADDRESS}"


def with_gpus(image: AgentImage, driver_version: str) -> str:
    """The commands for a cluster with GPUs: names put in, and the values for simulated cards and this cluster."""
    simulated = f"--set simulate.profile=v100 --set simulate.driverVersion={driver_version}{_AT}"
    names = {"IMAGE": image.repository, "TAG": f"{image.tag} {simulated}", "NODE": NODE}
    text = _block("kubectl create namespace")
    return re.sub(r"\b(IMAGE|TAG|NODE)\b", lambda name: names[name[1]], text)


def without_gpus(driver_version: str) -> str:
    """The commands for kind, from the first kubectl on; what Docker would print is put in."""
    _, cut, rest = _block("docker build").partition("kubectl create namespace")
    text, count = re.subn(r'"\$\(docker run .*?\)"', f"{driver_version}{_AT}", rest)
    assert (cut, count) == ("kubectl create namespace", 1)
    return cut + text


def load_images(cluster: Cluster, agent: AgentImage, nvidia_smi: NvidiaSmi, *names: str) -> None:
    """What `kind load` would do: the agent's image under its name there, and nvidia-smi's under these."""
    load_scheduler(cluster)
    cluster.node.tag(agent.reference, f"{BUILT}:{agent.tag}")
    libraries = [native_library(name) for name in ("libnvidia-ml.so.1", "libgpuslice.so")]
    with tempfile.TemporaryDirectory() as place:
        base, _ = cuda_images(compile_program(Path(place)), [nvidia_smi.path, *libraries])
    files = {**base.files, "bin/nvidia-smi": nvidia_smi.path.read_bytes()}
    for name in names:
        cluster.node.load(Image(name, files, base.links, ()))


def _block(first: str) -> str:
    """The page's commands that begin with this one."""
    found = re.search(rf"```sh\n({first}.*?)```", _readme(), re.DOTALL)
    assert found is not None, first
    return found[1]


def _readme() -> str:
    return (ROOT / "README.md").read_text()
