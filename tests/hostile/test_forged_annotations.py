"""What a pod holds is not its tenant's to say: forged annotations take nothing of a node and hide nothing."""

import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.controller.replica import Running, a_controller
from tests.domain.words import V100_MIB, cards, grant
from tests.held import changed
from tools.harness.api_server import ApiRequest, status
from tools.harness.objects import Json, held, node, pod
from tools.harness.rig import NODE, Rig, running_rig, slice_of
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions import pod_annotations as of_pods
from gpu_device_plugin.domain.fractions.demands import COUNT_LABEL
from gpu_device_plugin.domain.fractions.pod_annotations import (
    ALLOCATION,
    ASSIGNED,
    CORE_ALLOCATION,
    HELD_KEYS,
    V1_ASSIGNED,
    V1_INDEX,
    V1_UNITS,
    believed_holds,
)
from gpu_device_plugin.domain.grants.grant import UnitsAndPercent
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    HOLDINGS_ANNOTATION,
    Holding,
    held_devices,
    holdings_annotation,
    is_complete,
    parse_holdings,
)
from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    MOST_ON_A_NODE,
    parse_offer,
)
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.overview.node_cards import node_cards

CARDS = 8
EIGHT = cards(*[V100_MIB] * CARDS)
KIB = 1024
MOST_TOTAL = 256 * KIB
"""What the API server takes as the annotations of one object."""
OWN_NODE = f"/api/v1/nodes/{NODE}"
VICTIM = "/api/v1/namespaces/default/pods/greedy"

EVERYWHERE = {
    ALLOCATION: json.dumps({"0": {str(card): 1 for card in range(CARDS)}}),
    CORE_ALLOCATION: json.dumps({"0": {str(card): 100 for card in range(CARDS)}}),
    ASSIGNED: "true",
}
"""8 units on one card, forged into one unit and all compute on each of eight."""


def forged(name: str = "greedy", **annotations: str) -> Json:
    """A bound pod of 8 units and 30 %, with what its tenant wrote."""
    return pod(name, 8, 30, on="n1", annotations={**EVERYWHERE, **annotations})


def told(made: Json, **by_uid: Holding[str]) -> Json:
    """The node with what its agent says that pods hold."""
    text = holdings_annotation({uid.replace("_", "-"): each for uid, each in by_uid.items()})
    made["metadata"]["annotations"][HOLDINGS_ANNOTATION] = text
    return made


def free(found: Running) -> list[tuple[int, int]]:
    """Memory units and percent that are free on each card of n1, by the controller's ledger."""
    rooms = found.controller.ledger.rooms("n1")
    return [(room.free_mem, room.free_core) for room in rooms]


WITHOUT = [(7, 70)] + [(15, 100)] * (CARDS - 1)
ON_CARD_2 = [(15, 100)] * 2 + [(7, 70)] + [(15, 100)] * (CARDS - 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {ALLOCATION: '{"0":{"0":8,"1":8}}'},
        {ALLOCATION: '{"0":{"3":-8}}'},
        {ALLOCATION: '{"0":{"3":true}}'},
        {ALLOCATION: '{"0":{"3":8}}', CORE_ALLOCATION: '{"0":{"3":100}}'},
        {ALLOCATION: '{"0":{"3":8}}', CORE_ALLOCATION: '{"0":{"3":30,"4":30}}'},
        {ALLOCATION: '{"0":{"3":8}}', CORE_ALLOCATION: "nonsense"},
        {ALLOCATION: '{"0":{"3":8.0}}'},
        {ALLOCATION: "[" * 100_000},
        {ALLOCATION: '{"0":{"3":8}}' + " " * 20 * KIB},
    ],
    ids=str,
)
async def test_a_pod_whose_annotations_do_not_agree_with_its_spec_counts_by_its_spec(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    """On the card that the node's policy would choose; and the log says so, once."""
    with capture_logs() as log:
        async with a_controller(tmp_path, (node("n1", CARDS),), (forged(**wrong),)) as found:
            assert free(found) == WITHOUT
            await found.put(forged(other="x", **wrong))
            await found.put(pod("q", 1, 5, on="n1"))
            await until(lambda: len(found.controller.ledger.holds("n1")) == 2)

    (told,) = [str(line) for line in log if "do not agree" in str(line)]
    assert "ns/greedy" in told


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_label_for_several_cards_multiplies_no_compute(
    tmp_path: Path, *, is_named: bool
) -> None:
    """No node serves both; but a tenant may patch the label of a pod that is bound already."""
    each = {str(card): 30 for card in range(CARDS)}
    named = {CORE_ALLOCATION: json.dumps({"0": each})} if is_named else {ALLOCATION: "{}"}
    made = forged(**named)
    made["metadata"]["labels"] = {COUNT_LABEL: str(CARDS)}
    async with a_controller(tmp_path, (node("n1", CARDS),), (made,)) as found:
        assert free(found) == WITHOUT


async def test_what_the_agent_says_wins_whenever_it_says_it(tmp_path: Path) -> None:
    """Before the pod is seen or after, and whatever the tenant writes next, 50 times."""
    holding = Holding({"GPU-n1-2": UnitsAndPercent(Units(8), 30)})
    first = told(node("n1", CARDS), uid_greedy=holding)
    async with a_controller(tmp_path, (first,), (forged(),)) as found:
        assert free(found) == ON_CARD_2

        await found.server.put("/api/v1/nodes/n1", node("n1", CARDS))
        await found.server.put(
            "/api/v1/nodes/n1",
            told(
                node("n1", CARDS), uid_greedy=Holding({"GPU-n1-5": UnitsAndPercent(Units(8), 30)})
            ),
        )
        moved = [(15, 100)] * 5 + [(7, 70)] + [(15, 100)] * 2
        await until(lambda: free(found) == moved)

        for number in range(50):
            agreeing = held(number % CARDS, 8, 30)
            await found.put(pod("greedy", 8, 30, on="n1", annotations=agreeing))
        # The watch keeps the order: what comes after the last of them has been seen after it.
        await found.put(pod("q", 15, 100, on="n1", annotations=held(0, 15, 100)))
        await until(lambda: len(found.controller.ledger.holds("n1")) == 2)
        assert free(found) == [(0, 0), *moved[1:]]

        answer = await found.filter(pod("new", 15, 100), "n1")
        assert answer["NodeNames"] == ["n1"]


async def test_where_a_card_has_another_number_its_pods_are_counted_there(tmp_path: Path) -> None:
    """A card was unplugged, or the driver loaded in another order: what pods hold stays as it was told."""
    holding = Holding({"GPU-n1-2": UnitsAndPercent(Units(8), 30)})
    before = told(node("n1", CARDS), uid_greedy=holding)
    async with a_controller(tmp_path, (before,), (forged(),)) as found:
        assert free(found) == ON_CARD_2
        after = told(node("n1", CARDS), uid_greedy=holding)
        offered = json.loads(after["metadata"]["annotations"][CARDS_ANNOTATION])
        offered["cards"] = [
            {**each, "index": number} for number, each in enumerate(offered["cards"][1:])
        ]
        after["metadata"]["annotations"][CARDS_ANNOTATION] = json.dumps(offered)
        await found.server.put("/api/v1/nodes/n1", after)
        await until(lambda: free(found) == [(15, 100), (7, 70), *[(15, 100)] * (CARDS - 3)])


async def test_nobody_borrows_what_the_agent_says_of_another_pod(tmp_path: Path) -> None:
    """A pod that calls itself the mirror of another has the API server's uid all the same."""
    mirror = pod("greedy", 1, 5, on="n1", annotations={"kubernetes.io/config.mirror": "uid-a"})
    named = told(node("n1", CARDS), uid_a=Holding({"GPU-n1-4": UnitsAndPercent(Units(15), 100)}))
    victim = pod("a", 15, 100, on="n1")
    async with a_controller(tmp_path, (named,), (victim, mirror)) as found:
        assert free(found) == [(14, 95), *[(15, 100)] * 3, (0, 0), *[(15, 100)] * 3]


async def test_before_the_agent_has_said_anything_a_scheduler_is_believed(tmp_path: Path) -> None:
    """Where its wish agrees with the spec; several controllers see the same."""
    wished = pod("p", 8, 30, on="n1", annotations=held(2, 8, 30, assigned="false"))
    async with a_controller(tmp_path, (node("n1", CARDS),), (wished,)) as found:
        assert free(found) == ON_CARD_2


@pytest.mark.parametrize("units", ["8", "1", "x" * 100_000])
def test_the_first_generation_is_a_wish_only_where_its_units_are_those_of_the_spec(
    units: str,
) -> None:
    asking = PodRequest(
        PodRef("ns", "p"), (ContainerRequest("a", ContainerKind.APP, 0, {"aliyun.com/gpu-mem": 8}),)
    )
    first = {V1_INDEX: "3", V1_UNITS: units, V1_ASSIGNED: "false"}
    assert of_pods.with_wish(asking, first).wish == (((0, (3,)),) if units == "8" else ())


def work(monkeypatch: pytest.MonkeyPatch, read: Any, *texts: str) -> list[int]:
    """How many characters reach the JSON parser while each text is read."""
    lengths: list[int] = []
    parse = msgspec.json.decode

    def decode(text: str, **form: Any) -> Any:
        lengths[-1] += len(text)
        return parse(text, **form)

    monkeypatch.setattr(msgspec.json, "decode", decode)
    for text in texts:
        lengths.append(0)
        read(text)
    return lengths


def test_an_annotation_of_any_size_costs_no_more_than_the_longest_honest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of a long one is parsed; of a short one each character once."""
    asking = PodRequest(PodRef("ns", "p"), ())
    short, long = '{"0":{}}', '{"0":{}}' + " " * MOST_TOTAL
    own = work(monkeypatch, lambda text: believed_holds(asking, {ALLOCATION: text}), short, long)
    assert own[0] == own[1] + len(short)
    assert work(monkeypatch, held_devices, '{"0":[]}', '{"0":[]}' + long) == [8, 0]
    read = partial(parse_holdings, cards=EIGHT)
    assert work(monkeypatch, read, short, long) == [len(short), 0]


def test_a_pod_of_which_a_container_is_still_to_come_is_not_named() -> None:
    """What is missing counts by the spec until then."""
    asked = {"aliyun.com/gpu-mem": 2}
    names = ("main", "second", "plain")
    containers = [
        ContainerRequest(name, ContainerKind.APP, n, {} if name == "plain" else asked)
        for n, name in enumerate(names)
    ]
    spec = PodRequest(PodRef("default", "a", "uid-a"), tuple(containers))
    first = grant("a", "m00 m01")
    second = changed(first, slice_id="second", container="second")
    assert not is_complete([first], spec)
    assert not is_complete([first, second], None)
    assert is_complete([first, second], spec)


@pytest.mark.parametrize("pods", [100, 10_000])
def test_the_nodes_annotation_has_a_bound_and_says_of_each_pod_all_or_nothing(pods: int) -> None:
    share = UnitsAndPercent(Units(2), 30)
    text = holdings_annotation(
        {f"uid-{n}": Holding({f"GPU-{n % 8}": share}, (), n % 2 == 0) for n in range(pods)}
    )
    assert text is not None
    assert len(text) <= MOST_ON_A_NODE
    read = parse_holdings(text, EIGHT)
    meant = {f"uid-{n}": Holding({CardIndex(n % 8): share}, (), n % 2 == 0) for n in range(pods)}
    assert read.items() <= meant.items()
    assert len(read) == pods or len(read) > 900


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"pods":[]}',
        '{"pods":{"u":{}}}',
        '{"cards":["GPU-0",1],"pods":{"u":{}}}',
        '{"cards":{"0":"GPU-0"},"pods":{"u":{}}}',
        json.dumps({"cards": ["GPU-0"] * 300, "pods": {"u": {}}}),
        json.dumps({"cards": ["GPU-0" * 20], "pods": {"u": {}}}),
        '{"cards":["GPU-0"],"pods":{"u":[]}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":[]}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"0":[1]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"0":[1,true]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"0":[1,1e3]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"0":[1,9999999999999]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"-1":[1,5]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"0":[-2,30]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"slices":{"1":[1,5]}}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"devices":[1]}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"devices":[true]}}}',
        '{"cards":["GPU-0"],"pods":{"u":{"devices":["GPU-0"]}}}',
        "[" * 60_000,
    ],
    ids=lambda text: text[:60],
)
def test_a_nodes_annotation_that_no_agent_writes_says_nothing(text: str) -> None:
    assert parse_holdings(text, EIGHT) == {}


def test_shares_of_a_card_that_the_node_does_not_have_now_are_left_out() -> None:
    """One that was unplugged, for instance; the pod still counts as told."""
    share = UnitsAndPercent(Units(2), 30)
    text = holdings_annotation({"u": Holding({"GPU-gone": share, "GPU-7": share})}) or ""
    assert parse_holdings(text, EIGHT) == {"u": Holding({CardIndex(7): share})}
    assert parse_holdings(text, ())["u"].by_card == {}


def test_a_node_that_writes_its_annotation_again_and_again_fills_no_memory() -> None:
    """What pods hold alike is kept once for all; a long entry is not kept for others."""
    most = cards(*[V100_MIB] * 36)
    tracemalloc.start()
    try:
        for number in range(50):
            uuids = [*(card.uuid for card in most), *(f"{number:x}-{n:x}" for n in range(250))]
            many = {"devices": list(range(36, 286))}
            beyond = {"slices": {"286": [number, 5]}}
            slices = {"slices": {str(card): [number, 5] for card in range(36)}}
            pods = {"a": many, "b": beyond, "c": slices, "d": {"devices": [1] * 5000}}
            text = json.dumps({"version": 1, "cards": uuids, "pods": pods})
            assert set(parse_holdings(text, most)) == {"a", "c"}
            assert not parse_holdings(text.replace("GPU-1", "GPU-1" * 1000), most)
        assert tracemalloc.get_traced_memory()[0] < MOST_ON_A_NODE * 2
    finally:
        tracemalloc.stop()


def holdings_at(rig: Rig) -> dict[str, Holding[CardIndex]]:
    """What the agent says on its node."""
    told = rig.annotations()
    if HOLDINGS_ANNOTATION not in told:
        return {}
    cards = parse_offer(NODE, told[CARDS_ANNOTATION], {}).cards
    return dict(parse_holdings(told[HOLDINGS_ANNOTATION], cards))


def full(rig: Rig) -> Any:
    """The API server's answer to a patch by which a pod's annotations would become too large."""

    def fault(seen: ApiRequest) -> Any:
        if seen.method != "PATCH" or seen.path not in rig.api.objects:
            return None
        changed = (seen.body.get("metadata") or {}).get("annotations") or {}
        after = {**rig.annotations(seen.path), **changed}
        size = sum(len(key) + len(value) for key, value in after.items() if value is not None)
        return status(422, "metadata.annotations: Too long") if size > MOST_TOTAL else None

    return fault


async def patch(rig: Rig, **values: str | None) -> None:
    """The tenant patches its own pod."""
    made = json.loads(json.dumps(rig.api.objects[VICTIM]))
    kept = {**rig.annotations(VICTIM), **values}
    made["metadata"]["annotations"] = {k: v for k, v in kept.items() if v is not None}
    await rig.api.put(VICTIM, made)


async def test_an_agent_says_on_its_node_what_pods_hold_until_they_are_gone() -> None:
    """By uid, with all containers; a pod of which a part is still missing is not named."""
    async with running_rig(is_hasty=True) as rig:
        assert (await rig.admit("one", slice_of(2, 30), slice_of(3, 20))).is_admitted
        assert (await rig.admit("two", slice_of(4, 10), init=(slice_of(6, 10),))).is_admitted
        one, two = rig.uid("one"), rig.uid("two")
        await until(lambda: set(holdings_at(rig)) == {one, two}, 20)
        found = holdings_at(rig)
        assert list(found[one].by_card.values()) == [(5, 50)]
        # What the init container had, nobody else gets while the pod lives.
        assert list(found[two].by_card.values()) == [(6, 10)]

        await rig.delete(one)
        await until(lambda: set(holdings_at(rig)) == {two}, 60)


async def test_an_agent_says_what_a_pod_holds_by_its_init_containers_alone() -> None:
    """No annotation that schedulers know tells it, so a tenant could say that it is on any card."""
    async with running_rig("dgx-a100") as rig:
        assert (await rig.admit("greedy", init=(slice_of(8, 30),))).is_admitted
        uid = rig.uid("greedy")
        await until(lambda: uid in holdings_at(rig), 20)
        assert list(holdings_at(rig)[uid].by_card.values()) == [(8, 30)]


async def test_an_agent_that_starts_again_takes_nothing_back_of_what_it_said() -> None:
    async with running_rig("dgx-a100") as rig:
        assert (await rig.admit("greedy", slice_of(8, 30))).is_admitted
        uid = rig.uid("greedy")
        await until(lambda: uid in holdings_at(rig), 20)
        said = holdings_at(rig)
        before = len(rig.api.seen("PATCH", OWN_NODE))
        await rig.restart_agent()
        assert (await rig.admit("next", slice_of(1, 5))).is_admitted
        await until(lambda: rig.uid("next") in holdings_at(rig), 20)
        written = [seen.body["metadata"] for seen in rig.api.seen("PATCH", OWN_NODE)[before:]]
        told = [each.get("annotations", {}).get(HOLDINGS_ANNOTATION, "") for each in written]
        assert None not in told
        assert holdings_at(rig)[uid] == said[uid]


async def test_padding_keeps_nothing_forged_on_a_pod_and_hides_nothing() -> None:
    """The agent takes the forged keys away, says so once, and writes its own when there is room."""
    async with running_rig("dgx-a100") as rig:
        assert (await rig.admit("greedy", slice_of(8, 30))).is_admitted
        await until(lambda: rig.annotations(VICTIM).get(ASSIGNED) == "true")
        uid, true = rig.uid("greedy"), rig.annotations(VICTIM)
        await until(lambda: uid in holdings_at(rig))
        said = holdings_at(rig)[uid]
        rig.api.fault = full(rig)

        short = dict.fromkeys(true, "")
        room = MOST_TOTAL - sum(len(key) for key in true) - len("padding") - 16
        await patch(rig, padding="x" * room, **{**short, ALLOCATION: "{}", V1_INDEX: "7"})
        await until(lambda: not rig.annotations(VICTIM).keys() & set(HELD_KEYS), 30)
        await until(lambda: rig.events("PodPatchRefused"), 30)
        assert holdings_at(rig)[uid] == said

        # It is tried again: also after that many refusals nothing is given up.
        before = len(rig.api.seen("PATCH", VICTIM))
        await until(lambda: len(rig.api.seen("PATCH", VICTIM)) >= before + 2, 60)
        await patch(rig, padding=None)
        await until(lambda: rig.annotations(VICTIM) == true, 90)
        assert len(rig.events("PodPatchRefused")) == 1
        assert rig.events("PodPatchRefused")[0].get("count", 1) == 1


async def test_a_tenant_that_repeats_its_patch_changes_nothing_of_what_the_node_says() -> None:
    async with running_rig("dgx-a100") as rig:
        assert (await rig.admit("greedy", slice_of(8, 30))).is_admitted
        await until(lambda: rig.annotations(VICTIM).get(ASSIGNED) == "true")
        uid = rig.uid("greedy")
        await until(lambda: uid in holdings_at(rig))
        said = holdings_at(rig)
        for number in range(20):
            await patch(rig, **EVERYWHERE, **{DEVICES_ANNOTATION: f'{{"0":["GPU-{number}"]}}'})
            assert holdings_at(rig) == said
        await until(lambda: rig.annotations(VICTIM)[ALLOCATION] != EVERYWHERE[ALLOCATION], 30)
        assert holdings_at(rig) == said


@pytest.mark.parametrize(
    ("asked", "uuids", "says", "holds"),
    [
        (1, ("GPU-n1-0",), None, {0}),
        (1, ("GPU-n1-0", "GPU-n1-1"), None, set()),
        (0, ("GPU-n1-0",), None, set()),
        (1, ("GPU-n1-0",), Holding(devices=("GPU-n1-1",)), {1}),
        (1, ("GPU-n1-0",), Holding(), set()),
    ],
)
def test_whole_cards_are_shown_as_held_by_the_agents_word_or_as_many_as_the_pod_asks_for(
    asked: int, uuids: tuple[str, ...], says: Holding[str] | None, holds: set[int]
) -> None:
    ref = PodRef("ns", "greedy", "u")
    notes = {DEVICES_ANNOTATION: json.dumps({"0": uuids})}
    taker = ClusterPod(PodRequest(ref, ()), "n1", notes, "", {"nvidia.com/gpu": asked})
    offered = node("n1", mode="default")["metadata"]["annotations"][CARDS_ANNOTATION]
    holdings = holdings_annotation({"u": says} if says else {}) or ""
    view = node_cards(ClusterNode("n1", offered, {}, holdings=holdings), [taker])
    assert {card.index for card in view.cards if ref in card.pods} == holds
