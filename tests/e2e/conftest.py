"""One cluster and one agent for all end-to-end tests, and what is kept when one of them fails."""

import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_image import AgentImage, agent_image
from tests.e2e.claims import claims, claims_agent, plain  # noqa: F401 - fixtures
from tests.e2e.installation import DRIVER
from tests.e2e.tenants import Tenant, prepare_for_tenants, start_tenant, tenant_pod
from tests.nvidia_smi import NvidiaSmi, download, unpacking
from tools.harness.cluster.agent import Agent, AgentDirectories, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.layout import Layout
from tools.harness.cluster.pods import FOUR_CARDS, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.fractions.pod_annotations import GROWTH

STATE = Path("/run/gpu-device-plugin-e2e")
RESULTS = Path("build/e2e")
Start = Callable[..., Tenant]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here, so that none runs without a cluster being asked for."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def results() -> Path:
    """The directory of this run's logs, which stays."""
    started = datetime.datetime.now(tz=datetime.UTC)
    lane = os.environ["GPU_DEVICE_PLUGIN_E2E_LANE"]
    return RESULTS.absolute() / f"{started:%Y%m%dT%H%M%SZ}-{lane}"


@pytest.fixture(scope="session")
def cluster(results: Path) -> Iterator[Cluster]:
    """A running Kubernetes with one node."""
    with Cluster(Layout(STATE, results)) as running:
        yield running


@pytest.fixture(scope="session", name="agent_image")
def provided_agent_image(cluster: Cluster) -> AgentImage:
    """The agent's image, known to the first node; a further one gets it by `load_into`."""
    image = agent_image(int(os.environ["GPU_DEVICE_PLUGIN_E2E_NETWORK"]))
    image.load_into(cluster.node)
    return image


@pytest.fixture(scope="session")
def serving_agent(cluster: Cluster, results: Path) -> Iterator[Agent]:
    """An agent that serves four V100s in mode core_mem, for the whole session."""
    cluster.kubectl("label", "node", NODE, "ack.node.gpu.schedule=core_mem")
    cluster.kubectl("label", "node", NODE, "ack.node.gpu.placement=binpack")
    agent = Agent(cluster, AgentDirectories(STATE / "agent", results))
    agent.prepare(*(["--driver-version", DRIVER] if DRIVER else []))
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def agent(cluster: Cluster, serving_agent: Agent) -> Iterator[Agent]:
    """The agent at work on an empty node; whatever a test leaves is removed."""
    yield from at_work(cluster, serving_agent)


def at_work(cluster: Cluster, agent: Agent) -> Iterator[Agent]:
    """The agent while it serves, started where a test has ended it; then no pod is left."""
    if not agent.program.running():
        agent.start()
    wait_for_allocatable(cluster, FOUR_CARDS)
    yield agent
    everything = "job,replicaset,pod"
    cluster.kubectl("delete", everything, "--all", "--wait=true", "--grace-period=1")
    wait_for("no pod is left", lambda: not cluster.every("pod"), 60, 0.3)


@pytest.fixture(autouse=True)
def kept_on_failure(
    request: pytest.FixtureRequest, cluster: Cluster, results: Path
) -> Iterator[None]:
    """Keep the cluster's objects beside the logs when the test fails, and say where."""
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        kept = results / request.node.name
        cluster.collect(kept)
        request.node.add_report_section("teardown", "kept", f"logs: {results}\nobjects: {kept}")


@pytest.fixture(scope="session")
def nvidia_smi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaSmi]:
    """The program, fetched through the network that tests/e2e/run.sh left; removed after."""
    with unpacking(tmp_path_factory) as place:
        yield download(place, int(os.environ["GPU_DEVICE_PLUGIN_E2E_NETWORK"]))


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
    agent = Agent(cluster, directories, {"device-list-strategy": "cdi-cri"})
    prepare_for_tenants(cluster, agent, nvidia_smi, tmp_path_factory.mktemp("client"))
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def isolating(cluster: Cluster, isolating_agent: Agent) -> Iterator[Agent]:
    """The isolating agent at work on an empty node; whatever a test leaves is removed."""
    yield from at_work(cluster, isolating_agent)


@pytest.fixture
def start(cluster: Cluster, isolating: Agent) -> Start:
    """Starts tenants: `start(name, memory units, compute, **what else stands in the pod)`."""
    assert isolating.program.running()

    def started(name: str, memory: int = 2, core: int = 30, **more: Any) -> Tenant:
        return start_tenant(cluster, tenant_pod(name, slice_of(memory, core), **more))

    return started


@pytest.fixture
def growth_allowed(cluster: Cluster) -> Iterator[None]:
    """The operator lets pods of the namespace grow."""
    cluster.kubectl("annotate", "namespace", "default", "--overwrite", f"{GROWTH}=mem:8,core:100")
    yield
    cluster.kubectl("annotate", "namespace", "default", f"{GROWTH}-")
