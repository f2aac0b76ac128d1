"""The commands of README's quick starts end with nvidia-smi showing the slice.

Those for a cluster with GPUs run with the names that a reader puts in, and with the two values for
simulated cards; those for kind from the first kubectl on. Both get the controller's address: this
cluster has no DNS.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.agent_image import AgentImage
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.quick_start import ROOT, SMI_IMAGE, load_images, with_gpus, without_gpus
from tests.e2e.tenants import SLICE_MIB
from tests.e2e.test_image import NOTHING
from tests.nvidia_smi import NvidiaSmi
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.binaries import provide_helm
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import CHART, RELEASE, RELEASE_NAMESPACE, Helm, left_on_nodes
from tools.harness.cluster.processes import ProgramError

SAMPLE = ROOT / "samples" / "first-slice.yaml"


@pytest.fixture
def images(cluster: Cluster, agent_image: AgentImage, nvidia_smi: NvidiaSmi) -> None:
    """What the pages' pods run, on the node: nvidia-smi, and nothing of a driver."""
    named = yaml.safe_load(SAMPLE.read_text())["spec"]["containers"][0]["image"]
    load_images(cluster, agent_image, nvidia_smi, SMI_IMAGE, f"docker.io/{named}")


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


@pytest.mark.usefixtures("clean", "images")
@pytest.mark.parametrize("kind", ["with GPUs", "without GPUs"])
def test_the_quick_starts_end_with_nvidia_smi_showing_the_slice(
    cluster: Cluster, agent_image: AgentImage, nvidia_smi: NvidiaSmi, kind: str
) -> None:
    version = nvidia_smi.driver_version
    has_gpus = kind == "with GPUs"
    commands = with_gpus(agent_image, version) if has_gpus else without_gpus(version)
    programs = (cluster.binaries.kubectl, provide_helm())
    places = [str(Path(program).parent) for program in programs]
    done = subprocess.run(
        ["bash", "-euxc", commands],
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
    if has_gpus:
        check_views(cluster)


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
    assert ": 0 problems" in kubectl_gpu(cluster, "doctor")
    assert f"{SLICE_MIB}" in kubectl_gpu(cluster, "top")
