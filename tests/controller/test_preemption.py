"""Evictions make room on a card: the cheapest pods of a lower priority, and nobody for nothing (R-541).

kube-scheduler proposes victims by a node's sums. From 1.38 on it sends nodes whose sums fit with an
empty list.
"""

from pathlib import Path
from typing import Any

from aiohttp import web
from tests.controller.replica import Running, a_controller
from tools.harness.api_server import ApiRequest, StandInApiServer, status
from tools.harness.objects import Json, held, node, pod
from tools.harness.waiting import until

URGENT = 1000


def of(priority: int, made: Json, *, created: str = "2026-11-01T00:00:00Z", **labels: str) -> Json:
    """The pod with a priority, and as old as that."""
    made["spec"]["priority"] = priority
    made["metadata"] |= {"creationTimestamp": created, "labels": labels}
    return made


def on_card(name: str, card: int, units: int, *, on: str = "n1") -> Json:
    return pod(name, units, 5, on=on, annotations=held(card, units, 5))


async def victims(
    found: Running, asking: Json, proposed: dict[str, list[str]] | None = None
) -> dict[str, tuple[list[str], int]]:
    """Node -> names of those to be evicted, and how many budgets that breaks."""
    told = {
        name: {"Pods": [{"UID": f"uid-{each}"} for each in names], "NumPDBViolations": 0}
        for name, names in (proposed or {"n1": []}).items()
    }
    answer = await found.call("preempt", {"Pod": asking, "NodeNameToMetaVictims": told})
    return {
        name: (
            sorted(each["UID"].removeprefix("uid-") for each in chosen["Pods"]),
            chosen["NumPDBViolations"],
        )
        for name, chosen in answer["NodeNameToMetaVictims"].items()
    }


async def test_victims_that_free_a_card_are_kept_as_they_are_proposed(tmp_path: Path) -> None:
    """Names or whole pods; and where the cards have room, kube-scheduler needs something else."""
    pods = (on_card("c", 0, 10, on="n2"), on_card("d", 1, 15, on="n2"))
    proposed = {"n1": ["cpu"], "n2": ["c"], "n9": ["x"]}
    whole = {
        name: {"Pods": [{"metadata": {"uid": f"uid-{each}"}} for each in names]}
        for name, names in proposed.items()
    }
    async with a_controller(tmp_path, (node("n1"), node("n2")), pods) as found:
        new = of(URGENT, pod("new", 8, 30))
        by_uid = await victims(found, new, proposed)
        by_pod = await found.call("preempt", {"Pod": new, "NodeNameToVictims": whole})
        nonsense = await found.call("preempt", {"Pod": 7})

    assert by_uid == {"n1": (["cpu"], 0), "n2": (["c"], 0)}
    assert by_pod["NodeNameToMetaVictims"].keys() == by_uid.keys()
    assert nonsense[0] == 400


async def test_victims_that_free_no_card_are_corrected(tmp_path: Path) -> None:
    """13 units are asked; by sums the smallest pod is enough. Who holds no slice goes in any case."""
    pods = (on_card("a", 0, 10), on_card("b", 1, 8), on_card("small", 1, 3))
    async with a_controller(tmp_path, (node("n1"),), pods) as found:
        told = await victims(found, of(URGENT, pod("new", 13, 30)), {"n1": ["small", "cpu"]})

    assert told == {"n1": (["a", "cpu"], 0)}


OLD, YOUNG = "2026-11-01T00:00:00Z", "2026-11-20T00:00:00Z"


async def test_one_pod_goes_before_three_that_are_younger(tmp_path: Path) -> None:
    """All lie on one card; six units are asked."""
    small = [of(0, on_card(name, 0, 2), created=YOUNG) for name in ("y1", "y2", "y3")]
    pods = (of(0, on_card("x", 0, 9), created=OLD), *small)
    async with a_controller(tmp_path, (node("n1", 1),), pods) as found:
        assert await victims(found, of(URGENT, pod("new", 6, 30))) == {"n1": (["x"], 0)}


async def test_the_fewest_pods_go_for_two_containers(tmp_path: Path) -> None:
    """One card is left for each of them; three young pods lie on the card between."""
    small = [of(0, on_card(name, 1, 4), created=YOUNG) for name in ("y1", "y2", "y3")]
    one, two = of(0, on_card("c0", 0, 12)), of(0, on_card("c2", 2, 12), created=OLD)
    async with a_controller(tmp_path, (node("n1", 3),), (one, *small, two)) as found:
        assert await victims(found, _of_two_containers(13)) == {"n1": (["c0", "c2"], 0)}


async def test_the_fewest_of_more_pods_than_can_be_tried_in_every_way(tmp_path: Path) -> None:
    """Four cards with twelve small pods each, and two with one pod each, which is older."""
    many = [of(0, on_card(f"{c}-{n}", c, 1), created=YOUNG) for c in range(4) for n in range(12)]
    large = [of(0, on_card(f"large-{c}", c, 12), created=OLD) for c in (4, 5)]
    async with a_controller(tmp_path, (node("n1", 6),), (*many, *large)) as found:
        told = await victims(found, _of_two_containers(13))

    assert told == {"n1": (["large-4", "large-5"], 0)}


def _of_two_containers(units: int) -> Json:
    made = of(URGENT, pod("new", units, 30))
    made["spec"]["containers"].append({**made["spec"]["containers"][0], "name": "b"})
    return made


async def test_victims_free_the_processor_that_is_missing(tmp_path: Path) -> None:
    """kube-scheduler proposes `busy` for its 8 cores; alone it frees no card."""
    busy = pod("busy", 3, 5, on="n1", annotations=held(0, 3, 5), cpu="8")
    pods = (busy, on_card("a", 0, 10), on_card("b", 1, 13))
    async with a_controller(tmp_path, (node("n1", cpu="8"),), pods) as found:
        asking = of(URGENT, pod("new", 8, 30, cpu="4"))
        assert await victims(found, asking, {"n1": ["busy"]}) == {"n1": (["a", "busy"], 0)}
        small = of(URGENT, pod("new", 8, 30))
        assert await victims(found, small, {"n1": ["busy"]}) == {"n1": (["a"], 0)}


async def test_a_node_whose_sums_fit_gets_the_cheapest_victims(tmp_path: Path) -> None:
    """The lowest priority first, then the fewest pods, then the youngest."""
    late = "2026-11-20T00:00:00Z"
    pods = (
        of(500, on_card("worth-more", 0, 8)),
        on_card("two", 1, 6),
        on_card("of-them", 1, 6),
        of(0, on_card("old", 2, 8)),
        of(0, on_card("young", 3, 8), created=late),
        of(URGENT, on_card("as-urgent", 4, 8)),
    )
    async with a_controller(tmp_path, (node("n1", 5),), pods) as found:
        asking = of(URGENT, pod("new", 10, 30))
        assert await victims(found, asking) == {"n1": (["young"], 0)}
        await found.server.delete("/api/v1/namespaces/ns/pods/young")
        await found.put(of(URGENT, on_card("instead", 3, 8)))
        await until(lambda: _is_known(found, "instead"))
        assert await victims(found, asking) == {"n1": (["old"], 0)}


def _is_known(found: Running, name: str) -> bool:
    return any(hold.pod.name == name for hold in found.controller.ledger.holds("n1"))


async def test_nobody_is_evicted_for_nothing(tmp_path: Path) -> None:
    """Where no eviction helps, where there is room, and where a pod that ends will make it."""
    ending = of(URGENT + 1, on_card("ending", 0, 10, on="ends"))
    ending["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z"
    other = of(0, on_card("other", 1, 10, on="ends"))
    pods = (of(URGENT, on_card("equal", 0, 10)), ending, other)
    nodes = (node("n1", 1), node("free", 1), node("ends"))
    async with a_controller(tmp_path, nodes, pods) as found:
        asked: dict[str, list[str]] = {"n1": [], "free": [], "ends": [], "unknown": []}
        assert await victims(found, of(URGENT, pod("new", 10, 30)), asked) == {}
        assert await victims(found, of(URGENT, pod("huge", 16, 30)), asked) == {}


async def test_a_victim_that_is_ending_is_not_named_again(tmp_path: Path) -> None:
    ending, other = on_card("ending", 0, 4), on_card("other", 0, 9)
    ending["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z"
    async with a_controller(tmp_path, (node("n1", 1),), (ending, other)) as found:
        asking = of(URGENT, pod("new", 14, 30))
        told = await victims(found, asking, {"n1": ["ending", "other"]})
        cpu_alone = await victims(found, of(URGENT, pod("new", 2, 5)), {"n1": ["ending"]})

    assert told == {"n1": (["other"], 0)}
    assert cpu_alone == {"n1": (["ending"], 0)}


async def test_a_pod_of_several_containers_evicts_on_several_cards(tmp_path: Path) -> None:
    pods = (on_card("a", 0, 10), on_card("b", 1, 10), on_card("c", 2, 10))
    async with a_controller(tmp_path, (node("n1", 3),), pods) as found:
        ((chosen, _),) = (await victims(found, _of_two_containers(12))).values()

    assert len(chosen) == 2


async def put_budget(server: StandInApiServer, allowed: int, selector: Any) -> None:
    await server.put(
        "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/keep",
        {
            "metadata": {"namespace": "ns", "name": "keep"},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": allowed},
        },
    )


async def test_a_budget_is_broken_only_where_nobody_else_can_go(tmp_path: Path) -> None:
    """The number of broken ones is told, by which kube-scheduler chooses the node."""
    pods = (of(0, on_card("kept", 0, 8), app="kept"), of(500, on_card("other", 1, 8), app="other"))
    asking = of(URGENT, pod("new", 10, 30))
    async with a_controller(tmp_path, (node("n1"),), pods) as found:
        budgets = found.controller.budgets
        await put_budget(found.server, 0, {"matchLabels": {"app": "kept"}})
        await until(lambda: "ns/keep" in budgets.found)
        assert await victims(found, asking) == {"n1": (["other"], 0)}
        await found.put(of(URGENT, on_card("other", 1, 8), app="other"))
        await until(lambda: len(found.controller.ledger.evictable("n1", URGENT)) == 1)
        assert await victims(found, asking) == {"n1": (["kept"], 1)}
        expression = {"key": "app", "operator": "In", "values": ["kept", "x"]}
        await put_budget(found.server, 1, {"matchExpressions": [expression]})
        await until(lambda: budgets.found["ns/keep"].status.disruptions_allowed == 1)
        assert await victims(found, asking) == {"n1": (["kept"], 0)}


async def test_what_a_budget_allows_is_not_exceeded_where_others_can_go(tmp_path: Path) -> None:
    """It allows one of its pods to go, and each choice with two of them has another beside it."""
    one_card = [of(0, on_card(name, 0, 3), created=YOUNG, app="kept") for name in ("p1", "p2")]
    one_card.append(of(0, on_card("n", 0, 8), created=OLD))
    two = [of(0, on_card(f"k{c}", c, 12, on="n2"), created=YOUNG, app="kept") for c in (0, 1)]
    two += [of(0, on_card(f"u{c}", c, 12, on="n2"), created=OLD) for c in (2, 3)]
    nodes = node("n1", 1), node("n2", 4)
    async with a_controller(tmp_path, nodes, (*one_card, *two)) as found:
        await put_budget(found.server, 1, {"matchLabels": {"app": "kept"}})
        await until(lambda: "ns/keep" in found.controller.budgets.found)
        assert await victims(found, of(URGENT, pod("new", 7, 30))) == {"n1": (["n"], 0)}
        ((chosen, broken),) = (await victims(found, _of_two_containers(13), {"n2": []})).values()

    assert (len(chosen), broken) == (2, 0)


async def test_pods_of_a_namespace_without_budgets_go_while_nobody_tells_of_others(
    tmp_path: Path,
) -> None:
    """The lists of the pods that a budget selects fail."""
    free = of(5, on_card("free", 1, 8))
    free["metadata"]["namespace"] = "other"
    pods = (of(0, on_card("kept", 0, 8), app="kept"), free)

    def fails(seen: ApiRequest) -> web.Response | None:
        return status(500, "slow") if seen.query.get("labelSelector") == "app=kept" else None

    async with a_controller(tmp_path, (node("n1"),), pods, fault=fails) as found:
        await put_budget(found.server, 1, {"matchLabels": {"app": "kept"}})
        await until(lambda: "ns/keep" in found.controller.budgets.found)
        assert await victims(found, of(URGENT, pod("new", 10, 30))) == {"n1": (["free"], 0)}


async def test_budgets_are_asked_about_only_where_somebody_has_to_be_chosen(tmp_path: Path) -> None:
    """Each answer is a list of pods, for which kube-scheduler waits."""
    pods = (on_card("c", 0, 10), on_card("d", 1, 10))
    async with a_controller(tmp_path, (node("n1"),), pods) as found:
        await put_budget(found.server, 0, {"matchLabels": {"app": "kept"}})
        await until(lambda: "ns/keep" in found.controller.budgets.found)

        def lists() -> int:
            asked = [seen.query.get("labelSelector") for seen in found.server.seen("GET", "/pods")]
            return asked.count("app=kept")

        asking = of(URGENT, pod("new", 8, 30))
        assert await victims(found, asking, {"n1": ["c"]}) == {"n1": (["c"], 0)}
        assert lists() == 0
        assert await victims(found, asking) == {"n1": (["c"], 0)}
        assert lists() == 1


async def test_budgets_that_may_not_be_listed_count_as_broken_and_are_told(tmp_path: Path) -> None:
    """Nobody says that the pods may go: another node is better."""

    def refuse(seen: ApiRequest) -> web.Response | None:
        return status(403, "no") if "poddisruptionbudgets" in seen.path else None

    pods = (on_card("c", 0, 10), on_card("d", 1, 10))
    async with a_controller(tmp_path, (node("n1"),), pods, fault=refuse) as found:
        assert await victims(found, of(URGENT, pod("new", 8, 30))) == {"n1": (["c"], 1)}

        async def is_told() -> bool:
            page = await found.get("/readyz", port=found.controller.pages.port)
            return page[0] == 200 and "poddisruptionbudgets: 403 no" in page[1]

        await until(is_told)


async def test_room_that_is_made_for_a_pod_is_not_given_to_a_lesser_one(tmp_path: Path) -> None:
    """Its victim has gone, and it is not bound yet: filter, bind and preempt count it."""
    first = of(URGENT, pod("first", 10, 30))
    first["status"] = {"phase": "Pending", "nominatedNodeName": "n1"}
    lesser, equal = of(5, pod("lesser", 8, 30)), of(URGENT, pod("equal", 8, 30))
    greater = of(URGENT + 1, pod("greater", 8, 30))
    async with a_controller(tmp_path, (node("n1", 1),), (first, lesser)) as found:
        for asking, names in ((lesser, []), (equal, []), (greater, ["n1"]), (first, ["n1"])):
            assert (await found.filter(asking, "n1"))["NodeNames"] == names
        scores = await found.call("prioritize", {"Pod": lesser, "NodeNames": ["n1"]})
        assert scores == [{"Host": "n1", "Score": 0}]
        assert "no longer fits" in await found.bind(lesser, "n1")
        assert await found.bind(first, "n1") == ""
        small = of(5, pod("small", 5, 30))
        assert (await found.filter(small, "n1"))["NodeNames"] == ["n1"]
