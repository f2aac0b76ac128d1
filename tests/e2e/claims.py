"""An agent whose allocation API is `dra`, the chart's policies, and what claims hold, as the tests of claims see it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.tenants import prepare_for_tenants
from tests.nvidia_smi import NvidiaSmi
from tools.harness.cluster.agent import Agent, AgentDirectories
from tools.harness.cluster.cluster import NAMESPACE, NODE, Cluster
from tools.harness.cluster.helm import CLAIMS, NOBODY, Helm
from tools.harness.cluster.pods import container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.node.allocation_api import (
    ALLOCATION_API_LABEL,
    AllocationApi,
    has_claims_api,
)

ROOT = Path("/run/gpu-device-plugin-e2e/claims")


@contextmanager
def claims_installed(cluster: Cluster) -> Iterator[None]:
    """The chart with claims and without one of our pods; the namespace `default` uses them meanwhile."""
    version = cluster.binaries.kubernetes_version
    if not has_claims_api(version):
        pytest.skip(f"claims need Kubernetes 1.36 or later; this cluster has {version}")
    helm = Helm(cluster)
    helm.install(NOBODY, *CLAIMS)
    cluster.kubectl(
        "label",
        "namespace",
        NAMESPACE,
        "--overwrite",
        f"{ALLOCATION_API_LABEL}={AllocationApi.DRA}",
    )
    yield
    cluster.kubectl("label", "namespace", NAMESPACE, f"{ALLOCATION_API_LABEL}-")
    helm.uninstall()


@pytest.fixture(scope="module")
def claims_agent(
    cluster: Cluster,
    serving_agent: Agent,
    nvidia_smi: NvidiaSmi,
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Agent]:
    """In the usual agent's place one whose allocation API is `dra`, with the chart's policies in the cluster."""
    serving_agent.stop()
    flags = {
        "device-list-strategy": "cdi-cri",
        "allocation-api": "dra",
        "cdi-dir": str(cluster.node.cdi_directory),
    }
    agent = Agent(cluster, AgentDirectories(ROOT, results / "claims"), flags)
    prepare_for_tenants(cluster, agent, nvidia_smi, tmp_path_factory.mktemp("client"))
    with claims_installed(cluster):
        agent.start()
        yield agent
        agent.stop()


@pytest.fixture
def claims(cluster: Cluster, claims_agent: Agent) -> Iterator[Agent]:
    """That agent at work on an empty node; whatever a test leaves is removed."""
    if not claims_agent.program.running():
        claims_agent.start()
    wait_for("four cards are offered", lambda: len(devices(cluster)) == 4, 30)
    yield claims_agent
    everything = "deployment,job,pod"
    cluster.kubectl("delete", everything, "--all", "--wait=true", "--grace-period=1")
    wait_for("no claim is left", lambda: not cluster.every("resourceclaim"), 60)
    wait_for("no grant is left", lambda: not claims_agent.grants(), 30)


@pytest.fixture
def plain(cluster: Cluster) -> Iterator[str]:
    """A namespace that uses no claims; the node's label for its allocation API goes with it."""
    cluster.kubectl("create", "namespace", "plain")
    yield "plain"
    cluster.kubectl("label", "node", NODE, "gpu-device-plugin/allocation-api-")
    cluster.kubectl("delete", "namespace", "plain", "--ignore-not-found=true")


def devices(cluster: Cluster) -> list[dict[str, Any]]:
    """The devices of our driver, as the scheduler sees them."""
    return [
        device
        for each in cluster.every("resourceslice")
        if each["spec"]["driver"] == "gpu-device-plugin"
        for device in each["spec"]["devices"]
    ]


def deployment(replicas: int, template: dict[str, Any]) -> dict[str, Any]:
    """A Deployment of a pod."""
    spec = {**template["spec"], "restartPolicy": "Always"}
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": template["metadata"]["name"]},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def running(cluster: Cluster, namespace: str = NAMESPACE) -> list[str]:
    """Names of the pods that run."""
    found = cluster.every("pod", namespace)
    return [p["metadata"]["name"] for p in found if p["status"]["phase"] == "Running"]


def cards_of(cluster: Cluster) -> Counter[str]:
    """Device -> how many claims have a share of it."""
    return Counter(
        result["device"]
        for claim in cluster.every("resourceclaim")
        for result in claim["status"].get("allocation", {}).get("devices", {}).get("results", ())
    )


def holding(name: str, **spec: Any) -> dict[str, Any]:
    """A pod with a slice that stays, and starts again after a restart of its node."""
    spec = {"restartPolicy": "Always", **spec}
    return pod(name, container("main", resources=slice_of(2, 30)), **spec)


def in_namespace(made: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The object, with its namespace."""
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def set_allocation_api(cluster: Cluster, api: str) -> None:
    """Label the node."""
    cluster.kubectl("label", "node", NODE, "--overwrite", f"gpu-device-plugin/allocation-api={api}")


def phase(cluster: Cluster, name: str, namespace: str) -> str:
    """Of a pod."""
    found = cluster.find("pod", name, namespace)
    return str(found["status"].get("phase")) if found else ""


def waits(cluster: Cluster) -> str:
    """What Events say of a node that waits to change its allocation API."""
    asked = ("get", "events", "-A", "--field-selector", "reason=AllocationApiSwitchRefused")
    return cluster.kubectl(*asked, "-o", "yaml")


def modes(cluster: Cluster) -> set[str]:
    """The mode that the devices tell."""
    return {device["attributes"]["mode"]["string"] for device in devices(cluster)}
