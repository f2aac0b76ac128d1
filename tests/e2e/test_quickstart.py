"""The commands of README's quick start, word for word, end with nvidia-smi showing the slice.

They run as the page has them, with the names that a reader puts in, and with the two values that the
page gives for a cluster without GPUs. The sample's image is made here under its published name: the
tests have no registry.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.agent import Agent, wait_for_allocatable
from tests.e2e.agent_image import AgentImage
from tests.e2e.cluster.binaries import provide_helm
from tests.e2e.cluster.cluster import NODE, Cluster
from tests.e2e.cluster.images import Image
from tests.e2e.cluster.processes import ProgramError
from tests.e2e.helm import CHART, RELEASE, RELEASE_NAMESPACE, Helm, left_on_nodes
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.tenants import SLICE_MIB, cuda_images
from tests.e2e.test_image import NOTHING
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program

from gpu_device_plugin.store.native import native_library

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "first-slice.yaml"


def quick_start(image: AgentImage, driver_version: str) -> str:
    """The commands, with names put in and the page's values for a cluster without GPUs."""
    found = re.search(
        r"```sh\n(kubectl create namespace.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert found is not None
    values = re.search(r"Without GPUs add `(.*?)`", (ROOT / "README.md").read_text())
    assert values is not None
    named = found[1].replace("--set image.tag=TAG", f"--set image.tag=TAG {values[1]}")
    names = {"IMAGE": image.repository, "TAG": image.tag, "NODE": NODE, "VERSION": driver_version}
    return re.sub(r"\b(IMAGE|TAG|NODE|VERSION)\b", lambda name: names[name[1]], named)


@pytest.fixture
def sample_image(
    cluster: Cluster, nvidia_smi: NvidiaSmi, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The sample's image on the node: nvidia-smi, and nothing of a driver."""
    libraries = [native_library(name) for name in ("libnvidia-ml.so.1", "libgpuslice.so")]
    program = compile_program(tmp_path_factory.mktemp("client"))
    base, _ = cuda_images(program, [nvidia_smi.path, *libraries])
    named = yaml.safe_load(SAMPLE.read_text())["spec"]["containers"][0]["image"]
    files = {**base.files, "bin/nvidia-smi": nvidia_smi.path.read_bytes()}
    cluster.node.load(Image(f"docker.io/{named}", files, base.links, ()))


@pytest.fixture
def clean(cluster: Cluster, serving_agent: Agent) -> Iterator[None]:
    """A node without an agent, and a cluster without our namespace, before and after."""
    without_namespace = (
        "delete",
        "namespace",
        RELEASE_NAMESPACE,
        "--ignore-not-found",
        "--wait=true",
    )
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    cluster.kubectl(*without_namespace)
    yield
    cluster.kubectl("delete", "-f", str(SAMPLE), "--ignore-not-found", "--grace-period=1")
    Helm(cluster)("uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout=280s")
    assert not left_on_nodes(cluster)
    cluster.kubectl(*without_namespace)


@pytest.mark.usefixtures("clean", "sample_image")
def test_the_quick_start_ends_with_nvidia_smi_showing_the_slice(
    cluster: Cluster, agent_image: AgentImage, nvidia_smi: NvidiaSmi
) -> None:
    places = {str(Path(cluster.binaries.kubectl).parent), str(Path(provide_helm()).parent)}
    done = subprocess.run(
        ["bash", "-euxc", quick_start(agent_image, nvidia_smi.driver_version)],
        cwd=ROOT,
        env={
            **os.environ,
            "KUBECONFIG": str(cluster.admin_kubeconfig),
            "PATH": os.pathsep.join([*places, os.environ["PATH"]]),
        },
        capture_output=True,
        text=True,
        timeout=700,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"0MiB / {SLICE_MIB}MiB" in done.stdout.replace("  ", " ").replace("|", "")
    check_views(cluster)
    assert "Phase:          Succeeded" in Helm(cluster)("test", RELEASE, "--timeout=240s")


@pytest.mark.usefixtures("clean")
def test_the_default_image_is_installed_only_where_a_node_has_it(
    cluster: Cluster, agent_image: AgentImage, tmp_path: Path
) -> None:
    """It is in no registry. The first node has this version of it, and none of a later one."""
    later = tmp_path / "chart"
    shutil.copytree(CHART, later)
    about = yaml.safe_load((later / "Chart.yaml").read_text())
    (later / "Chart.yaml").write_text(yaml.safe_dump({**about, "appVersion": "9.9.9"}))
    helm = Helm(cluster)
    words = ("install", RELEASE, "--dry-run=server")
    with pytest.raises(ProgramError, match=f"no node has {agent_image.repository}:9.9.9"):
        helm(*words, str(later))
    assert f"{agent_image.repository}:{agent_image.tag}" in helm(*words, str(CHART))


def check_views(cluster: Cluster) -> None:
    """`kubectl gpu` on the same cluster, with the admin's kubeconfig only."""
    assert "a=default/first-slice" in kubectl_gpu(cluster, "map")
    assert f"{SLICE_MIB} MiB of card 0, 30 % of its compute" in kubectl_gpu(
        cluster, "why", "default/first-slice"
    )
    assert "0 problems" in kubectl_gpu(cluster, "doctor")
    assert f"{SLICE_MIB}" in kubectl_gpu(cluster, "top")
