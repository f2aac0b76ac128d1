"""The half that the user feels: caps and an honest nvidia-smi in containers of a real cluster.

NVIDIA's own nvidia-smi is downloaded for the run; where that is impossible these tests are
skipped and say why.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent import Agent, AgentDirectories, wait_for_allocatable
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.conftest import FOUR_CARDS, STATE
from tests.e2e.pods import slice_of
from tests.e2e.tenants import (
    Tenant,
    cuda_images,
    start_tenant,
    tenant_pod,
)
from tests.nvidia_smi import NvidiaSmi, UnavailableError, download
from tests.told import compile_program

from gpu_device_plugin.simulation.containers import cdi_spec
from gpu_device_plugin.simulation.node import SimulatedNode

OUT_OF_MEMORY = 2
SLICE_MIB = 2154  # 2 of 15 units of a 16160 MiB V100

Start = Callable[..., Tenant]


@pytest.fixture(scope="module")
def nvidia_smi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaSmi]:
    """The program, fetched through the network that tests/e2e/run.sh left; removed after."""
    place = tmp_path_factory.mktemp("nvidia-smi")
    try:
        yield download(place, int(os.environ["GPU_DEVICE_PLUGIN_E2E_NETWORK"]))
    except UnavailableError as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(place)


@pytest.fixture(scope="module")
def isolating_agent(
    cluster: Cluster,
    serving_agent: Agent,
    nvidia_smi: NvidiaSmi,
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Agent]:
    """In the usual agent's place one that names cards by CDI, on a node of nvidia-smi's driver."""
    serving_agent.stop()
    directories = AgentDirectories(STATE / "isolating", results / "isolation")
    agent = Agent(cluster, directories, {"device-access": "cdi"})
    agent.prepare("--driver-version", nvidia_smi.driver_version)
    node = SimulatedNode(directories.simulated_node / "gpu-simulator.state")
    spec = cdi_spec(node, {"/usr/bin/nvidia-smi": nvidia_smi.path})
    cluster.node.add_cdi_spec("nvidia", json.dumps(spec))
    program = compile_program(tmp_path_factory.mktemp("client"))
    for image in cuda_images(program, [nvidia_smi.path, *node.state.parent.glob("*.so.1")]):
        cluster.node.load(image)
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def start(cluster: Cluster, isolating_agent: Agent) -> Iterator[Start]:
    """Starts tenants: `start(name, memory units, compute, **what else stands in the pod)`."""
    if not isolating_agent.program.running():
        isolating_agent.start()
    wait_for_allocatable(cluster, FOUR_CARDS)

    def start(name: str, memory: int = 2, core: int = 30, **more: Any) -> Tenant:
        return start_tenant(cluster, tenant_pod(name, slice_of(memory, core), **more))

    yield start
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    wait_for("no pod is left", lambda: not cluster.every("pod"), 60, 0.3)


def row(table: str) -> Mapping[str, str]:
    """Memory and utilisation columns of the only card in nvidia-smi's table."""
    found = re.findall(r"\|\s+(\d+MiB / +\d+MiB) \|\s+(\d+)%", table)
    assert len(found) == 1, table
    return {"memory": " ".join(found[0][0].split()), "percent": found[0][1]}


@pytest.mark.timeout(240)
def test_nvidia_smi_shows_what_the_source_shows(start: Start) -> None:
    """2 units and 30 % of a V100, 337 MiB held: `337MiB / 2154MiB` and `30%`."""
    tenant = start("shown")
    tenant.open()
    tenant.hold(337)
    table = tenant.nvidia_smi()
    query = "--query-gpu=memory.total,memory.used"
    figures = tenant.nvidia_smi(query, "--format=csv,noheader")
    tenant.work()

    assert row(table)["memory"] == f"337MiB / {SLICE_MIB}MiB", table
    assert figures.strip() == f"{SLICE_MIB} MiB, 337 MiB"
    wait_for("the card is at 30 %", lambda: row(tenant.nvidia_smi())["percent"] == "30", 30, 0.5)
