"""The source's two jobs beside each other: one on a node that divides time, one on one that shares.

Each node has an agent of its own; the second counts memory in units of 128 MiB.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import STATE
from tests.e2e.source_jobs import BINPACK, CUDA_SAMPLE, source_job
from tests.e2e.views import check_agreement
from tools.harness.cluster.agent import Agent, AgentDirectories, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.node import Node
from tools.harness.cluster.pods import CORE, COUNT, MEMORY, TELL_AND_STAY, environment_of
from tools.harness.cluster.waiting import wait_for

# floor(16160 / 128) = 126 units a card.
FOUR_CARDS_OF_128_MIB = {MEMORY: "504", COUNT: "4"}
SHARED_UNIT = {"mode": "share", "memory-unit": "128MiB"}


@pytest.fixture(scope="module")
def second_node(cluster: Cluster) -> Iterator[Node]:
    """A node in mode share."""
    with cluster.another_node() as node:
        cluster.kubectl("label", "node", node.name, "ack.node.gpu.schedule=share")
        yield node


@pytest.fixture(scope="module")
def second_agent(cluster: Cluster, second_node: Node, results: Path) -> Iterator[Agent]:
    """The agent of that node, on four V100s of its own."""
    directories = AgentDirectories(STATE / "second-agent", results / "second", second_node)
    agent = Agent(cluster, directories, SHARED_UNIT)
    agent.prepare("--seed", second_node.name)
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def both(cluster: Cluster, agent: Agent, second_agent: Agent) -> Iterator[Cluster]:
    """The cluster while it offers what both agents have; the jobs are removed."""
    assert agent.program.running()
    wait_for_allocatable(cluster, FOUR_CARDS_OF_128_MIB, node=second_agent.node.name)
    yield cluster
    for name in ("job/cuda-sample", "statefulset/binpack"):
        cluster.kubectl("delete", name, "--ignore-not-found=true", "--cascade=foreground")


def running(cluster: Cluster, app: str) -> dict[str, Any]:
    """The pod of a job, once it runs and is ready."""

    def found() -> dict[str, Any]:
        for one in cluster.every("pod"):
            told = {each["type"]: each["status"] for each in one["status"].get("conditions", [])}
            if one["metadata"]["labels"].get("app") == app and told.get("Ready") == "True":
                return one
        return {}

    return wait_for(f"{app} runs", found, 180, 0.5)


def environment(cluster: Cluster, pod: dict[str, Any]) -> dict[str, str]:
    """What the container of a pod has told; Running comes before its first line."""
    name = pod["metadata"]["name"]
    return wait_for(
        f"{name} has told its environment", lambda: environment_of(cluster.kubectl("logs", name))
    )


def test_both_jobs_of_the_source_run_each_on_the_node_of_its_kind(
    both: Cluster, agent: Agent, second_agent: Agent
) -> None:
    """R-114."""
    cluster = both
    cluster.apply(source_job(CUDA_SAMPLE, TELL_AND_STAY), source_job(BINPACK, TELL_AND_STAY))
    timed = running(cluster, "cuda-sample")
    shared = running(cluster, "binpack-1")
    placed = {timed["spec"]["nodeName"]: timed, shared["spec"]["nodeName"]: shared}
    assert placed == {NODE: timed, second_agent.node.name: shared}
    received = environment(cluster, timed)
    assert received["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    assert received["ALIYUN_COM_GPU_MEM_DEV"] == "15"
    assert received["NVIDIA_VISIBLE_DEVICES"] in agent.uuids()
    received = environment(cluster, shared)
    assert received["ALIYUN_COM_GPU_MEM_CONTAINER"] == "16"
    assert received["ALIYUN_COM_GPU_MEM_DEV"] == "126"
    assert received["NVIDIA_VISIBLE_DEVICES"] in second_agent.uuids()
    (units,) = check_agreement(agent).values()
    assert {name: len(ids) for name, ids in units.items()} == {MEMORY: 2, CORE: 30}
    (units,) = check_agreement(second_agent).values()
    assert {name: len(ids) for name, ids in units.items()} == {MEMORY: 16}


def test_a_pod_sent_to_the_node_of_the_other_kind_is_refused_and_its_successor_runs(
    both: Cluster, second_agent: Agent
) -> None:
    """The scheduler adds up units and knows no kinds: the first node would have enough of them (R-503)."""
    cluster, second = both, second_agent.node.name
    cluster.kubectl("cordon", second)
    cluster.apply(source_job(BINPACK, TELL_AND_STAY))

    def refusals() -> str:
        return cluster.kubectl("get", "events", "-o", "jsonpath={..message}")

    wait_for("the first node refuses it", lambda: "default/binpack-0" in refusals(), 60, 0.5)
    cluster.kubectl("uncordon", second)
    assert running(cluster, "binpack-1")["spec"]["nodeName"] == second
