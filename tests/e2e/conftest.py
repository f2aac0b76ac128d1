"""One cluster and one agent for all end-to-end tests, and what is kept when one of them fails."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agent import Agent, AgentDirectories, wait_for_allocatable
from tests.e2e.cluster.cluster import NODE, Cluster
from tests.e2e.cluster.layout import Layout
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.pods import CORE, COUNT, MEMORY

STATE = Path("/run/gpu-device-plugin-e2e")
RESULTS = Path("build/e2e")
FOUR_CARDS = {MEMORY: "60", CORE: "400", COUNT: "4"}


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
    return RESULTS.absolute() / started.strftime("%Y%m%dT%H%M%SZ")


@pytest.fixture(scope="session")
def cluster(results: Path) -> Iterator[Cluster]:
    """A running Kubernetes with one node."""
    with Cluster(Layout(STATE, results)) as running:
        yield running


@pytest.fixture(scope="session")
def serving_agent(cluster: Cluster, results: Path) -> Iterator[Agent]:
    """An agent that serves four V100s in mode core_mem, for the whole session."""
    cluster.kubectl("label", "node", NODE, "ack.node.gpu.schedule=core_mem")
    cluster.kubectl("label", "node", NODE, "ack.node.gpu.placement=binpack")
    agent = Agent(cluster, AgentDirectories(STATE / "agent", results))
    agent.prepare()
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def agent(cluster: Cluster, serving_agent: Agent) -> Iterator[Agent]:
    """The agent at work on an empty node; whatever a test leaves is removed."""
    if not serving_agent.program.running():
        serving_agent.start()
    wait_for_allocatable(cluster, FOUR_CARDS)
    yield serving_agent
    for kind in ("job", "replicaset", "pod"):
        cluster.kubectl("delete", kind, "--all", "--wait=true", "--grace-period=1")
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
