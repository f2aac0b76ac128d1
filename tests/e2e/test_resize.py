"""A slice is resized on a real cluster while its program runs, as docs/tasks/resize.md tells it."""

import json

import pytest
from tests.e2e.conftest import Start
from tests.e2e.kubectl_gpu import kubectl_gpu
from tests.e2e.tenants import MIB, OUT_OF_MEMORY, SLICE_MIB, Tenant, is_about, row, same_card
from tools.harness.cluster.agent import Agent, resources
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.processes import ProgramError
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.fractions.pod_annotations import GROWTH, RESIZE, RESIZED

EIGHT_UNITS = 8618  # MiB of 15 units of a 16160 MiB V100
MEM = "aliyun.com/gpu-mem"
pytestmark = pytest.mark.usefixtures("growth_allowed")


def wait_for_units(cluster: Cluster, units: int) -> None:
    """The node's status follows the list that the kubelet was sent."""
    wait_for(
        f"{units} units are allocatable",
        lambda: resources(cluster, "allocatable", NODE)[MEM] == str(units),
        60,
        0.5,
    )


def memory(tenant: Tenant) -> str:
    """As nvidia-smi shows it in the container."""
    return row(tenant.nvidia_smi())["memory"]


def reaches(tenant: Tenant) -> bool:
    """Whether the kubelet that has started knows the pod."""
    try:
        tenant.run("true")
    except ProgramError:
        return False
    return True


def answer(cluster: Cluster, name: str) -> str:
    """The agent's answer, as it stands on the pod."""
    return str(cluster.get("pod", name)["metadata"]["annotations"].get(RESIZED, ""))


def test_a_running_slice_grows_is_kept_over_restarts_and_shrinks(
    cluster: Cluster, isolating: Agent, start: Start
) -> None:
    """From 2 to 8 units and 30 to 60 %, and back under use; what it has beyond its request leaves the node."""
    tenant = start("book")
    tenant.open()
    tenant.hold(337)
    assert tenant.told(f"alloc 1 {4000 * MIB}") == [OUT_OF_MEMORY]

    told = kubectl_gpu(cluster, "resize", "book", "--mem", "8", "--core", "60", "--wait")
    assert "8 units of 1024 MiB and 60 % compute" in told
    assert memory(tenant) == f"337MiB / {EIGHT_UNITS}MiB"
    assert tenant.told(f"alloc 1 {4000 * MIB}") == [0]
    wait_for_units(cluster, 54)

    isolating.kill()
    isolating.start()
    cluster.restart_kubelet(kill=True)
    wait_for_units(cluster, 54)
    wait_for(
        "exec reaches the pod again", lambda: reaches(tenant)
    )  # the kubelet asks the API first
    assert memory(tenant) == f"4337MiB / {EIGHT_UNITS}MiB"
    assert tenant.told("launch 1000000") == [0]

    kubectl_gpu(cluster, "resize", "book", "--mem", "2", "--core", "30")
    wait_for("the answer says what is used", lambda: '"waits"' in answer(cluster, "book"), 30, 0.5)
    assert tenant.told(f"alloc 2 {MIB}") == [OUT_OF_MEMORY]
    assert resources(cluster, "allocatable", NODE)[MEM] == "54"
    assert tenant.told("free 1") == [0]
    kubectl_gpu(cluster, "resize", "book", "--mem", "2", "--core", "30", "--wait")
    assert memory(tenant).endswith(f" / {SLICE_MIB}MiB")
    wait_for_units(cluster, 60)


def test_compute_follows_a_resize_without_a_restart(cluster: Cluster, start: Start) -> None:
    tenant = start("busy")
    tenant.open()
    tenant.work()
    wait_for("it has 30 %", lambda: is_about(int(row(tenant.nvidia_smi())["percent"]), 30))
    kubectl_gpu(cluster, "resize", "busy", "--core", "60", "--wait")

    wait_for("it has 60 %", lambda: is_about(int(row(tenant.nvidia_smi())["percent"]), 60))
    kubectl_gpu(cluster, "resize", "busy", "--core", "30", "--wait")  # the next test has all


def test_a_slice_waits_for_its_neighbour_to_end(
    cluster: Cluster, isolating: Agent, start: Start
) -> None:
    """The answer names it."""
    tenant, neighbour = start("book"), start("neighbour", 12)
    same_card(isolating, tenant, neighbour)
    told = kubectl_gpu(cluster, "resize", "book", "--mem", "8")
    assert "default/neighbour" in told

    cluster.kubectl("delete", "pod", "neighbour", "--grace-period=1")
    told = kubectl_gpu(cluster, "resize", "book", "--mem", "8", "--wait")
    assert "8 units" in told
    kubectl_gpu(cluster, "resize", "book", "--mem", "2", "--wait")


def test_a_tenant_gets_no_more_than_its_namespace_is_allowed(
    cluster: Cluster, isolating: Agent, start: Start
) -> None:
    """Whatever it writes: the answer in the agent's name changes nothing."""
    assert isolating.program.running()
    cluster.kubectl("annotate", "namespace", "default", f"{GROWTH}-")
    tenant = start("book")
    tenant.open()
    forged = json.dumps(
        {
            "asked": "main=mem:8",
            "unit_mib": 1024,
            "containers": {"main": {"mem": 8, "core": 30, "state": "done"}},
        }
    )
    cluster.kubectl("annotate", "pod", "book", f"{RESIZE}=main=mem:8", f"{RESIZED}={forged}")

    def refused() -> bool:
        return "is allowed nothing on a node" in answer(cluster, "book")

    wait_for("it is refused", refused, 60, 0.5)
    assert memory(tenant).endswith(f"/ {SLICE_MIB}MiB")
    assert resources(cluster, "allocatable", NODE)[MEM] == "60"
