"""One cluster for all end-to-end tests, and what is kept of it when one of them fails."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Layout

STATE = Path("/run/gpu-device-plugin-e2e")
RESULTS = Path("build/e2e")


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
