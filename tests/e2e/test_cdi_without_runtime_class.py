"""Slices on a node as the GPU Operator's NRI mode leaves it: no RuntimeClass, and nothing reads NVIDIA_VISIBLE_DEVICES.

The driver is the simulated one.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agent_image import AgentImage
from tests.e2e.conftest import STATE
from tests.e2e.source_jobs import CUDA_SAMPLE, source_job
from tests.e2e.tenants import CUDA_TEST, SLICE_MIB, cuda_images
from tests.e2e.test_image import NOTHING, the_agent
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program
from tools.harness.cluster import crio
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.binaries import toolkit_installer_path
from tools.harness.cluster.cdi_node import MANAGEMENT, CdiNode, lay_out
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import DAEMONSET, RELEASE_NAMESPACE, Helm, wait_for_rollout
from tools.harness.cluster.pods import FOUR_CARDS
from tools.harness.cluster.processes import Program

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.simulation.driver_library import NVML
from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE, STATE_NAME

pytestmark = [
    pytest.mark.skipif(
        not toolkit_installer_path().exists(),
        reason="the toolkit is not built on this machine: run tests/e2e/install.sh",
    ),
    pytest.mark.skipif(crio.is_chosen(), reason="these tests give CRI-O no NRI socket"),
]
PLACE = STATE / "nri"
DRIVER, NODE_STATE = PLACE / "driver", PLACE / STATE_NAME
CARDS = 4
LISTED = "import os; print(*os.listdir('/dev'))"


@pytest.fixture
def nri_plugin(cluster: Cluster, nvidia_smi: NvidiaSmi, results: Path) -> Iterator[Program]:
    """NVIDIA's plugin, on a node with the simulated driver."""
    lay_out(DRIVER, NODE_STATE, "v100", nvidia_smi.driver_version, [nvidia_smi.path])
    plugin = _cdi_node(cluster).start_plugin(results / "nri-plugin.log")
    yield plugin
    plugin.stop()
    shutil.rmtree(cluster.node.cdi_directory)


@pytest.fixture
def installed(
    cluster: Cluster,
    serving_agent: Agent,
    agent_image: AgentImage,
    nvidia_smi: NvidiaSmi,
    nri_plugin: Program,
) -> Iterator[Program]:
    """The chart as docs/install.md has it for such nodes."""
    serving_agent.stop()
    wait_for_allocatable(cluster, NOTHING)
    libraries = [nvidia_smi.path, *map(native_library, (NVML, "libgpuslice.so"))]
    for image in cuda_images(compile_program(PLACE), libraries):
        cluster.node.load(image)
    helm = Helm(cluster)
    helm.install(
        f"image.repository={agent_image.repository}",
        f"image.tag={agent_image.tag}",
        *_cdi_node(cluster).settings(),
    )
    wait_for_rollout(cluster, DAEMONSET)
    yield nri_plugin
    cluster.kubectl("delete", "job", "--all", "--wait=true")
    helm.uninstall()


def test_the_sample_job_shows_its_slice_without_a_runtime_class(
    cluster: Cluster, installed: Program
) -> None:
    """And has no other card's device node; the agent has all, from the plugin."""
    assert cluster.kubectl("get", "runtimeclass", "--output=name") == ""
    wait_for_allocatable(cluster, FOUR_CARDS)
    agent = the_agent(cluster)["metadata"]["name"]
    of_agent = ("-n", RELEASE_NAMESPACE, agent, "--container=agent")
    listed = cluster.kubectl("exec", *of_agent, "--", "python3", "-c", LISTED)
    assert len(cards_in(listed)) == CARDS
    given = re.findall(r"/([\w-]+): injecting CDI devices \[(.+?)\]", installed.log.read_text())
    assert set(given) == {(name, MANAGEMENT) for name in ("cdi-generate", "agent")}

    job = source_job(CUDA_SAMPLE, "/usr/bin/nvidia-smi && ls /dev", CUDA_TEST)
    spec = job["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "driver", "hostPath": {"path": str(NODE_STATE), "type": "File"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "driver", "mountPath": str(DEFAULT_STATE)}]
    cluster.apply(job)
    cluster.kubectl("wait", "--for=condition=complete", "job/cuda-sample", "--timeout=300s")
    log = cluster.kubectl("logs", "-l", "app=cuda-sample", "--tail=-1")
    # The simulated driver shows every card, whatever device nodes there are; the slice has memory of one.
    assert {*re.findall(r"0MiB / +(\d+)MiB", log)} == {"0", str(SLICE_MIB)}
    assert len(cards_in(log)) == 1


def _cdi_node(cluster: Cluster) -> CdiNode:
    return CdiNode(cluster.node, PLACE, DRIVER, NODE_STATE)


def cards_in(listing: str) -> list[str]:
    """Device nodes of cards among these words."""
    return [name for name in listing.split() if re.fullmatch(r"nvidia\d+", name)]
