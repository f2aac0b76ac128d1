"""Slices on a node as the GPU Operator's NRI mode leaves it: no RuntimeClass, and nothing reads NVIDIA_VISIBLE_DEVICES.

NVIDIA's own installer writes the specification for management access and is the NRI plugin; the chart's pod asks it for
its cards by annotation and writes the specification of the slices. The driver is the simulated one, laid out as NVIDIA's
is: libraries with its version and device nodes below a root of their own.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.agent_image import AgentImage
from tests.e2e.conftest import FOUR_CARDS, STATE
from tests.e2e.source_jobs import CUDA_SAMPLE, source_job
from tests.e2e.tenants import CUDA_TEST, SLICE_MIB, cuda_images
from tests.e2e.test_image import NOTHING, the_agent, wait_for_rollout
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program
from tools.harness.cluster import crio
from tools.harness.cluster.agent import PROGRAM, Agent, wait_for_allocatable
from tools.harness.cluster.binaries import cdi_hook_path, ctk_path, toolkit_installer_path
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import RELEASE_NAMESPACE, Helm
from tools.harness.cluster.processes import Program, command_output
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.simulation.driver_library import CUDA, NVML
from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE, STATE_NAME

pytestmark = [
    pytest.mark.skipif(
        not toolkit_installer_path().exists(),
        reason="the toolkit is not built on this machine: run tests/e2e/install.sh",
    ),
    pytest.mark.skipif(crio.is_chosen(), reason="these tests give CRI-O no NRI socket"),
]
PLACE = STATE / "nri"
DRIVER, TOOLKIT, NODE_STATE = PLACE / "driver", PLACE / "nvidia", PLACE / STATE_NAME
LIBRARIES = "usr/lib/x86_64-linux-gnu"
MAJOR = 195  # of NVIDIA's character devices
CARDS = 4
OPERATOR = "gpu-operator"
MANAGEMENT = "management.nvidia.com/gpu=all"
LISTED = "import os; print(*os.listdir('/dev'))"


def lay_out(nvidia_smi: NvidiaSmi) -> None:
    """The driver's root. Its state lies elsewhere: what mounts the root may not write there."""
    version, libraries = nvidia_smi.driver_version, DRIVER / LIBRARIES
    for directory in (libraries, DRIVER / "dev", DRIVER / "usr/bin"):
        directory.mkdir(parents=True)
    words = ("simulate", "create", "--profile=v100", f"--driver-version={version}")
    command_output([str(PROGRAM), *words, f"--state={libraries}"])
    (libraries / STATE_NAME).rename(NODE_STATE)
    for name in (NVML, CUDA):
        versioned = f"{name.removesuffix('.1')}.{version}"
        (libraries / name).rename(libraries / versioned)
        (libraries / name).symlink_to(versioned)
    shutil.copy(nvidia_smi.path, DRIVER / "usr/bin/nvidia-smi")
    minors = {"nvidiactl": 255, **{f"nvidia{card}": card for card in range(CARDS)}}
    for name, minor in minors.items():
        os.mknod(DRIVER / "dev" / name, 0o020666, os.makedev(MAJOR, minor))


@pytest.fixture
def nri_plugin(cluster: Cluster, nvidia_smi: NvidiaSmi, results: Path) -> Iterator[Program]:
    """What runs in the operator's toolkit container, on the node's own paths."""
    lay_out(nvidia_smi)
    for program in (ctk_path(), cdi_hook_path()):
        packaged = PLACE / "package/usr/bin" / program.name
        packaged.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(program, packaged)
    specifications = cluster.node.cdi_directory
    flags = {
        "debug": "true",
        "enable-nri-plugin": "true",
        "nri-socket": cluster.node.nri_socket,
        "nri-namespace": OPERATOR,
        "nri-management-cdi-device-namespaces": RELEASE_NAMESPACE,
        "cdi-enabled": "true",
        "cdi-output-dir": specifications,
        "driver-root": DRIVER,
        "driver-root-ctr-path": DRIVER,
        "create-device-nodes": "none",
        "toolkit-install-dir": TOOLKIT,
        "toolkit-source-root": PLACE / "package",
        "ignore-errors": "true",  # the package has only what CDI needs
        "pid-file": PLACE / "toolkit.pid",
    }
    command = [str(toolkit_installer_path()), *(f"--{key}={value}" for key, value in flags.items())]
    plugin = Program("nri-plugin", command, results / "nri-plugin.log", os.environ)
    plugin.start()
    wait_for("the NRI plugin runs", lambda: "Waiting for signal" in plugin.tail(), 30)
    (written,) = specifications.glob("management.nvidia.com-*")
    specification = yaml.safe_load(written.read_text())
    # What a real driver has in the kernel.
    state = {"hostPath": str(NODE_STATE), "containerPath": str(DEFAULT_STATE), "options": ["bind"]}
    specification["containerEdits"]["mounts"].append(state)
    written.write_text(yaml.safe_dump(specification))
    yield plugin
    plugin.stop()
    shutil.rmtree(specifications)


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
        "deviceListStrategy=auto",
        "cdi.managementAnnotation=true",
        f"cdi.generator={TOOLKIT}/toolkit/nvidia-ctk.real",
        f"policies.cdiNamespaces={{{OPERATOR}}}",
        f"nvidiaDriverRoot={DRIVER}",
        f"dra.cdiDir={cluster.node.cdi_directory}",
    )
    wait_for_rollout(cluster)
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
    assert "cards by cdi-cri (gpu-device-plugin/card)" in cluster.kubectl("logs", *of_agent)
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


def cards_in(listing: str) -> list[str]:
    """Device nodes of cards among these words."""
    return [name for name in listing.split() if re.fullmatch(r"nvidia\d+", name)]
