"""The promise: what other parts and older tools read from the API is exactly what was given."""

import json
from dataclasses import replace

import pytest
from tests.domain.nvidia.nodes import card
from tests.domain.words import APP, INIT, SIDECAR, V100_MIB, cards, container, grant, pod, terms
from tests.held import changed

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.cards.memory_unit import MiB, Units
from gpu_device_plugin.domain.fractions.pod_annotations import (
    INIT_ALLOCATION,
    hold_of,
    pod_annotations,
    with_wish,
)
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.holdings_annotation import MOST_ON_A_POD
from gpu_device_plugin.domain.grants.ledger import DeviceUse
from gpu_device_plugin.domain.grants.node_annotations import (
    Claimed,
    cards_annotation,
    holds_by_claims,
    parse_offer,
)
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import StateError

NODE = cards(V100_MIB, V100_MIB)
NOW_NS = 1_700_000_000_000_000_000
ALLOCATION = "scheduler.framework.gpushare.allocation"
ASSIGNED = "scheduler.framework.gpushare.assigned"


def given_to(index: int, units: int, *uuids: str, core: int = 0) -> Grant:
    """What the pod's app container of that index was given."""
    held = grant("a", " ".join(f"m0{unit}" for unit in range(units)))
    return changed(held, index=index, cards=uuids, core_percent=core)


def asking(*units: int) -> PodRequest:
    """A pod whose app containers ask for these memory units."""
    containers = [
        ContainerRequest(f"c{n}", ContainerKind.APP, n, {Resource.MEM: each})
        for n, each in enumerate(units)
    ]
    return PodRequest(PodRef("default", "p"), tuple(containers))


def test_the_nodes_cards_are_compact_json() -> None:
    """Byte for byte; cards that nobody calls healthy are not."""
    assert cards_annotation(NODE[::-1], {"GPU-0": True}, terms()) == (
        '{"version":1,"mode":"core_mem","unit_mib":1024,"cards":['
        '{"index":0,"uuid":"GPU-0","model":"Tesla-V100-SXM2-16GB","memory_mib":16160,'
        '"units":15,"healthy":true},'
        '{"index":1,"uuid":"GPU-1","model":"Tesla-V100-SXM2-16GB","memory_mib":16160,'
        '"units":15,"healthy":false}]}'
    )


def test_why_a_card_is_out_of_service_is_told() -> None:
    """A reader leaves out what is no short text."""
    found = cards_annotation(NODE, {"GPU-0": True}, terms(), faults={"GPU-1": "XID79 since then"})
    assert parse_offer("n1", found, {}).faults == {1: "XID79 since then"}
    assert parse_offer("n1", found.replace("since then", "x" * 97), {}).faults == {}
    assert parse_offer("n1", found.replace('"XID79 since then"', "79"), {}).faults == {}


def test_instances_and_replicas_are_told_in_version_2() -> None:
    """A reader of version 1 finds no room for fractions on a card that is cut."""
    cut = [card(0, "3g.20gb", "3g.20gb"), card(1)]
    healthy = dict.fromkeys(["GPU-0", "GPU-1"], True)
    found = json.loads(cards_annotation(cut, healthy, terms(), {"MIG-0-1": 2, "GPU-1": 10}))

    assert found["version"] == 2
    assert [entry["units"] for entry in found["cards"]] == [0, 40]
    assert [entry["healthy"] for entry in found["cards"]] == [False, True]
    assert found["cards"][0]["instances"][1] == {
        "uuid": "MIG-0-1",
        "index": 1,
        "profile": "3g.20gb",
        "memory_mib": 14592,
        "healthy": True,
        "replicas": 2,
    }
    assert found["cards"][1]["replicas"] == 10
    assert parse_offer("n1", cards_annotation(cut, healthy, terms()), {}).healthy == {1}
    whole = json.loads(cards_annotation(cut, healthy, terms(NodeMode.DEFAULT)))
    assert [entry["healthy"] for entry in whole["cards"]] == [True, True]


def test_a_card_that_is_given_by_claims_says_so_and_what_they_hold() -> None:
    """The version stays: who does not know the keys reads the rest."""
    pods = (PodRef("default", "a", "uid-a"), PodRef("default", "b", "uid-b"))
    held = DeviceUse(memory_mib=MiB(3 * 1024), core_percent=60, pods=pods)
    found = cards_annotation(NODE, {"GPU-0": True}, terms(), by_claims={"GPU-1": held})

    assert [entry.get("allocation_api") for entry in json.loads(found)["cards"]] == ["dra", "dra"]
    assert json.loads(found)["version"] == 1
    offer = parse_offer("n1", found, {})
    assert offer.is_by_claims
    assert offer.claimed == (Claimed(CardIndex(1), 2, Units(3), 60),)
    assert holds_by_claims(found)
    none = cards_annotation(NODE, {"GPU-0": True}, terms(), by_claims={})
    assert not holds_by_claims(none)
    assert parse_offer("n1", none, {}).claimed == ()


@pytest.mark.parametrize("told", [7, {}, {"pods": 1, "units": -1, "percent": 0}, {"pods": True}])
def test_what_claims_hold_is_believed_in_whole_amounts_only(told: object) -> None:
    """A node with anything else has none that could be counted on."""
    plain = json.loads(cards_annotation(NODE, {}, terms(), by_claims={}))
    plain["cards"][1]["claimed"] = told
    with pytest.raises(StateError, match=r"\$\.cards\[1\]\.claimed"):
        parse_offer("n1", json.dumps(plain), {})


def test_one_card_is_told_in_both_generations() -> None:
    """R-540: the second generation, and the first one for older tools."""
    held = [given_to(1, 7, "GPU-1", core=50), given_to(0, 1, "GPU-1", core=50)]

    assert pod_annotations(held, NODE, NOW_NS) == {
        ALLOCATION: '{"0":{"1":1},"1":{"1":7}}',
        ASSIGNED: "true",
        "scheduler.framework.gpushare.assume-time": str(NOW_NS),
        "gpushare.alibabacloud.com/core-percentage": '{"0":{"1":50},"1":{"1":50}}',
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(NOW_NS),
    }


def test_sidecars_and_init_containers_are_told_in_a_key_of_ours() -> None:
    """The published ones count `spec.containers` alone; what it says is no wish any more."""
    sidecar = changed(given_to(0, 3, "GPU-0"), kind=INIT)
    written = pod_annotations([sidecar, given_to(0, 2, "GPU-1")], NODE, NOW_NS)

    assert written[ALLOCATION] == '{"0":{"1":2}}'
    assert written[INIT_ALLOCATION] == '{"0":{"0":3}}'
    asking = PodRequest(
        PodRef("default", "p"),
        (
            ContainerRequest("sidecar", ContainerKind.SIDECAR, 0, {Resource.MEM: 3}),
            ContainerRequest("main", ContainerKind.APP, 0, {Resource.MEM: 2}),
        ),
    )
    assert with_wish(asking, written).init_wish == ()
    assert with_wish(asking, written | {ASSIGNED: "false"}).init_wish == ((0, (0,)),)


def test_several_cards_are_told_in_the_second_generation_only() -> None:
    """Units a card; without compute no percentage is told."""
    assert pod_annotations([given_to(0, 8, "GPU-0", "GPU-1")], NODE, NOW_NS) == {
        ALLOCATION: '{"0":{"0":4,"1":4}}',
        ASSIGNED: "true",
        "scheduler.framework.gpushare.assume-time": str(NOW_NS),
    }


def claimed(name: str, units: int, *uuids: str, core: int = 0) -> Grant:
    """What a claim of that name was given."""
    held = changed(grant("a", ""), mem_units=units, cards=uuids, core_percent=core)
    holder = replace(held.holder, container="", claim=f"uid-{name}", claim_name=name)
    return replace(held, holder=holder)


def test_claims_are_told_as_units_are() -> None:
    """So every tool reads both; the claim's name says for which container."""
    held = [
        claimed("slice-3-30-i0", 3, "GPU-0", core=30),
        claimed("slice-2-30-c1", 2, "GPU-1", core=30),
        claimed("slice-1-5-c0", 1, "GPU-0", core=5),
        claimed("by-hand", 4, "GPU-0"),
    ]
    written = pod_annotations(held, NODE, NOW_NS)

    assert written == {
        ALLOCATION: '{"0":{"0":1},"1":{"1":2}}',
        ASSIGNED: "true",
        "scheduler.framework.gpushare.assume-time": str(NOW_NS),
        INIT_ALLOCATION: '{"0":{"0":3}}',
        "gpushare.alibabacloud.com/core-percentage": '{"0":{"0":5},"1":{"1":30}}',
    }
    over_two = pod_annotations([claimed("slice-8-0-x2-c0", 8, "GPU-0", "GPU-1")], NODE, NOW_NS)
    assert over_two[ALLOCATION] == '{"0":{"0":4,"1":4}}'


@pytest.mark.parametrize(
    "held",
    [
        pytest.param([], id="nothing"),
        pytest.param([changed(given_to(0, 2, "GPU-0"), kind=INIT)], id="an init container"),
        pytest.param([changed(grant("a", "", "c00"), cards=("GPU-0",))], id="no memory yet"),
        pytest.param([given_to(0, 2, "GPU-7")], id="a card that has gone"),
    ],
)
def test_what_cannot_be_told_is_not(held: list[Grant]) -> None:
    """The container index counts `spec.containers`, and a card's index is needed."""
    assert pod_annotations(held, NODE, NOW_NS) == {}


@pytest.mark.parametrize(
    ("annotations", "wish"),
    [
        ({ALLOCATION: '{"0":{"1":1},"1":{"3":4}}'}, ((0, (1,)), (1, (3,)))),
        ({ALLOCATION: '{"0":{"1":1},"1":{"3":2,"2":2}}'}, ((0, (1,)),)),
        ({ALLOCATION: '{"0":{"1":1},"1":{"3":4}}' + " " * MOST_ON_A_POD}, ()),
        (
            {"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"},
            ((0, (2,)), (1, (2,))),
        ),
        (
            {
                "ALIYUN_COM_GPU_MEM_IDX": "2",
                "ALIYUN_COM_GPU_MEM_POD": "4",
                "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            },
            (),
        ),
        ({ALLOCATION: "not json"}, ()),
        ({ALLOCATION: "[1]"}, ()),
        ({ALLOCATION: '{"0":{"x":1}}'}, ()),
        ({ALLOCATION: '{"0":3}'}, ()),
        ({"ALIYUN_COM_GPU_MEM_IDX": "-1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}, ()),
        ({}, ()),
    ],
)
def test_a_wish_is_read_or_is_none(
    annotations: dict[str, str], wish: tuple[tuple[int, tuple[int, ...]], ...]
) -> None:
    """It is advice: what cannot be read, or does not agree with the pod spec, does no harm (R-540)."""
    waiting = annotations | ({ASSIGNED: "false"} if ALLOCATION in annotations else {})

    assert with_wish(asking(1, 4), waiting).wish == wish


def test_a_wish_that_was_fulfilled_is_none() -> None:
    """What we wrote ourselves is not read back as somebody's wish."""
    written = pod_annotations([given_to(0, 2, "GPU-0")], NODE, NOW_NS)

    assert with_wish(asking(2), written).wish == ()


def test_modes_are_told_by_their_names() -> None:
    """The same word as the node's label."""
    assert '"mode":"cgpu"' in cards_annotation(NODE, {}, terms(NodeMode.CGPU))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param((SIDECAR, INIT, APP), [(3, 20), (8, 40)], id="a sidecar before it"),
        pytest.param((INIT, SIDECAR, APP), [(8, 40)], id="a sidecar after it"),
        pytest.param((SIDECAR, APP), [(3, 20), (2, 10)], id="no init container"),
    ],
)
def test_a_pod_without_a_card_counts_as_the_kubelet_will_count_it(
    kinds: tuple[ContainerKind, ...], expected: list[tuple[int, int]]
) -> None:
    """Before agent and annotations say anything, the spec does: units handed on are counted once."""
    amounts = {SIDECAR: (3, 20), INIT: (8, 40), APP: (2, 10)}
    waiting = pod(
        "q", *(container(kind.name, *amounts[kind], kind, at) for at, kind in enumerate(kinds))
    )

    assert [demand.amounts for demand in hold_of(waiting, {}).unplaced] == expected
