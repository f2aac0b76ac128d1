"""The API server lets an agent remove the startup taint once in its node's life, and change nothing else of spec.

As in test_policies, none of our processes runs here. What the agent does is tests/agent/test_startup_taint.py's.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.submission import Submission
from tests.e2e.test_policies import AgentToken
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import NOBODY, Helm
from tools.harness.cluster.waiting import wait_for

PATH = f"/api/v1/nodes/{NODE}"
TOLD = "gpu-device-plugin/startup-taint-removed"
STARTUP = {"key": "example.com/starting", "value": "yes", "effect": "PreferNoSchedule"}
OTHER = {"key": "example.com/other", "effect": "PreferNoSchedule"}


@pytest.fixture
def as_agent(cluster: Cluster, serving_agent: Agent) -> Iterator[Submission]:
    """The API as the agent of the node has it, with the value `startupTaint`."""
    serving_agent.stop()
    helm = Helm(cluster)
    helm.install(NOBODY, f"startupTaint={STARTUP['key']}")
    try:
        with AgentToken(cluster) as submission:
            wait_for(
                "nodes are judged", lambda: not submission.patch(PATH, labelled("yes")).is_accepted
            )
            yield submission
    finally:
        write(cluster, change(None, None))
        helm.uninstall()


def write(cluster: Cluster, content: dict[str, Any]) -> None:
    """Patch the node as the administrator; a Submission changes nothing."""
    cluster.kubectl("patch", "node", NODE, "--type=merge", "-p", json.dumps(content))


def labelled(value: str | None) -> dict[str, Any]:
    """A patch that an agent may not make."""
    return {"metadata": {"labels": {"example.com/probe": value}}}


def change(taints: object, told: str | None = "", **spec: Any) -> dict[str, Any]:
    """A patch of the node's taints and spec; `told` is the annotation's value, empty for no change of it."""
    annotations = {} if told == "" else {TOLD: told}
    return {"metadata": {"annotations": annotations}, "spec": {"taints": taints, **spec}}


def test_an_agent_removes_the_startup_taint_once_and_changes_nothing_else_of_its_node(
    cluster: Cluster, as_agent: Submission
) -> None:
    nothing_else = "nothing but labels and annotations"
    write(cluster, change([STARTUP, OTHER]))
    for wrong in (
        change([OTHER]),
        change([], "k"),
        change([STARTUP], "k"),
        change([{**OTHER, "value": "new"}], "k"),
        change([STARTUP, OTHER, {**OTHER, "key": "example.com/new"}], "k"),
        change([OTHER], "k", unschedulable=True),
        change([OTHER], "k", podCIDR="10.9.0.0/24", podCIDRs=["10.9.0.0/24"]),
    ):
        answer = as_agent.patch(PATH, wrong)
        assert not answer.is_accepted, wrong
        assert nothing_else in answer.text or "never takes that back" in answer.text
    told_alone = {"metadata": {"annotations": {TOLD: "k"}}}
    assert "never takes that back" in as_agent.patch(PATH, told_alone).text

    assert as_agent.patch(PATH, change([OTHER], "k")).text == ""
    write(cluster, change([OTHER], "k"))
    for wrong in ({"metadata": {"annotations": {TOLD: None}}}, change([], "l")):
        assert not as_agent.patch(PATH, wrong).is_accepted
    write(cluster, change([STARTUP, OTHER]))
    assert nothing_else in as_agent.patch(PATH, change([OTHER])).text
