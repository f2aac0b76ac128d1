"""kube-scheduler's extender: a pod goes only where one card fits, and nothing is given twice."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.controller.replica import a_controller
from tools.harness.api_server import ApiRequest, status
from tools.harness.objects import UNITS, claiming, held, node, path, pod
from tools.harness.waiting import until

from gpu_device_plugin.controller import binder
from gpu_device_plugin.domain.fractions.pod_annotations import (
    ALLOCATION,
    ASSIGNED,
    CORE_ALLOCATION,
    INIT_ALLOCATION,
)
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.settings.controller_settings import FilterKeeps


async def test_a_pod_goes_only_where_one_card_fits_though_the_sum_fits_elsewhere(
    tmp_path: Path,
) -> None:
    """n1 has 10 of 30 units free, 5 on each card; n2 has a card with 8 (R-529)."""
    pods = (
        pod("a", 10, 50, on="n1", annotations=held(0, 10, 50)),
        pod("b", 10, 50, on="n1", annotations=held(1, 10, 50)),
        pod("c", 7, 50, on="n2", annotations=held(0, 7, 50)),
        pod("d", 15, 50, on="n2", annotations=held(1, 15, 50)),
    )
    async with a_controller(tmp_path, (node("n1"), node("n2")), pods) as found:
        answer = await found.filter(pod("new", 8, 30), "n1", "n2")

    assert answer["NodeNames"] == ["n2"]
    assert answer["FailedNodes"] == {
        "n1": "node(s) didn't have enough device resources to allocate: the emptiest card has 5 units and 50 percent left"
    }


async def test_of_nodes_that_fit_the_best_stays_and_the_others_say_which(tmp_path: Path) -> None:
    """Binpack, the default: the fuller card; for a pod that wants to be spread the emptier one (R-530, R-541)."""
    spread = {"gpu-device-plugin/placement": "spread"}
    pods = (pod("a", 10, 50, on="n2", annotations=held(0, 10, 50)),)
    async with a_controller(tmp_path, (node("n1", 1), node("n2", 1)), pods) as found:
        answer = await found.filter(pod("new", 2, 30), "n1", "n2")
        scores = await found.call(
            "prioritize", {"Pod": pod("new", 2, 30), "NodeNames": ["n1", "n2"]}
        )
        other = await found.filter(pod("new", 2, 30, annotations=spread), "n1", "n2")

    assert answer["NodeNames"] == ["n2"]
    assert other["NodeNames"] == ["n1"]
    assert answer["FailedNodes"] == {"n1": "fits, but n2 fits better"}
    by_host = {each["Host"]: each["Score"] for each in scores}
    assert 10 >= by_host["n2"] > by_host["n1"] >= 0


_PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}


@pytest.mark.parametrize(
    ("keeps", "spec", "kept"),
    [
        (FilterKeeps.AUTO, {}, 8),
        (FilterKeeps.AUTO, {"affinity": {"nodeAffinity": _PREFERRED}}, 10),
        (FilterKeeps.AUTO, {"affinity": {"podAffinity": _PREFERRED}}, 10),
        (FilterKeeps.AUTO, {"affinity": {"podAntiAffinity": _PREFERRED}}, 10),
        (
            FilterKeeps.AUTO,
            {"affinity": {"nodeAffinity": {"required": {}}, "podAffinity": None}},
            8,
        ),
        (
            FilterKeeps.AUTO,
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
            10,
        ),
        (
            FilterKeeps.AUTO,
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            8,
        ),
        (FilterKeeps.ALL, {}, 10),
        (FilterKeeps.BEST, {"affinity": {"nodeAffinity": _PREFERRED}}, 8),
    ],
)
async def test_all_nodes_that_fit_stay_where_the_pod_has_preferences_or_the_operator_says_so(
    tmp_path: Path, keeps: FilterKeeps, spec: dict[str, Any], kept: int
) -> None:
    """Ten equal nodes and a full one."""
    names, asking = [f"n{number}" for number in range(10)], pod("new", 2, 30)
    asking["spec"] |= spec
    full = pod("a", 15, 100, on="full", annotations=held(0, 15, 100))
    nodes = tuple(node(name, 1) for name in (*names, "full"))
    async with a_controller(tmp_path, nodes, (full,), filter_keeps=keeps) as found:
        answer = await found.filter(asking, *names, "full")

    assert sorted(answer["NodeNames"]) == names[:kept]
    lost = dict.fromkeys(names[kept:], "fits, but n0 comes first")
    none = "node(s) didn't have enough device resources to allocate: no card has anything left"
    assert answer["FailedNodes"] == {**lost, "full": none}


async def test_the_reason_has_the_figures_of_the_card_that_has_most_left(tmp_path: Path) -> None:
    """One reason for nodes alike, of a card that could be given; compute only where it is divided."""
    pods = (
        pod("a", 10, 50, on="n1", annotations=held(0, 10, 50)),
        pod("b", 12, 50, on="n2", annotations=held(0, 12, 50)),
        pod("c", 9, on="shared", annotations=held(0, 9, 0)),
    )
    nodes = (node("n1", 1), node("n2", 2, sick=(1,)), node("shared", 1, mode="share"))
    async with a_controller(tmp_path, nodes, pods) as found:
        divided = await found.filter(pod("new", 8, 30), "n1", "n2")
        shared = await found.filter(pod("other", 8), "shared")

    text = "node(s) didn't have enough device resources to allocate: the emptiest card has"
    assert divided["FailedNodes"] == dict.fromkeys(
        ("n1", "n2"), f"{text} 5 units and 50 percent left"
    )
    assert shared["FailedNodes"] == {"shared": f"{text} 6 units left"}


async def test_the_emptiest_card_is_that_of_the_largest_free_part_and_of_too_many_nodes_none_is_sought(
    tmp_path: Path,
) -> None:
    """A card with all memory and little compute left is full; the words may not hold up an answer."""
    pods = (
        pod("a", 1, 90, on="n1", annotations=held(0, 1, 90)),
        pod("b", 10, 40, on="n2", annotations=held(0, 10, 40)),
    )
    nodes = tuple(node(f"n{number}", 1) for number in range(1, 102))
    names = [each["metadata"]["name"] for each in nodes]
    large = pod("new", 100, 50)
    async with a_controller(tmp_path, nodes, pods) as found:
        two = await found.filter(pod("new", 15, 50), "n1", "n2")
        many = await found.filter(large, *names)
        fewer = await found.filter(large, *names[:100])

    text = "node(s) didn't have enough device resources to allocate"
    assert set(two["FailedNodes"].values()) == {
        f"{text}: the emptiest card has 5 units and 60 percent left"
    }
    said = [
        set((each.get("FailedAndUnresolvableNodes") or each["FailedNodes"]).values())
        for each in (many, fewer)
    ]
    assert said == [{text}, {f"{text}: the emptiest card has 15 units and 100 percent left"}]


async def test_the_first_of_equal_nodes_has_most_points_and_the_worst_has_none(
    tmp_path: Path,
) -> None:
    """kube-scheduler's own scores would choose the emptiest of nodes with the same points."""
    pods = tuple(
        pod(f"p-{name}", units, 50, on=name, annotations=held(0, units, 50))
        for name, units in (("n1", 10), ("n2", 10), ("n3", 5))
    )
    names = ["n4", "n3", "n2", "n1", "plain"]
    nodes = tuple(node(name, 1) for name in names[:4])
    async with a_controller(tmp_path, nodes, pods) as found:
        asked = {"Pod": pod("new", 2, 30), "NodeNames": names}
        scores = await found.call("prioritize", asked)
        equal = await found.call("prioritize", asked | {"NodeNames": ["n2", "n1"]})

    points = {each["Host"]: each["Score"] for each in scores}
    assert points == {"n1": 10, "n2": 9, "n3": 4, "n4": 0, "plain": 0}
    assert {each["Host"]: each["Score"] for each in equal} == {"n1": 10, "n2": 0}


async def test_nodes_with_the_same_left_are_answered_alike_and_bound_each_to_its_own_card(
    tmp_path: Path,
) -> None:
    """On n1 the first card is the fuller one, on n2 the second."""
    one, two = pod("one", 2, 30), pod("two", 2, 30)
    pods = (
        pod("a", 10, 50, on="n1", annotations=held(0, 10, 50)),
        pod("b", 10, 50, on="n2", annotations=held(1, 10, 50)),
    )
    async with a_controller(tmp_path, (node("n1"), node("n2")), (*pods, one, two)) as found:
        assert (await found.filter(one, "n2", "n1"))["NodeNames"] == ["n1", "n2"]
        assert await found.bind(one, "n1") == ""
        assert await found.bind(two, "n2") == ""
        bound = [found.server.objects[path(each)]["metadata"] for each in (one, two)]

    cards = [json.loads(each["annotations"][ALLOCATION]) for each in bound]
    assert cards == [{"0": {"0": 2}}, {"0": {"1": 2}}]


async def test_a_node_that_is_named_twice_is_answered_once(tmp_path: Path) -> None:
    async with a_controller(tmp_path, (node("n1"),)) as found:
        answer = await found.filter(pod("new", 2, 30), "n1", "n1")

    assert (answer["NodeNames"], answer.get("FailedNodes")) == (["n1"], None)


async def test_fgd_follows_the_processors_that_every_pod_leaves(tmp_path: Path) -> None:
    """Also those of pods without a slice, of one that is being bound, and of one that has ended."""
    nodes = (node("n1", 1, cpu="16"), node("n2", 1, cpu="16"))
    plain = pod("plain", on="n1", cpu="8")
    fgd = PlacementPolicy.FGD
    async with a_controller(tmp_path, nodes, (plain,), placement=fgd) as found:
        asking = pod("new", 3, 20, cpu="6")
        assert (await found.filter(asking, "n1", "n2"))["NodeNames"] == ["n2"]

        await found.put(plain | {"status": {"phase": "Succeeded"}})
        await until(lambda: found.controller.ledger.processors.free("n1") == 16_000)
        assert (await found.filter(asking, "n1", "n2"))["NodeNames"] == ["n1", "n2"]

        await found.put(pod("hungry", 3, 20, cpu="9"))
        await until(lambda: found.controller.ledger.pod(PodRef("ns", "hungry", "uid-hungry")))
        assert await found.bind(pod("hungry"), "n2") == ""
        assert (await found.filter(asking, "n1", "n2"))["NodeNames"] == ["n1"]


async def test_a_classic_pod_goes_to_no_node_that_gives_its_cards_by_claims(tmp_path: Path) -> None:
    """What claims hold counts also on a node that has gone back: it has only just been told."""
    claimed = {0: (2, 30)}
    nodes = (node("n1", by_claims=(0, 1)), node("n2", 1, claimed=claimed))
    async with a_controller(tmp_path, nodes) as found:
        answer = await found.filter(pod("new", 13, 70), "n1", "n2")
        assert answer["NodeNames"] == ["n2"]
        text = "node(s) give their cards through claims only"
        assert answer["FailedAndUnresolvableNodes"] == {"n1": text}
        assert not (await found.filter(pod("new", 14, 70), "n2"))["NodeNames"]


async def test_a_pod_with_claims_is_none_of_the_extenders(tmp_path: Path) -> None:
    """kube-scheduler allocates its card; where it asks about such a pod after all, every node stays."""
    nodes = (node("n1", by_claims=(0, 1)), node("n2"))
    waiting = claiming("new", 15, 30)
    async with a_controller(tmp_path, nodes, (waiting,)) as found:
        assert (await found.filter(waiting, "n1", "n2"))["NodeNames"] == ["n1", "n2"]
        assert await found.bind(waiting, "n1") == ""
        assert found.controller.ledger.reserved == 0


async def test_what_a_node_can_never_serve_is_told_apart(tmp_path: Path) -> None:
    """Eviction does not help there, so kube-scheduler need not try it (R-526, R-529)."""
    nodes = (node("core"), node("mem", mode="cgpu"), node("off", mode="disabled"))
    async with a_controller(tmp_path, nodes) as found:
        memory_only = await found.filter(pod("new", 2), "core", "mem", "off", "plain")
        too_big = await found.filter(pod("big", 16, 30), "core")

    assert memory_only["NodeNames"] == ["mem"]
    assert memory_only["FailedAndUnresolvableNodes"] == {
        "core": "node(s) owns gpu resources are not matched that pod requests",
        "off": "none(s) should have at least one resource in [aliyun.com/gpu-mem]",
        "plain": "node(s) have no cards of an agent",
    }
    assert set(too_big["FailedAndUnresolvableNodes"]) == {"core"}


async def test_a_sick_card_is_given_to_nobody(tmp_path: Path) -> None:
    """The annotation's health decides."""
    async with a_controller(tmp_path, (node("n1", 1, sick=(0,)),)) as found:
        answer = await found.filter(pod("new", 2, 30), "n1")

    assert answer["NodeNames"] == []


async def test_a_pod_that_asks_for_nothing_of_ours_passes(tmp_path: Path) -> None:
    """Every candidate stays."""
    async with a_controller(tmp_path, (node("n1"),)) as found:
        answer = await found.filter(pod("plain"), "n1", "other")

    assert answer["NodeNames"] == ["n1", "other"]


async def test_whole_node_objects_come_back_as_they_came(tmp_path: Path) -> None:
    """Fields that we do not know included."""
    sent = node("n1") | {"status": {"odd": [1, 2.50, "x"]}}
    async with a_controller(tmp_path, (node("n1"),)) as found:
        answer = await found.call("filter", {"Pod": pod("new", 2, 30), "Nodes": {"items": [sent]}})

    assert answer["Nodes"]["items"] == [sent]
    assert "NodeNames" not in answer


async def test_bind_writes_the_wish_and_the_node_in_one_request(tmp_path: Path) -> None:
    """So nobody ever sees the one without the other (R-540)."""
    new = pod("new", 2, 30)
    async with a_controller(tmp_path, (node("n1"),), (new,)) as found:
        assert await found.bind(new, "n1") == ""
        (seen,) = found.server.seen("POST", "/binding")
        bound = found.server.objects[path(new)]

    assert bound["spec"]["nodeName"] == "n1"
    assert json.loads(bound["metadata"]["annotations"][ALLOCATION]) == {"0": {"0": 2}}
    assert json.loads(bound["metadata"]["annotations"][CORE_ALLOCATION]) == {"0": {"0": 30}}
    assert bound["metadata"]["annotations"][ASSIGNED] == "false"
    first = {"IDX": "0", "POD": "2", "DEV": "15", "ASSIGNED": "false"}
    for key, value in first.items():
        assert bound["metadata"]["annotations"][f"ALIYUN_COM_GPU_MEM_{key}"] == value
    assert seen.body["metadata"]["uid"] == "uid-new"


async def test_a_copied_pods_annotations_say_nothing_of_the_pod_that_it_was(tmp_path: Path) -> None:
    """A binding only adds annotations: those of its own that it has no use for are emptied."""
    stale = {CORE_ALLOCATION: '{"0":{"1":90}}', INIT_ALLOCATION: '{"0":{"1":9}}'}
    new = pod("new", 2, annotations=stale)
    async with a_controller(tmp_path, (node("n1", mode="cgpu"),), (new,)) as found:
        assert await found.bind(new, "n1") == ""
        told = found.server.objects[path(new)]["metadata"]["annotations"]

    assert (told[CORE_ALLOCATION], told[INIT_ALLOCATION]) == ("{}", "{}")


async def test_binds_that_race_never_give_more_than_a_card_has(tmp_path: Path) -> None:
    """Forty pods of 2 units and 10 % ask for one node of 2 cards at once: 7 fit on a card."""
    asking = tuple(pod(f"p{number}", 2, 10) for number in range(40))
    async with a_controller(tmp_path, (node("n1"),), asking) as found:
        errors = await asyncio.gather(*(found.bind(each, "n1") for each in asking))
        objects = [found.server.objects[path(each)] for each in asking]

    bound = [each for each in objects if each["spec"]["nodeName"]]
    by_card: dict[str, int] = {}
    for each in bound:
        for card, units in json.loads(each["metadata"]["annotations"][ALLOCATION])["0"].items():
            by_card[card] = by_card.get(card, 0) + units
    assert by_card == {"0": 14, "1": 14}
    assert errors.count("") == len(bound) == 14
    assert all("no longer fits node n1" in error for error in errors if error)


async def test_a_binding_that_is_refused_gives_its_room_back(tmp_path: Path) -> None:
    """The next pod gets the card."""
    first, second = pod("first", 15, 100), pod("second", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (first, second)) as found:
        found.server.fault = _refuse_bindings_of("first")
        assert "quota" in await found.bind(first, "n1")
        assert await found.bind(second, "n1") == ""


def _refuse_bindings_of(name: str) -> Any:
    def fault(seen: ApiRequest) -> web.Response | None:
        if seen.path.endswith(f"/{name}/binding"):
            return web.json_response({"message": "over quota", "code": 403}, status=403)
        return None

    return fault


async def test_a_binding_whose_answer_got_lost_counts_by_what_the_pod_says(tmp_path: Path) -> None:
    """The API server bound it and broke the connection."""
    new = pod("new", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (new,)) as found:

        def fault(seen: ApiRequest) -> web.Response | None:
            if not seen.path.endswith("/binding"):
                return None
            found.server.objects[path(new)]["spec"]["nodeName"] = "n1"
            return web.json_response({}, status=502)

        found.server.fault = fault
        assert await found.bind(new, "n1") == ""


async def test_a_pod_that_changed_since_is_read_again_and_bound(tmp_path: Path) -> None:
    """The watch is behind: the version that was known is refused, the one that is there is not."""
    new = pod("new", 2, 30)
    async with a_controller(tmp_path, (node("n1"),), (new,)) as found:
        refused: list[str] = []

        def fault(seen: ApiRequest) -> web.Response | None:
            if seen.path.endswith("/binding") and not refused:
                refused.append(seen.path)
                return web.json_response({"message": "has been modified", "code": 409}, status=409)
            return None

        found.server.fault = fault
        assert await found.bind(new, "n1") == ""
    assert refused


async def test_the_ledger_follows_pods_that_end(tmp_path: Path) -> None:
    """Room is free again as soon as the watch says so."""
    old = pod("old", 15, 100, on="n1", annotations=held(0, 15, 100))
    async with a_controller(tmp_path, (node("n1", 1),), (old,)) as found:
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == []
        await found.put(old | {"status": {"phase": "Succeeded"}})
        ledger = found.controller.ledger
        await until(lambda: ledger.rooms("n1")[0].free_mem == UNITS)
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == ["n1"]


async def test_a_bound_pod_without_annotations_counts_where_the_node_would_put_it(
    tmp_path: Path,
) -> None:
    """Bound by a scheduler that knows nothing of us."""
    async with a_controller(tmp_path, (node("n1", 1),), (pod("old", 10, 50, on="n1"),)) as found:
        answer = await found.filter(pod("new", 8, 30), "n1")

    assert answer["NodeNames"] == []


async def test_inspect_shows_every_card_and_who_holds_it(tmp_path: Path) -> None:
    """And an unknown node is a 404 with JSON (R-541)."""
    pods = (pod("a", 10, 50, on="n1", annotations=held(1, 10, 50)),)
    async with a_controller(tmp_path, (node("n1"),), pods) as found:
        status, text = await found.get("/gpushare-scheduler/inspect/n1")
        missing = await found.get("/gpushare-scheduler/inspect/n9")

    assert status == 200
    (told,) = json.loads(text)["nodes"]
    assert (told["name"], told["totalGPU"], told["usedGPU"]) == ("n1", 30, 10)
    assert told["devs"][1]["pods"] == [{"name": "a", "namespace": "ns", "usedGPU": 10}]
    assert missing == (404, '{"error": "no node n9 with slices"}')


async def test_bad_bodies_are_answered_and_change_nothing(tmp_path: Path) -> None:
    """An error each, and the next call works."""
    async with a_controller(tmp_path, (node("n1"),)) as found:
        assert "no ExtenderArgs" in (await found.call("filter", b"{"))["Error"]
        assert (await found.call("prioritize", b"[]"))[0] == 400
        assert "no ExtenderBindingArgs" in (await found.call("bind", b"{}"))["Error"]
        assert (await found.call("filter", io.BytesIO(b" " * (2 << 20))))[0] == 413
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == ["n1"]


async def test_metrics_tell_each_cards_room(tmp_path: Path) -> None:
    """By node and card."""
    pods = (pod("a", 10, 50, on="n1", annotations=held(1, 10, 50)),)
    async with a_controller(tmp_path, (node("n1"),), pods) as found:
        await found.filter(pod("new", 2, 30), "n1")
        _, text = await found.get("/metrics", port=found.controller.pages.port)

    assert 'gpu_cluster_card_free_memory_units{card="1",node="n1"} 5.0' in text
    assert 'gpu_controller_call_duration_seconds_count{verb="filter"} 1.0' in text


async def test_a_binding_that_nobody_answers_keeps_its_room(tmp_path: Path) -> None:
    """The API server may carry it out later, behind whatever broke the connection."""
    first, second = pod("first", 15, 100), pod("second", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (first, second)) as found:

        def fault(seen: ApiRequest) -> web.Response | None:
            is_first = seen.path.endswith("/first/binding")
            return web.json_response({}, status=502) if is_first else None

        found.server.fault = fault
        assert "502" in await found.bind(first, "n1")
        assert "no longer fits node n1" in await found.bind(second, "n1")
        # The pod itself may try again: its own reservation is not in its way.
        found.server.fault = lambda _: None
        assert await found.bind(first, "n1") == ""


@pytest.mark.parametrize("code", [500, 503, 504])
async def test_a_binding_that_failed_half_way_keeps_its_room(tmp_path: Path, code: int) -> None:
    """The API server's time for etcd ran out, say: etcd may have it."""
    first, second = pod("first", 15, 100), pod("second", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (first, second)) as found:
        found.server.fault = _answer_bindings_of("first", code)
        assert f"{code} no time" in await found.bind(first, "n1")
        assert found.controller.ledger.reserved == 1
        answer = await found.filter(second, "n1")

    assert answer["NodeNames"] == []


async def test_a_binding_that_is_throttled_gives_its_room_back(tmp_path: Path) -> None:
    """A 429 is answered before anything is done."""
    first = pod("first", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (first,)) as found:
        found.server.fault = _answer_bindings_of("first", 429)
        assert "429" in await found.bind(first, "n1")
        assert found.controller.ledger.reserved == 0


def _answer_bindings_of(name: str, code: int) -> Any:
    def fault(seen: ApiRequest) -> web.Response | None:
        return status(code, "no time") if seen.path.endswith(f"/{name}/binding") else None

    return fault


async def test_a_pod_goes_nowhere_else_while_a_bindings_answer_is_missing(tmp_path: Path) -> None:
    """Nor is its room given away by a refusal of the next attempt."""
    first, second = pod("first", 15, 100), pod("second", 15, 100)
    nodes = (node("n1", 1), node("n2", 1))
    async with a_controller(tmp_path, nodes, (first, second)) as found:
        found.server.fault = _answer_bindings_of("first", 502)
        await found.bind(first, "n1")
        assert "binding to n1 is still missing" in await found.bind(first, "n2")
        found.server.fault = _answer_bindings_of("first", 403)
        assert "403" in await found.bind(first, "n1")
        assert "no longer fits node n1" in await found.bind(second, "n1")


async def test_each_attempt_without_an_answer_starts_the_wait_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait counts from the last one: here it ends at once, and the first would take a minute."""
    monkeypatch.setattr(binder, "_TOGETHER_SECONDS", 0.01)
    first = pod("first", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (first,)) as found:
        found.server.fault = _answer_bindings_of("first", 502)
        await found.bind(first, "n1")
        monkeypatch.setattr(binder, "_DOUBT_SECONDS", 0.0)
        await found.bind(first, "n1")
        await until(lambda: found.controller.ledger.reserved == 0)


async def test_a_pod_that_was_bound_unseen_counts_from_the_first_look(tmp_path: Path) -> None:
    """A watch that is behind hides no pod that a GET has shown."""
    async with a_controller(tmp_path, (node("n1", 1),)) as found:
        found.server.fault = lambda seen: (
            web.json_response({}, status=500) if "watch" in seen.query else None
        )
        await found.server.drop_watches()
        bound = pod("bound", 15, 100, on="n1", annotations=held(0, 15, 100))
        late = pod("late", 15, 100)
        await found.put(bound)
        await found.put(late)
        assert await found.bind(bound, "n1") == ""
        assert "no longer fits node n1" in await found.bind(late, "n1")


async def test_annotations_that_cannot_be_true_count_as_none(tmp_path: Path) -> None:
    """Anybody who may edit a pod can write them; no text ends the controller."""
    nonsense = (
        {ALLOCATION: "[" * 1500, ASSIGNED: "false"},
        {ALLOCATION: '{"0":{"0":1e999}}', ASSIGNED: "true"},
        {ALLOCATION: '{"0":{"0":-1000}}', ASSIGNED: "true"},
        {ALLOCATION: '{"0":{"9":10}}', ASSIGNED: "true"},
        {ALLOCATION: '{"7":{"0":10}}', ASSIGNED: "true"},
    )
    for number, annotations in enumerate(nonsense):
        folder = tmp_path / str(number)
        folder.mkdir()
        odd = pod("odd", 10, 50, on="n1", annotations=annotations)
        async with a_controller(folder, (node("n1", 1),), (odd,)) as found:
            assert (await found.filter(pod("new", 8, 30), "n1"))["NodeNames"] == []
            assert (await found.filter(pod("new", 5, 30), "n1"))["NodeNames"] == ["n1"]


async def test_whom_a_pod_without_slices_evicts_is_not_ours_to_say(tmp_path: Path) -> None:
    """Without managedResources, or with "0" of one, kube-scheduler asks about such pods too."""
    victims = {"plain": {"Pods": [{"UID": "uid-x"}], "NumPDBViolations": 0}}
    async with a_controller(tmp_path, (node("n1"),)) as found:
        for asks in (pod("new"), claiming("new", 8)):
            told = await found.call("preempt", {"Pod": asks, "NodeNameToMetaVictims": victims})
            assert told == {"NodeNameToMetaVictims": victims}


async def test_what_a_heartbeat_repeats_is_not_counted_again(tmp_path: Path) -> None:
    """Status of nodes and pods changes all the time; what they offer and hold does not."""
    here, holder = node("n1"), pod("a", 2, 30, on="n1", annotations=held(0, 2, 30))
    async with a_controller(tmp_path, (here,), (holder,)) as found:
        ledger = found.controller.ledger
        await found.filter(pod("new", 2, 30), "n1")
        rooms = ledger.rooms("n1")
        await found.server.put("/api/v1/nodes/n1", here | {"status": {"conditions": []}})
        await found.put(holder | {"status": {"phase": "Running"}})
        await found.server.put("/api/v1/nodes/fence", node("fence"))
        await found.put(pod("fence", 1, 5))
        await until(lambda: "fence" in ledger.offers)
        await until(lambda: ledger.pod(PodRef("ns", "fence", "uid-fence")))

        assert ledger.rooms("n1") is rooms
        assert len(list(ledger.count())) == 1  # the other node


async def test_metrics_tell_how_bindings_ended_and_what_still_fits(tmp_path: Path) -> None:
    first, second = pod("first", 8, 100), pod("second", 15, 100)
    async with a_controller(tmp_path, (node("n1", 1),), (first, second)) as found:
        assert await found.bind(first, "n1") == ""
        assert await found.bind(second, "n1") != ""
        url = f"http://127.0.0.1:{found.controller.pages.port}/metrics"
        wanted = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with found.session.get(url, headers=wanted) as response:
            open_metrics = await response.text()
        _, text = await found.get("/metrics", port=found.controller.pages.port)

    assert open_metrics.count("# EOF") == open_metrics.endswith("# EOF\n") == 1
    lines = set(text.splitlines())
    assert {
        'gpu_controller_bindings_total{outcome="bound"} 1.0',
        'gpu_controller_bindings_total{outcome="conflict"} 1.0',
        'gpu_cluster_card_free_core_percent{card="0",node="n1"} 0.0',
        # Seven units are free beside a card whose compute is all held.
        'gpu_cluster_largest_slice_bytes{mode="core_mem"} 0.0',
        'gpu_cluster_fragmentation_ratio{mode="core_mem"} 1.0',
        "gpu_controller_leader 1.0",
    } <= lines


async def test_cards_of_nodes_without_slices_are_shown_neither_free_nor_held(
    tmp_path: Path,
) -> None:
    """Their agents publish cards too; who holds them only the kubelet there knows."""
    nodes = (node("n1", 1), *(node(mode, 1, mode=mode) for mode in ("default", "mig", "disabled")))
    async with a_controller(tmp_path, nodes) as found:
        _, text = await found.get("/metrics", port=found.controller.pages.port)
        _, ledger = await found.get("/gpushare-scheduler/inspect")
        missing, _ = await found.get("/gpushare-scheduler/inspect/mig")

    assert [each["name"] for each in json.loads(ledger)["nodes"]] == ["n1"]
    assert missing == 404
    about = [line for line in text.splitlines() if line.startswith("gpu_cluster_")]
    assert about
    assert not [line for line in about if 'n1"' not in line and 'mode="core_mem"' not in line]


async def test_a_pod_that_asks_for_nothing_is_bound_without_a_wish(tmp_path: Path) -> None:
    """kube-scheduler sends whatever names one of our resources, also "0" of it."""
    zero = pod("zero")
    zero["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": "0"}
    async with a_controller(tmp_path, (node("n1"),), (zero,)) as found:
        assert (await found.filter(zero, "n1"))["NodeNames"] == ["n1"]
        assert await found.bind(zero, "n1") == ""
        bound = found.server.objects[path(zero)]

    assert bound["spec"]["nodeName"] == "n1"
    assert ALLOCATION not in (bound["metadata"].get("annotations") or {})


async def test_a_pod_whose_amount_is_none_is_not_bound_and_told_why(tmp_path: Path) -> None:
    """It is there, and no other pod has its name."""
    odd = pod("odd")
    odd["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": "some"}
    async with a_controller(tmp_path, (node("n1"),), (odd,)) as found:
        assert "'some' is not a Kubernetes quantity" in await found.bind(odd, "n1")


async def test_one_nodes_nonsense_keeps_no_other_nodes_cards_from_the_metrics(
    tmp_path: Path,
) -> None:
    """A number that no metric can show."""
    odd = node("odd", 1)
    cards = json.loads(odd["metadata"]["annotations"]["gpu-device-plugin/cards"])
    cards["cards"][0]["memory_mib"] = 10**400
    odd["metadata"]["annotations"]["gpu-device-plugin/cards"] = json.dumps(cards)
    async with a_controller(tmp_path, (odd, node("n1", 1))) as found:
        status, text = await found.get("/metrics", port=found.controller.pages.port)

    assert status == 200
    assert 'gpu_cluster_card_memory_units{card="0",node="n1"} 15.0' in text
    assert 'node="odd"' not in text


async def test_an_amount_without_end_is_answered_with_an_error(tmp_path: Path) -> None:
    """Not by status 500."""
    odd = pod("odd")
    odd["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": "9" * 5000}
    async with a_controller(tmp_path, (node("n1"),)) as found:
        filtered = await found.filter(odd, "n1")
        status, text = await found.call("prioritize", {"Pod": odd, "NodeNames": ["n1"]})

    assert "longer than a quantity that is read" in filtered["Error"]
    assert status == 400
    assert "longer than a quantity that is read" in text
