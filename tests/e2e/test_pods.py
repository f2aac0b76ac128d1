"""Every shape of pod gets what it asks for, on one card a container, and all books agree."""

import json

from tests.e2e.views import cards_of, check_agreement, granted
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import (
    CORE,
    MEMORY,
    TELL,
    TELL_AND_STAY,
    container,
    environment_of,
    pod,
    slice_of,
)
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.fractions.units import Resource


def environment(cluster: Cluster, name: str, container_name: str) -> dict[str, str]:
    """What a container that has told its environment received."""
    return wait_for(
        f"{name} has told its environment",
        lambda: environment_of(cluster.kubectl("logs", name, "-c", container_name)),
    )


def test_ten_pods_at_once_each_have_both_resources_on_one_card(
    cluster: Cluster, agent: Agent
) -> None:
    """R-527."""
    names = [f"one-of-ten-{number}" for number in range(10)]
    body = container("main", TELL_AND_STAY, resources=slice_of(2, 30))
    cluster.apply(*(pod(name, body) for name in names))
    for name in names:
        cluster.wait_for_phase(name, "Running")
    holders = check_agreement(agent)
    assert set(holders) == {(name, "main") for name in names}
    for units in holders.values():
        assert (len(units[MEMORY]), len(units[CORE])) == (2, 30)
    grants = granted(agent)
    for name in names:
        received = environment(cluster, name, "main")
        assert (received["NVIDIA_VISIBLE_DEVICES"],) == grants[(name, "main")].devices
    # Three times 30 % fit a card, and binpack opens no card before the last one is full.
    cards = sorted(min(cards_of(units)) for units in holders.values())
    assert sorted(map(cards.count, set(cards))) == [1, 3, 3, 3]


def test_two_containers_of_a_pod_share_a_card_and_hold_their_own_units(
    cluster: Cluster, agent: Agent
) -> None:
    first = container("first", TELL_AND_STAY, resources=slice_of(2, 30))
    second = container("second", TELL_AND_STAY, resources=slice_of(3, 40))
    cluster.apply(pod("pair", first, second))
    cluster.wait_for_phase("pair", "Running")
    holders = check_agreement(agent)
    cards = [cards_of(holders[("pair", name)]) for name in ("first", "second")]
    assert cards[0] == cards[1]
    for name, units in (("first", "2"), ("second", "3")):
        received = environment(cluster, "pair", name)
        assert received["ALIYUN_COM_GPU_MEM_CONTAINER"] == units
        assert received["ALIYUN_COM_GPU_MEM_POD"] == "5"


def test_an_init_container_hands_its_units_on(cluster: Cluster, agent: Agent) -> None:
    first = container("prepare", TELL, resources=slice_of(4, 30))
    main = container("main", TELL_AND_STAY, resources=slice_of(2, 30))
    cluster.apply(pod("prepared", main, initContainers=[first]))
    cluster.wait_for_phase("prepared", "Running")
    holders = check_agreement(agent)
    before = environment(cluster, "prepared", "prepare")
    after = environment(cluster, "prepared", "main")
    assert before["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert after["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    assert before["NVIDIA_VISIBLE_DEVICES"] == after["NVIDIA_VISIBLE_DEVICES"]
    assert before["ALIYUN_COM_GPU_MEM_POD"] == after["ALIYUN_COM_GPU_MEM_POD"] == "2"
    prepared = granted(agent)[("prepared", "prepare")]
    assert holders[("prepared", "main")][MEMORY] <= set(prepared.ids(Resource.MEM))


def test_a_native_sidecar_keeps_its_own_units_beside_the_app(
    cluster: Cluster, agent: Agent
) -> None:
    sidecar = container("sidecar", TELL_AND_STAY, resources=slice_of(1, 10), restartPolicy="Always")
    main = container("main", TELL_AND_STAY, resources=slice_of(2, 20))
    cluster.apply(pod("accompanied", main, initContainers=[sidecar]))
    cluster.wait_for_phase("accompanied", "Running")
    holders = check_agreement(agent)
    units = {name: holders[("accompanied", name)] for name in ("sidecar", "main")}
    assert not units["sidecar"][MEMORY] & units["main"][MEMORY]
    assert cards_of(units["sidecar"]) == cards_of(units["main"])
    assert environment(cluster, "accompanied", "sidecar")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "1"
    assert environment(cluster, "accompanied", "main")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"


def test_a_static_pod_gets_its_slice(cluster: Cluster, agent: Agent) -> None:
    body = pod("static", container("main", TELL_AND_STAY, resources=slice_of(2, 30)))
    manifest = cluster.node.static_pods / "static.json"
    manifest.write_text(json.dumps(body))
    mirror = f"static-{NODE}"
    try:
        cluster.wait_for_phase(mirror, "Running")
        assert set(check_agreement(agent)) == {(mirror, "main")}
        assert environment(cluster, mirror, "main")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    finally:
        manifest.unlink()
        wait_for("the static pod has gone", lambda: cluster.find("pod", mirror) is None)
