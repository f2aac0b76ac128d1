"""Evaluation without GPUs: containers receive the simulated driver, by the agent's answer or by CDI.

The pod's image is one of the user's own, with NVIDIA's nvidia-smi in it and nothing of a driver.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import STATE
from tests.e2e.tenants import SLICE_MIB, cuda_images, row
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program
from tools.harness.cluster.agent import Agent, AgentDirectories
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.images import Image
from tools.harness.cluster.pods import CORE, COUNT, FOUR_CARDS, MEMORY, container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode, cdi_spec

OWN_IMAGE = "e2e.local/with-nvidia-smi:1"
SMI = "/usr/bin/nvidia-smi"


@pytest.fixture(scope="module")
def own_image(
    cluster: Cluster, nvidia_smi: NvidiaSmi, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """What the commands of docs/install.md make of a base image."""
    libraries = [native_library(name) for name in ("libnvidia-ml.so.1", "libgpuslice.so")]
    program = compile_program(tmp_path_factory.mktemp("client"))
    base, _ = cuda_images(program, [nvidia_smi.path, *libraries])
    files = {**base.files, SMI.lstrip("/"): nvidia_smi.path.read_bytes()}
    cluster.node.load(Image(OWN_IMAGE, files, base.links, ()))
    return OWN_IMAGE


@pytest.fixture(params=["by the answer", "by CDI"])
def evaluating(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    serving_agent: Agent,
    nvidia_smi: NvidiaSmi,
    results: Path,
) -> Iterator[Agent]:
    """An agent of simulated cards with the driver version that nvidia-smi accepts."""
    serving_agent.stop()
    is_by_cdi = request.param == "by CDI"
    directories = AgentDirectories(STATE / "evaluating", results / "evaluation")
    cards = directories.simulated_node
    by_answer = {"simulator-dir": str(cards), "nvml-library": ""}
    agent = Agent(
        cluster, directories, {"device-list-strategy": "cdi-cri"} if is_by_cdi else by_answer
    )
    agent.prepare("--driver-version", nvidia_smi.driver_version)
    if is_by_cdi:
        spec = cdi_spec(SimulatedNode(cards / STATE_NAME))
        cluster.node.add_cdi_spec("nvidia", json.dumps(spec))
    agent.start()
    yield agent
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    cluster.kubectl("label", "node", NODE, "ack.node.gpu.schedule=core_mem", "--overwrite")
    agent.stop()


@pytest.fixture
def show(cluster: Cluster, own_image: str) -> Callable[..., str]:
    """Starts a pod of that image and tells what its nvidia-smi prints."""

    def shown(name: str, memory: int, core: int | None, *words: str, **labels: str) -> str:
        body = pod(name, container("main", image=own_image, resources=slice_of(memory, core)))
        body["metadata"]["labels"] |= {
            f"aliyun.com/{k.replace('_', '-')}": labels[k] for k in labels
        }
        cluster.apply(body)
        cluster.wait_for_phase(name, "Running")
        return cluster.kubectl("exec", name, "--", SMI, *words)

    return shown


def wait_until_offered(cluster: Cluster, expected: dict[str, str]) -> None:
    """Return when the node's allocatable has these of our resources, and no other above 0."""

    def offered() -> bool:
        told = cluster.get("node", NODE)["status"]["allocatable"]
        ours = {name: told.get(name, "0") for name in (MEMORY, CORE, COUNT)}
        return ours == {MEMORY: "0", CORE: "0", COUNT: "0", **expected}

    wait_for(f"the node offers {expected}", offered, 60, 0.3)


@pytest.mark.usefixtures("evaluating")
def test_nvidia_smi_of_the_users_own_image_shows_the_slice(
    cluster: Cluster, show: Callable[..., str]
) -> None:
    wait_until_offered(cluster, FOUR_CARDS)
    assert row(show("one", 2, 30))["memory"] == f"0MiB / {SLICE_MIB}MiB"


def test_a_pod_of_two_cards_sees_both_and_no_other(
    cluster: Cluster, evaluating: Agent, show: Callable[..., str]
) -> None:
    cluster.kubectl("label", "node", NODE, "ack.node.gpu.schedule=cgpu", "--overwrite")
    wait_until_offered(cluster, {MEMORY: "60", COUNT: "4"})
    query = ("--query-gpu=uuid", "--format=csv,noheader")
    seen = show("two", 8, None, *query, gpu_count="2").split()
    (grant,) = [grant for grant in evaluating.grants() if grant.pod.name == "two"]
    assert len(seen) == 2
    assert sorted(seen) == sorted(grant.devices)
