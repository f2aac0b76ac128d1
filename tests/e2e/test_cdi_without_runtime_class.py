"""Slices on a node without a RuntimeClass: the toolkit's nvidia-ctk writes the cards' specification, as the chart has it run.

The driver is the simulated one, laid out as NVIDIA's is: libraries with its version and device nodes below a root of their own.
The program runs beside the cluster here, with the arguments of the chart's init containers.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chart.rendering import agent as pod_of_chart
from tests.chart.rendering import manifests
from tests.e2e.conftest import STATE, at_work
from tests.e2e.source_jobs import CUDA_SAMPLE, source_job
from tests.e2e.tenants import CUDA_TEST, SLICE_MIB, cuda_images
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program
from tools.harness.cluster.agent import Agent, AgentDirectories
from tools.harness.cluster.binaries import cdi_hook_path, ctk_path
from tools.harness.cluster.cluster import Cluster

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.simulation.driver_library import CUDA, NVML
from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE, STATE_NAME, SimulatedNode

pytestmark = pytest.mark.skipif(
    not ctk_path().exists(), reason="nvidia-ctk not built on this machine: run tests/e2e/install.sh"
)
DRIVER = STATE / "driver"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
CARDS = 195  # the major number of NVIDIA's character devices


def lay_out(node: SimulatedNode, nvidia_smi: NvidiaSmi) -> None:
    """The driver's root; the simulated driver finds its cards in a file beside its library."""
    libraries = DRIVER / LIBRARIES
    for directory in (libraries, DRIVER / "dev", DRIVER / "usr/bin"):
        directory.mkdir(parents=True)
    for name in (NVML, CUDA):
        versioned = f"{name.removesuffix('.1')}.{nvidia_smi.driver_version}"
        (libraries / name).symlink_to(versioned)
        shutil.copy(node.state.parent / name, libraries / versioned)
    (libraries / STATE_NAME).symlink_to(node.state)
    shutil.copy(nvidia_smi.path, DRIVER / "usr/bin/nvidia-smi")
    minors = {"nvidiactl": 255, **{f"nvidia{card.slot}": card.slot for card in node.view().cards}}
    for name, minor in minors.items():
        os.mknod(DRIVER / "dev" / name, 0o020666, os.makedev(CARDS, minor))


def write_specification(cluster: Cluster) -> None:
    """What the chart's init containers do, on the node's own paths."""
    values = (
        "deviceListStrategy=auto",
        "cdi.generator=/toolkit/nvidia-ctk",
        f"cdi.hook={cdi_hook_path()}",
    )
    places = (f"nvidiaDriverRoot={DRIVER}", f"dra.cdiDir={cluster.node.cdi_directory}")
    of_node = {"/driver-root": str(DRIVER), "/specification": str(STATE / "specification")}
    for container in pod_of_chart(manifests(*values, *places))["initContainers"]:
        words = [str(ctk_path()), *container["args"]]
        for inside, outside in of_node.items():
            words = [word.replace(inside, outside) for word in words]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def serving(
    cluster: Cluster,
    serving_agent: Agent,
    nvidia_smi: NvidiaSmi,
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Agent]:
    """An agent with `auto`, where nothing reads NVIDIA_VISIBLE_DEVICES."""
    serving_agent.stop()
    directories = AgentDirectories(STATE / "by-cdi", results / "by-cdi")
    flags = {"device-list-strategy": "auto", "cdi-dir": str(cluster.node.cdi_directory)}
    agent = Agent(cluster, directories, flags)
    agent.prepare("--driver-version", nvidia_smi.driver_version)
    cards = directories.simulated_node
    lay_out(SimulatedNode(cards / STATE_NAME), nvidia_smi)
    write_specification(cluster)
    libraries = [*cards.glob("*.so.1"), nvidia_smi.path, native_library("libgpuslice.so")]
    for image in cuda_images(compile_program(tmp_path_factory.mktemp("client")), libraries):
        cluster.node.load(image)
    agent.start()
    yield from at_work(cluster, agent)
    agent.stop()


def test_the_sample_job_shows_its_slice_without_a_runtime_class(
    cluster: Cluster, serving: Agent
) -> None:
    """And has no other card's device node."""
    assert cluster.kubectl("get", "runtimeclass", "--output=name") == ""
    assert "cards by cdi-cri (gpu-device-plugin/card)" in serving.program.log.read_text()

    job = source_job(CUDA_SAMPLE, "/usr/bin/nvidia-smi && ls /dev", CUDA_TEST)
    spec = job["spec"]["template"]["spec"]
    state = str(serving.directories.simulated_node / STATE_NAME)
    spec["volumes"] = [{"name": "driver", "hostPath": {"path": state, "type": "File"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "driver", "mountPath": str(DEFAULT_STATE)}]
    cluster.apply(job)
    cluster.kubectl("wait", "--for=condition=complete", "job/cuda-sample", "--timeout=300s")
    log = cluster.kubectl("logs", "-l", "app=cuda-sample", "--tail=-1")
    # The simulated driver shows every card, whatever device nodes there are; the slice has memory of one.
    assert {*re.findall(r"0MiB / +(\d+)MiB", log)} == {"0", str(SLICE_MIB)}
    nodes = [name for name in log.split() if name[:6] == "nvidia" and name[6:].isdigit()]
    assert len(nodes) == 1
