"""Classic manifests through claims (DRA): the stock scheduler chooses one card, and nothing else is installed.

The chart's policies make `aliyun.com/gpu-mem` and `aliyun.com/gpu-core.percentage` into claims; the
agent's cards are devices that several claims divide.
"""

import json
from collections import Counter
from typing import Any

import pytest
from tests.e2e.claims import (
    cards_of,
    deployment,
    devices,
    holding,
    in_namespace,
    modes,
    phase,
    running,
    set_allocation_api,
    waits,
)
from tests.e2e.tenants import SLICE_MIB, Tenant, row, tenant_pod
from tools.harness.cluster.agent import Agent, wait_for_allocatable
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import (
    COUNT,
    FOUR_CARDS,
    TELL_AND_STAY,
    container,
    environment_of,
    pod,
    slice_of,
)
from tools.harness.cluster.waiting import wait_for


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
    """Two stay Pending; when one that runs is deleted, one of them takes its place (R-523)."""
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


def test_a_node_changes_its_allocation_api_when_nobody_holds_its_cards(
    cluster: Cluster, claims: Agent, plain: str
) -> None:
    """Both ways; until then it goes on offering what it offered, and says who holds cards."""
    cluster.apply(holding("claimed"))
    cluster.wait_for_phase("claimed", "Running", seconds=90)
    set_allocation_api(cluster, "device-plugin")
    wait_for("it names the pod", lambda: "default/claimed" in waits(cluster), 60)
    cluster.apply(holding("next"))
    cluster.wait_for_phase("next", "Running", seconds=90)
    cluster.kubectl("delete", "pod", "claimed", "next", "--wait=true", "--grace-period=1")
    wait_for_allocatable(cluster, FOUR_CARDS, 120)
    wait_for("nothing is offered for claims", lambda: not devices(cluster), 60)

    cluster.apply(in_namespace(holding("classic"), plain))
    wait_for("it runs", lambda: phase(cluster, "classic", plain) == "Running", 90, 0.5)
    set_allocation_api(cluster, "dra")
    wait_for("it names the pod", lambda: f"{plain}/classic" in waits(cluster), 60)
    assert not devices(cluster)
    cluster.kubectl("delete", "namespace", plain)
    wait_for("all cards are offered", lambda: len(devices(cluster)) == 4, 150, 1)
    assert not claims.grants()


def test_memory_on_several_cards_is_on_distinct_cards(cluster: Cluster, claims: Agent) -> None:
    """With the label for several cards, on a node in mode cgpu."""
    cluster.kubectl("label", "node", NODE, "--overwrite", "ack.node.gpu.schedule=cgpu")
    try:
        wait_for("the cards are offered in mode cgpu", lambda: modes(cluster) == {"cgpu"}, 90, 0.5)
        several = pod("several", container("main", resources=slice_of(12, None)))
        several["metadata"]["labels"][COUNT] = "3"
        cluster.apply(several)
        cluster.wait_for_phase("several", "Running", seconds=90)

        (grant,) = claims.grants()
        assert len(set(grant.devices)) == 3
        assert {share.memory_mib for share in grant.shares} == {4096}
        cluster.kubectl("delete", "pod", "several", "--wait=true", "--grace-period=1")
    finally:
        cluster.kubectl("label", "node", NODE, "--overwrite", "ack.node.gpu.schedule=core_mem")
        wait_for("the mode is back", lambda: modes(cluster) == {"core_mem"}, 90, 0.5)


def whole(name: str, *containers: str) -> dict[str, Any]:
    """A pod of containers that each ask for a whole card, as on a cluster without slices."""
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    return pod(name, *(container(each, TELL_AND_STAY, resources=limits) for each in containers))


def test_whole_cards_and_slices_come_from_one_pool(cluster: Cluster, claims: Agent) -> None:
    """No slice goes beside a whole card, and no whole card where a slice is."""
    cluster.apply(holding("slice"))
    cluster.wait_for_phase("slice", "Running", seconds=90)
    cluster.apply(*(whole(f"whole-{n}", "main") for n in range(4)))
    wait_for("three whole cards are held", lambda: len(running(cluster)) == 4, 120, 0.5)
    cluster.apply(pod("large", container("main", resources=slice_of(14, 75))))
    cluster.apply(pod("beside", container("main", resources=slice_of(13, 70))))
    cluster.wait_for_phase("beside", "Running", seconds=90)

    assert sorted(cards_of(cluster).values()) == [1, 1, 1, 2]
    phases = Counter(p["status"]["phase"] for p in cluster.every("pod"))
    assert phases == {"Running": 5, "Pending": 2}
    grants = {grant.pod.name: grant for grant in claims.grants()}
    of_whole = [grants[name] for name in running(cluster) if name.startswith("whole")]
    assert {(s.memory_mib, s.core_percent) for g in of_whole for s in g.shares} == {(15360, 100)}
    assert {s.memory_bytes for g in of_whole for s in g.shares} == {16160 << 20}
    name, key = of_whole[0].pod.name, "gpu-device-plugin/devices"
    told = wait_for(  # nobody waits for it, the kubelet neither
        f"the agent tells the card of {name}",
        lambda: cluster.get("pod", name)["metadata"]["annotations"].get(key),
    )
    assert json.loads(told) == {"0": list(of_whole[0].devices)}

    cluster.kubectl("delete", "pod", "slice", "beside", "--wait=true", "--grace-period=1")
    # 14 units or a whole card: one of the two that wait has the card now.
    wait_for("one of them runs", lambda: len(running(cluster)) == 4, 60, 0.5)


@pytest.mark.parametrize(
    ("name", "where", "text"),
    [
        ("by-scheduler", {}, "is for the pod that it was made for"),
        ("by-node-name", {"nodeName": NODE}, "is not allowed to use"),
    ],
)
def test_a_whole_card_is_its_owners_alone(
    cluster: Cluster, claims: Agent, name: str, where: dict[str, str], text: str
) -> None:
    """A pod that names the owner's claim gets nothing, by the scheduler or past it, privileged or not."""
    cluster.apply(whole("owner", "main"))
    wait_for("the owner runs", lambda: running(cluster) == ["owner"], 60, 0.5)
    (claim,) = cluster.every("resourceclaim")
    held = container("main", resources={"claims": [{"name": "mine"}]})
    held |= {"securityContext": {"privileged": True}}
    mine = {"name": "mine", "resourceClaimName": claim["metadata"]["name"]}
    cluster.apply(pod(name, held, resourceClaims=[mine], **where))

    events = ("get", "events", f"--field-selector=involvedObject.name={name}")
    wait_for("the refusal is told", lambda: text in cluster.kubectl(*events), 60, 0.5)
    assert running(cluster) == ["owner"]
    (grant,) = claims.grants()
    assert grant.pod.name == "owner"
    (told,) = cluster.every("resourceclaim")
    assert [each["name"] for each in told["status"]["reservedFor"]] == ["owner"]
    cluster.kubectl("delete", "pod", "owner", "--grace-period=1")
    wait_for("nothing is held", lambda: not claims.grants(), 60, 0.5)
    assert running(cluster) == []


def test_two_containers_with_whole_cards_get_one_each(cluster: Cluster, claims: Agent) -> None:
    """kube-scheduler makes one claim of both, with a request for each."""
    cluster.apply(whole("two", "a", "b"))
    cluster.wait_for_phase("two", "Running", seconds=90)

    def seen(name: str) -> str:
        log = ("logs", "two", "-c", name)
        told = wait_for(f"{name} tells", lambda: environment_of(cluster.kubectl(*log)))
        return claims.uuids()[int(told["ALIYUN_COM_GPU_MEM_IDX"])]

    held = {device for grant in claims.grants() for device in grant.devices}
    assert {seen("a"), seen("b")} == held
    assert len(held) == 2
    cluster.kubectl("delete", "pod", "two", "--wait=true", "--grace-period=1")
    wait_for("nothing is held", lambda: not claims.grants(), 60, 0.5)


def test_a_container_with_a_slice_and_a_templates_card_is_told_to_name_one(
    cluster: Cluster, claims: Agent
) -> None:
    """One of them would be idle: both say in the same variable which card is the container's."""
    asked = {"requests": [{"name": "card", "exactly": {"deviceClassName": "gpu-card"}}]}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    cluster.apply({**made, "metadata": {"name": "card"}, "spec": {"spec": {"devices": asked}}})
    both = container("main", resources={**slice_of(2, 30), "claims": [{"name": "card"}]})
    of_template = {"name": "card", "resourceClaimTemplateName": "card"}
    cluster.apply(pod("both", both, resourceClaims=[of_template]))

    text = "names several claims of cards"
    wait_for(
        "the pod says why", lambda: text in cluster.kubectl("describe", "pod", "both"), 60, 0.5
    )
    assert phase(cluster, "both", "default") == "Pending"
    assert len(claims.grants()) == 1
    cluster.kubectl("delete", "resourceclaimtemplate", "card")


def slice_uid(cluster: Cluster) -> str:
    """Uid of the node's ResourceSlice; "" while there is none."""
    found = cluster.every("resourceslice")
    return str(found[0]["metadata"]["uid"]) if found else ""


def test_restarts_of_agent_kubelet_and_node_harm_nothing_that_runs(
    cluster: Cluster, claims: Agent
) -> None:
    """The same slice before and after; a pod that is deleted meanwhile goes when the agent is back."""
    cluster.apply(holding("stays"), holding("leaves"))
    for name in ("stays", "leaves"):
        cluster.wait_for_phase(name, "Running", seconds=90)
    before = {grant.pod.name: grant.slice_id for grant in claims.grants()}
    claims.kill()
    cluster.kubectl("delete", "pod", "leaves", "--wait=false", "--grace-period=1")
    claims.start()
    wait_for("the deleted pod is gone", lambda: cluster.find("pod", "leaves") is None, 90, 0.5)

    offered = slice_uid(cluster)
    cluster.restart_kubelet(kill=True)
    wait_for("the slice is written again", lambda: slice_uid(cluster) not in ("", offered), 90, 0.3)
    cluster.apply(holding("later"))
    cluster.wait_for_phase("later", "Running", seconds=120)
    assert cluster.get("pod", "stays")["status"]["containerStatuses"][0]["restartCount"] == 0

    claims.kill()
    cluster.node.power_off()
    for file in cluster.node.cdi_directory.glob("gpu-device-plugin-*"):
        file.unlink()
    cluster.node.power_on()
    claims.start()

    def runs_again() -> bool:
        status = cluster.get("pod", "stays")["status"]["containerStatuses"][0]
        return status["restartCount"] > 0 and "running" in status["state"]

    wait_for("the pod runs again", runs_again, 180, 1)
    after = {grant.pod.name: grant.slice_id for grant in claims.grants()}
    assert after["stays"] == before["stays"]
    assert set(after) == {"stays", "later"}
