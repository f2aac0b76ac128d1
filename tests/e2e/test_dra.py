"""Classic manifests through claims (DRA): the stock scheduler chooses one card, and nothing else is installed.

The chart's policies make `aliyun.com/gpu-mem` and `aliyun.com/gpu-core.percentage` into claims; the
agent's cards are devices that several claims divide.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent import Agent, AgentDirectories
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.conftest import STATE
from tests.e2e.helm import Helm
from tests.e2e.pods import container, pod, slice_of
from tests.e2e.tenants import SLICE_MIB, Tenant, cuda_images, row, tenant_pod
from tests.nvidia_smi import NvidiaSmi
from tests.told import compile_program

from gpu_device_plugin.simulation.containers import cdi_spec
from gpu_device_plugin.simulation.node import STATE_NAME, SimulatedNode
from gpu_device_plugin.store.native import native_library

NOBODY = "nodeSelector.e2e=nowhere,hooks.uninstall.enabled=false,hooks.upgrade.enabled=false"
DRA = ("dra.enabled=true", "dra.namespaces={default}")


@pytest.fixture(scope="module")
def claims_agent(
    cluster: Cluster,
    serving_agent: Agent,
    nvidia_smi: NvidiaSmi,
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Agent]:
    """In the usual agent's place one whose door is `dra`, with the chart's policies in the cluster."""
    serving_agent.stop()
    flags = {"device-access": "cdi", "door": "dra", "cdi-dir": str(cluster.node.cdi_directory)}
    agent = Agent(cluster, AgentDirectories(STATE / "claims", results / "claims"), flags)
    agent.prepare("--driver-version", nvidia_smi.driver_version)
    node = SimulatedNode(agent.directories.simulated_node / STATE_NAME)
    spec = cdi_spec(node, {"/usr/bin/nvidia-smi": nvidia_smi.path})
    cluster.node.add_cdi_spec("nvidia", json.dumps(spec))
    program = compile_program(tmp_path_factory.mktemp("client"))
    libraries = [*node.state.parent.glob("*.so.1"), native_library("libgpuslice.so")]
    for image in cuda_images(program, [nvidia_smi.path, *libraries]):
        cluster.node.load(image)
    helm = Helm(cluster)
    helm.install(NOBODY, *DRA)
    agent.start()
    yield agent
    agent.stop()
    helm.uninstall()


@pytest.fixture
def claims(cluster: Cluster, claims_agent: Agent) -> Iterator[Agent]:
    """That agent at work on an empty node; whatever a test leaves is removed."""
    if not claims_agent.program.running():
        claims_agent.start()
    wait_for("four cards are offered", lambda: len(devices(cluster)) == 4, 30)
    yield claims_agent
    for kind in ("deployment", "job", "pod"):
        cluster.kubectl("delete", kind, "--all", "--wait=true", "--grace-period=1")
    wait_for("no claim is left", lambda: not cluster.every("resourceclaim"), 60)
    wait_for("no grant is left", lambda: not claims_agent.grants(), 30)


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


def running(cluster: Cluster) -> list[str]:
    """Names of the pods that run."""
    return [
        p["metadata"]["name"] for p in cluster.every("pod") if p["status"]["phase"] == "Running"
    ]


def cards_of(cluster: Cluster) -> Counter[str]:
    """Device -> how many claims have a share of it."""
    return Counter(
        result["device"]
        for claim in cluster.every("resourceclaim")
        for result in claim["status"].get("allocation", {}).get("devices", {}).get("results", ())
    )


def test_a_classic_deployment_gets_its_slice_of_one_card(cluster: Cluster, claims: Agent) -> None:
    """Unchanged: 2 units and 30 %; nvidia-smi in the container shows the slice."""
    cluster.apply(deployment(1, tenant_pod("classic", slice_of(2, 30))))
    wait_for("the pod runs", lambda: running(cluster), 90, 0.5)
    (name,) = running(cluster)
    made = cluster.get("pod", name)
    tenant = Tenant(cluster, name)
    wait_for(f"{name} listens", lambda: "out" in tenant.run("ls", "/told").split())
    tenant.open()
    tenant.hold(337)

    assert made["spec"]["containers"][0]["resources"] == {"claims": [{"name": "slice-2-30-c0"}]}
    assert made["metadata"]["annotations"]["gpu-device-plugin/asked"] == "main: 2, 30 %"
    assert row(tenant.nvidia_smi())["memory"] == f"337MiB / {SLICE_MIB}MiB"
    (grant,) = claims.grants()
    (share,) = grant.shares
    assert (share.core_percent, share.memory_bytes) == (30, SLICE_MIB << 20)
    assert (grant.pod.name, bool(grant.holder.claim)) == (name, True)


def test_of_fourteen_pods_of_thirty_percent_twelve_run_three_a_card(
    cluster: Cluster, claims: Agent
) -> None:
    """Two stay Pending; when one that runs is deleted, one of them takes its place."""
    cluster.apply(*(pod(f"p{n}", container("main", resources=slice_of(2, 30))) for n in range(14)))
    wait_for("12 pods run", lambda: len(running(cluster)) == 12, 150, 1)

    assert sorted(cards_of(cluster).values()) == [3, 3, 3, 3]
    assert len(claims.grants()) == 12
    phases = Counter(p["status"]["phase"] for p in cluster.every("pod"))
    assert phases == {"Running": 12, "Pending": 2}
    gone = running(cluster)[0]
    cluster.kubectl("delete", "pod", gone, "--wait=true", "--grace-period=1")
    wait_for("another one runs", lambda: len(running(cluster)) == 12, 60, 0.5)
    assert gone not in running(cluster)
