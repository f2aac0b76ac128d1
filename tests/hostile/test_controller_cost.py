"""What one pod or one node can make the controller do is linear in its size, and bounded.

Work is counted in lines of the program that run, at two sizes: twice the size is at most a little
more than twice the work.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from tests.controller.replica import a_controller, a_replica, no_budgets
from tests.controller.reviews import review
from tests.hostile.work import lines_run
from tools.harness.api_server import running
from tools.harness.objects import held, node, path, pod

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.controller.scheduler_extender import Extender
from gpu_device_plugin.domain.cards.card import (
    MAX_CARDS,
    Card,
    CardIndex,
    CardNumber,
    Hardware,
    Instance,
)
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.fractions.demands import demand
from gpu_device_plugin.domain.fractions.node_fit import Fit, Misfit, RequestChecks, fit, node_rooms
from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION, hold_of
from gpu_device_plugin.domain.fractions.request_rules import MOST_CONTAINERS
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import UnitsAndPercent
from gpu_device_plugin.domain.grants.init_containers import Shares, one_copy
from gpu_device_plugin.domain.grants.node_annotations import (
    NodeOffer,
    cards_annotation,
    parse_offer,
)
from gpu_device_plugin.domain.models.model_catalogue import Catalogue, Series
from gpu_device_plugin.domain.models.pod_admission import admit
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import ClusterError, RequestError, StateError
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.admission_review import read_review
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.kubernetes.objects.pod_spec import scheduled_request
from gpu_device_plugin.kubernetes.objects.quantity import whole_number
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod
from gpu_device_plugin.overview.node_cards import cluster_cards
from gpu_device_plugin.overview.verdicts import node_verdicts

_INIT, _SIDECAR, _APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
_LINEAR = 2.4
"""Twice the work, and what does not depend on the size."""
Json = dict[str, Any]


def an_offer(cards: int = 8, mode: NodeMode = NodeMode.CORE_MEM, units: int = 80) -> NodeOffer:
    """A node of equal cards."""
    found = tuple(
        Card(f"GPU-{n}", CardNumber(n), CardIndex(n), -1, "H100", MiB(units * 1024))
        for n in range(cards)
    )
    return NodeOffer("n1", mode, MemoryUnit.GIB, found, frozenset(card.index for card in found))


def a_pod(kinds: Iterable[ContainerKind], **more: Any) -> PodRequest:
    """A pod whose every container asks for one unit and 5 percent."""
    amounts: dict[str, int] = {Resource.MEM: 1, Resource.CORE: 5}
    containers = tuple(
        ContainerRequest(f"c{number}", kind, number, amounts) for number, kind in enumerate(kinds)
    )
    return PodRequest(PodRef("ns", "p", "uid-p"), containers, **more)


def a_spec(inits: int, apps: int = 1) -> Json:
    """The same as JSON."""
    limits = {"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-core.percentage": "5"}
    made = pod("new")
    made["spec"] |= {
        key: [{"name": f"{key}{n}", "resources": {"limits": limits}} for n in range(count)]
        for key, count in (("initContainers", inits), ("containers", apps))
    }
    return made


def a_ledger(*, nodes: int = 1) -> ClusterLedger:
    """Nodes of which no two have the same left."""
    found = ClusterLedger(PlacementPolicy.BINPACK)
    for number in range(nodes):
        made = node(f"n{number}", 8)
        cards = made["metadata"]["annotations"]["gpu-device-plugin/cards"]
        found.node_changed(f"n{number}", ClusterNode(f"n{number}", cards, {}))
        for card in range(number % 8 + 1):
            ref = PodRef("ns", f"p{number}-{card}", f"uid-{number}-{card}")
            asks = replace(a_pod([_APP] * (number // 8 + 1)), ref=ref)
            found.pod_changed(ref, ClusterPod(asks, f"n{number}", {}, "1"))
    return found


def is_linear(work: Callable[[int], Callable[[], object]], *sizes: int) -> bool:
    """Whether twice the size is at most a little more than twice the work."""
    small, large = (lines_run(work(size)) for size in sizes)
    return small < large < _LINEAR * small


@pytest.mark.parametrize("policy", PlacementPolicy)
@pytest.mark.parametrize("kinds", [(_INIT,), (_SIDECAR,), (_APP,), (_INIT, _SIDECAR)])
def test_a_pod_costs_a_node_as_much_as_it_has_containers(
    kinds: tuple[ContainerKind, ...], policy: PlacementPolicy
) -> None:
    def fitted(size: int) -> Callable[[], object]:
        offer = an_offer()
        rooms, asking = node_rooms(offer, []), a_pod([*kinds * (size // len(kinds) - 1), _APP])
        assert isinstance(fit(offer, rooms, asking, policy), Fit)
        return lambda: fit(offer, rooms, asking, policy)

    assert is_linear(fitted, 32, 64)


def test_the_rules_are_checked_once_for_each_container_and_not_again_for_the_next_node() -> None:
    names = [f"n{number}" for number in range(16)]

    def checks(ask: Callable[[], object]) -> int:
        return lines_run(ask, "domain/fractions/request_rules.py")

    asking = a_pod([_INIT] * 31 + [_APP])
    once = checks(lambda: fit(an_offer(), node_rooms(an_offer(), []), asking, PlacementPolicy.FGD))
    ledger = a_ledger(nodes=16)
    checked = ledger.checks(asking)

    def judged() -> None:
        for alike in ledger.judge(names, checked).left:
            ledger.fit(alike[0], checked)

    for _ in ledger.count():
        pass
    assert checks(judged) == once


def test_more_containers_with_a_slice_than_64_are_refused_by_the_first_of_them() -> None:
    offer = an_offer()
    rooms, most = node_rooms(offer, []), MOST_CONTAINERS

    def judged(size: int) -> Callable[[], Fit | Misfit]:
        asking = a_pod([*[_INIT] * (size - 1), _APP])
        return lambda: fit(offer, rooms, asking, PlacementPolicy.BINPACK)

    assert isinstance(judged(most)(), Fit)
    refused = judged(most + 1)()
    assert isinstance(refused, Misfit)
    assert refused.is_final
    assert refused.text.endswith("TooManyContainers")
    assert is_linear(judged, 1000, 2000)
    assert lines_run(judged(1000), "domain/fractions/request_rules.py") < lines_run(
        judged(2), "domain/fractions/request_rules.py"
    )


def test_the_node_refuses_them_too_in_words_that_say_how_many_may_ask() -> None:
    asking = a_pod([_INIT] * MOST_CONTAINERS + [_APP])
    terms = NodeTerms("n1", NodeMode.CORE_MEM, MemoryUnit.GIB)
    with pytest.raises(
        RequestError, match=r"65 containers of the pod .* at most 64 may"
    ) as refused:
        demand(asking, asking.containers[0], terms)
    assert refused.value.reason == "TooManyContainers"


async def test_the_controller_refuses_such_a_pod_on_every_node(tmp_path: Path) -> None:
    async with a_controller(tmp_path, (node("n1"), node("n2", mode="cgpu"))) as found:
        answer = await found.filter(a_spec(inits=999), "n1", "n2")
        whole = await found.filter(a_spec(inits=MOST_CONTAINERS - 1), "n1", "n2")

    never = "node(s) never serve what the pod asks for: TooManyContainers"
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == {"n1": never, "n2": never}
    assert whole["NodeNames"] == ["n1"]


def test_a_pod_is_read_in_one_pass() -> None:
    def read(size: int) -> Callable[[], object]:
        made = msgspec.convert(a_spec(inits=size), Pod, strict=False)
        return lambda: scheduled_request(made)

    assert is_linear(read, 500, 1000)


def test_what_a_bound_pod_holds_is_added_up_in_one_pass() -> None:
    def held(size: int) -> Callable[[], object]:
        asking = a_pod([_APP] * size)
        told = {ALLOCATION: json.dumps({str(n): {"0": 1} for n in range(size)})}
        return lambda: hold_of(asking, told)

    assert is_linear(held, 200, 400)


def test_why_costs_as_much_as_the_pod_has_containers() -> None:
    told = node("n1", 8)["metadata"]["annotations"]["gpu-device-plugin/cards"]

    def verdict(size: int) -> Callable[[], object]:
        made = a_spec(inits=size - 1)
        asking = ClusterPod(scheduled_request(msgspec.convert(made, Pod)), "", {}, "1")
        surveyed = msgspec.convert(made, SurveyedPod, strict=False)
        cards = cluster_cards([ClusterNode("n1", told, {})], [])
        return lambda: node_verdicts(asking, surveyed, cards, {})

    assert is_linear(verdict, 32, 64)


def test_a_second_try_goes_through_no_choices_that_are_alike() -> None:
    """Of 24 equal cards there are 2.7 million ways to take 12, and all of them are alike."""

    def tried(cards: int) -> Callable[[], object]:
        offer = an_offer(cards, NodeMode.CGPU, units=15)
        amounts: dict[str, int] = {Resource.MEM: 10 * cards // 2}
        containers = tuple(ContainerRequest(f"c{n}", _APP, n, amounts) for n in range(3))
        asking = PodRequest(PodRef("ns", "p"), containers, str(cards // 2))
        rooms = node_rooms(offer, [])
        assert isinstance(fit(offer, rooms, asking, PlacementPolicy.BINPACK), Misfit)
        return lambda: fit(offer, rooms, asking, PlacementPolicy.BINPACK)

    small, large = lines_run(tried(12)), lines_run(tried(24))
    # Each of the chosen cards is looked for among all cards.
    assert large < 4.5 * small


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "inspect"])
async def test_everything_else_goes_on_between_two_nodes_of_a_long_answer(verb: str) -> None:
    """The Lease, the watches and /healthz."""
    nodes, turns, is_over = 20, 0, asyncio.Event()
    extender = Extender(a_ledger(nodes=nodes), no_budgets, turn_seconds=0)
    names = [f"n{number}" for number in range(nodes)]
    asked = {
        "Pod": a_spec(inits=2),
        "NodeNames": names,
        "NodeNameToMetaVictims": {name: {"Pods": []} for name in names},
    }

    async def others() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    if verb == "inspect":
        await extender.inspect(None)
    else:
        await getattr(extender, verb)(json.dumps(asked).encode())
    is_over.set()
    await beside
    assert turns >= nodes


async def test_everything_else_goes_on_while_a_large_cluster_is_read(tmp_path: Path) -> None:
    """The renewal of the Lease too: who reads for longer than that lasts would never lead."""
    names = [f"n{number}" for number in range(400)]
    nodes, pods, counted = set[int](), set[int](), set[int]()
    async with running() as (server, _):
        for number, name in enumerate(names):
            server.preload(f"/api/v1/nodes/{name}", node(name, 8))
            for at in range(5):
                each = pod(f"p{number}-{at}", 1, 5, on=name, annotations=held(at, 1, 5))
                server.preload(path(each), each)
        async with a_replica(server, tmp_path, "only", until_ready=False) as found:
            ledger, checks = (
                found.controller.ledger,
                RequestChecks(a_pod([_APP]), PlacementPolicy.BINPACK),
            )
            async with asyncio.timeout(120):
                while not found.controller.leadership.leads():
                    nodes.add(len(ledger.offers))
                    pods.add(sum(len(ledger.holds(name)) for name in names))
                    judged = ledger.judge(names, checks)
                    counted.add(len(names) - sum(len(of) for _, of in judged.misfits))
                    await asyncio.sleep(0)

    for seen, whole in ((nodes, 400), (pods, 2000), (counted, 400)):
        assert any(0 < number < whole for number in seen), seen


def test_what_a_large_pod_holds_is_not_kept_for_others() -> None:
    def shares(size: int) -> dict[int, Shares]:
        return {number: {CardIndex(0): UnitsAndPercent(Units(1), 5)} for number in range(size)}

    assert one_copy(shares(2)) is one_copy(shares(2))
    assert one_copy(shares(64)) is not one_copy(shares(64))


def cards_of(count: int, **more: Any) -> str:
    """A node's annotation with so many cards."""
    one: Json = {"model": "H100", "memory_mib": 81920, "healthy": True}
    cards = [{"index": n, "uuid": f"GPU-{n}", **one, **more} for n in range(count)]
    return json.dumps({"version": 1, "mode": "core_mem", "unit_mib": 1024, "cards": cards})


def test_a_node_has_at_most_as_many_cards_as_an_agent_numbers() -> None:
    assert len(parse_offer("n1", cards_of(MAX_CARDS), {}).cards) == MAX_CARDS
    with pytest.raises(StateError, match=r"length <= 36 - at `\$\.cards`"):
        parse_offer("n1", cards_of(MAX_CARDS + 1), {})
    with pytest.raises(StateError, match=r"length <= 96 - at `\$\.cards\[0\]\.model`"):
        parse_offer("n1", cards_of(1, model="x" * 1000), {})


def test_a_long_annotation_of_cards_is_refused_unread() -> None:
    def refused(size: int) -> Callable[[], object]:
        told = cards_of(size)

        def parse() -> None:
            with pytest.raises(StateError, match=r"characters, at most 65536 are read$"):
                parse_offer("n1", told, {})

        return parse

    assert lines_run(refused(1500)) == lines_run(refused(3000)) < 10


def test_the_longest_annotation_that_an_agent_writes_is_read() -> None:
    """36 cards, each cut into seven instances with replicas, and names as long as NVML's."""
    cards: list[Card] = []
    replicas: dict[str, int] = {}
    for number in range(MAX_CARDS):
        uuids = [f"MIG-{number:08}-0000-0000-0000-{part:012}" for part in range(7)]
        replicas |= dict.fromkeys(uuids, 100)
        instances = tuple(
            Instance(uuid, part, part, 0, "1c.1g.10gb+me", MiB(9728), 1, 1, 16)
            for part, uuid in enumerate(uuids)
        )
        cut = Hardware(is_mig_capable=True, is_mig=True, instances=instances)
        uuid = f"GPU-{number:08}-0000-0000-0000-000000000000"
        cards.append(
            Card(
                uuid,
                CardNumber(number),
                CardIndex(number),
                number,
                "NVIDIA-" + "H" * 56,
                MiB(143771),
                cut,
            )
        )
    terms = NodeTerms("n1", NodeMode.DEFAULT, MemoryUnit.GIB)
    healthy = {card.uuid: True for card in cards}
    told = cards_annotation(cards, healthy, terms, replicas)
    assert len(parse_offer("n1", told, {}).cards) == MAX_CARDS


async def test_a_node_with_too_many_cards_is_left_out_and_the_controller_says_why_once() -> None:
    ledger = a_ledger()
    extender = Extender(ledger, no_budgets)
    many = ClusterNode("n9", cards_of(300), {})
    asked = json.dumps({"Pod": a_spec(inits=0), "NodeNames": ["n0", "n9"]}).encode()
    with structlog.testing.capture_logs() as log:
        ledger.node_changed("n9", many)
        answer = json.loads(await extender.filter(asked))
        ledger.node_changed("n9", many)
        assert json.loads(await extender.filter(asked)) == answer

    why = (
        "annotation of cards has what no agent writes: Expected `array` of length <= 36"
        " - at `$.cards`"
    )
    assert [(each["node"], each["error"]) for each in log] == [("n9", why)]
    assert answer["NodeNames"] == ["n0"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "n9": "node(s) have an annotation of cards that is none of an agent"
    }
    status, told = await extender.inspect("n9")
    assert (status, json.loads(told)) == (404, {"error": f"node n9 is left out: {why}"})
    ledger.node_changed("n9", ClusterNode("n9", cards_of(MAX_CARDS), {}))
    assert not ledger.left_out


def test_a_review_is_judged_in_one_pass_over_containers_and_terms() -> None:
    catalogue = Catalogue({"T4": Series("T4", ("Tesla T4",), ("535", "550"), "535")})

    def judged(size: int) -> Callable[[], object]:
        made = a_spec(inits=size)
        made["metadata"]["labels"] = {"alibabacloud.com/gpu-model-series": "T4"}
        expressions = [{"key": f"k{n}", "operator": "In", "values": ["a"]} for n in range(size)]
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        made["spec"]["affinity"] = {"nodeAffinity": required}
        body = json.dumps(review(made)).encode()

        def admitted() -> None:
            found = read_review(body)
            assert found.pod is not None
            assert len(list(found.resources())) > size
            admit(found.pod, (), catalogue)

        return admitted

    assert is_linear(judged, 500, 1000)


def test_a_long_text_that_is_no_quantity_is_refused_in_one_pass() -> None:
    """Half a million of millions of steps, where the digits can be matched in two ways."""
    with pytest.raises(ClusterError, match="quantity"):
        whole_number("1" * 1_000_000 + "x")
