"""A pod fits where every container of it does, as the node itself will count it."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain import words

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.fractions.node_fit import (
    OTHER_API_TEXT,
    Fit,
    Misfit,
    Score,
    fit,
    node_rooms,
)
from gpu_device_plugin.domain.fractions.pod_annotations import (
    ALLOCATION,
    ASSIGNED,
    CORE_ALLOCATION,
    V1_ASSIGNED,
    V1_INDEX,
    PodHold,
    hold_of,
    wish_annotations,
    with_wish,
)
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Demand, UnitsAndPercent
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer, parse_offer
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import StateError

_INIT, _SIDECAR, _APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
_MEM = Resource.MEM
_Amount = tuple[int, int]


def offer(cards: int = 2, *, max_pods: int | None = None) -> NodeOffer:
    """A node of V100s in mode cgpu, where memory alone is asked for."""
    found = tuple(
        Card(f"GPU-{n}", CardNumber(n), CardIndex(n), -1, "V100", MiB(16160)) for n in range(cards)
    )
    healthy = frozenset(card.index for card in found)
    return NodeOffer("n1", NodeMode.CGPU, MemoryUnit.GIB, found, healthy, max_pods=max_pods)


def pod(
    *containers: tuple[ContainerKind, int], name: str = "p", label: str | None = None
) -> PodRequest:
    """A pod of these containers, each with its units."""
    return PodRequest(
        PodRef("ns", name, f"uid-{name}"),
        tuple(
            ContainerRequest(f"c{n}", kind, n, {Resource.MEM: units})
            for n, (kind, units) in enumerate(containers)
        ),
        label,
    )


def placed(node: NodeOffer, asking: PodRequest, *others: PodRequest) -> Fit | Misfit:
    """The pod on the node beside others that have no annotation."""
    rooms = node_rooms(node, [hold_of(other, {}) for other in others])
    return fit(node, rooms, asking, PlacementPolicy.BINPACK)


def free(node: NodeOffer, *pods: PodRequest) -> list[int]:
    """What the cards have left beside these."""
    return [room.free_mem for room in node_rooms(node, [hold_of(each, {}) for each in pods])]


@pytest.mark.parametrize(
    ("annotation", "label", "default", "card"),
    [
        ("spread", PlacementPolicy.BINPACK, PlacementPolicy.BINPACK, 1),
        (None, PlacementPolicy.SPREAD, PlacementPolicy.BINPACK, 1),
        (None, None, PlacementPolicy.SPREAD, 1),
        (None, None, PlacementPolicy.BINPACK, 0),
        ("fgd", PlacementPolicy.SPREAD, PlacementPolicy.SPREAD, 0),
    ],
)
def test_the_pod_decides_then_the_node_then_the_default(
    annotation: str | None, label: PlacementPolicy | None, default: PlacementPolicy, card: int
) -> None:
    """Card 0 has two units less than card 1."""
    node = replace(offer(2), policy=label)
    rooms = node_rooms(offer(2), [hold_of(pod((_APP, 2), name="q"), {})])
    found = fit(node, rooms, replace(pod((_APP, 2)), placement=annotation), default)

    assert isinstance(found, Fit)
    assert list(found.hold.by_container[0]) == [card]


def test_an_app_container_is_put_on_the_card_of_its_init_container_whatever_its_number() -> None:
    """Indexes name cards in annotations, numbers in unit ids; here one runs against the other."""
    small, large = words.cards(4 * 1024, 16 * 1024)
    node = replace(offer(), cards=(small, large), healthy=frozenset({small.index, large.index}))

    found = placed(node, pod((_INIT, 10), (_APP, 2)))

    assert isinstance(found, Fit)
    assert (found.hold.inits, found.hold.by_container) == ({0: {1: (10, 0)}}, {1: {1: (2, 0)}})


def test_a_node_serves_requests_of_its_own_allocation_api_only() -> None:
    """Whatever is free of it."""
    for api in AllocationApi:
        asking = replace(pod((_APP, 9)), allocation_api=api)
        for each in AllocationApi:
            found = placed(replace(offer(2), allocation_api=each), asking)
            assert (found == Misfit(OTHER_API_TEXT, is_final=True)) is (each is not api)
            assert isinstance(found, Fit) is (each is api)


@pytest.mark.parametrize(
    ("node", "asking", "is_final"),
    [
        (offer(1), pod((_APP, 10), (_APP, 10)), True),
        (offer(2), pod((_APP, 10), (_APP, 10)), False),
        (offer(1), pod((_INIT, 10), (_APP, 10)), False),
        (offer(2, max_pods=0), pod((_APP, 1)), True),
        (offer(2, max_pods=1), pod((_APP, 1)), False),
        (replace(offer(2), healthy=frozenset({CardIndex(0)})), pod((_APP, 10), (_APP, 10)), True),
    ],
)
def test_what_the_empty_node_could_not_serve_no_eviction_helps(
    node: NodeOffer, asking: PodRequest, *, is_final: bool
) -> None:
    """By the sums of all containers, and by the bound of pods on a card."""
    full = node_rooms(node, [hold_of(pod((_APP, 15), name=f"q{n}"), {}) for n in range(2)])
    found = fit(node, full, asking, PlacementPolicy.BINPACK)
    assert found == Misfit(
        "node(s) didn't have enough device resources to allocate", is_final=is_final
    )


def test_a_wish_for_several_cards_takes_the_copied_card_of_the_first_generation_back() -> None:
    """A pod made from another's manifest: a binding removes no annotation."""
    hold = PodHold(
        PodRef("ns", "p", "u"),
        {0: dict.fromkeys((CardIndex(0), CardIndex(1)), UnitsAndPercent(Units(4), 0))},
    )
    copied = {V1_INDEX: "7", V1_ASSIGNED: "true"}
    now = {**copied, **wish_annotations(hold, 1, before=copied)}
    assert with_wish(pod((_APP, 8), label="2"), {**now, ASSIGNED: "true"}).wish == ()
    assert now[V1_INDEX] == "-1"
    assert V1_INDEX not in wish_annotations(hold, 1)
    alone = PodHold(PodRef("ns", "p", "u"), {0: {CardIndex(1): UnitsAndPercent(Units(4), 0)}})
    assert wish_annotations(alone, 1, before=copied)[V1_INDEX] == "1"


def test_a_pod_that_names_no_policy_fits_nowhere() -> None:
    """As the agent would say."""
    rooms = node_rooms(offer(), [])
    found = fit(offer(), rooms, replace(pod((_APP, 2)), placement="x"), PlacementPolicy.BINPACK)

    assert found == Misfit(
        "node(s) never serve what the pod asks for: UnknownPlacement", is_final=True
    )


def test_a_pod_that_wants_its_card_alone_has_it_alone() -> None:
    """R-528: it joins nobody, nobody joins it, and it counts while it is only reserved."""
    alone = replace(pod((_APP, 2), name="alone"), card_label="require-whole-device")
    other = pod((_APP, 2), name="q")
    taken = node_rooms(offer(1), [hold_of(other, {})])
    found = fit(offer(1), node_rooms(offer(1), []), alone, PlacementPolicy.BINPACK)
    assert isinstance(found, Fit)

    for refused in (
        fit(offer(1), taken, alone, PlacementPolicy.BINPACK),
        placed(offer(1), other, alone),
        fit(offer(1), node_rooms(offer(1), [found.hold]), other, PlacementPolicy.BINPACK),
    ):
        assert refused == Misfit(
            "node(s) didn't have enough device resources to allocate", is_final=False
        )
    assert isinstance(placed(offer(2), other, alone), Fit)


def test_fgd_prefers_the_node_that_is_spoiled_less() -> None:
    """A node whose card has 10 units free to one that has 9."""

    def score(held: int) -> float:
        rooms = node_rooms(offer(1), [hold_of(pod((_APP, held), name="q"), {})])
        found = fit(offer(1), rooms, pod((_APP, 1)), PlacementPolicy.FGD)
        assert isinstance(found, Fit)
        return found.score.own

    assert 0 <= score(6) < score(5) <= 1


def test_fgd_prefers_the_node_that_keeps_processors_beside_its_free_cards() -> None:
    """By what the pod leaves: 8 cores for most of a card are too few, and 24 are enough."""

    def score(cores: int) -> float:
        rooms, asking = node_rooms(offer(1), []), replace(pod((_APP, 3)), cpu_milli=6000)
        found = fit(offer(1), rooms, asking, PlacementPolicy.FGD, cores * 1000)
        assert isinstance(found, Fit)
        return found.score.own

    assert score(8) < score(24) == score(96)


def test_an_init_containers_units_are_held_as_long_as_the_pod_is_there() -> None:
    """The kubelet keeps for the pod what the app container does not take over."""
    found = placed(offer(1), pod((_INIT, 12), (_APP, 2)))
    assert isinstance(found, Fit)
    assert found.hold.by_container == {1: {0: (2, 0)}}
    assert found.hold.extra == {0: (10, 0)}
    assert free(offer(1), pod((_INIT, 12), (_APP, 2))) == [3]


def test_an_init_container_goes_where_the_app_container_after_it_fits() -> None:
    """As the agent does it: binpack alone would put the small one on the fuller card."""
    full = pod((_APP, 10), name="full")
    found = placed(offer(2), pod((_INIT, 2), (_APP, 10)), full)
    assert isinstance(found, Fit)
    assert found.hold.by_container == {1: {1: (10, 0)}}
    assert isinstance(placed(offer(1), pod((_INIT, 2), (_APP, 10)), full), Misfit)


def fits_somehow(free: Sequence[_Amount], asks: Sequence[tuple[ContainerKind, _Amount]]) -> bool:
    """Whether any cards for the containers would do, as the kubelet hands units on."""
    return any(does(free, asks, on) for on in itertools.product(range(len(free)), repeat=len(asks)))


def does(
    free: Sequence[_Amount], asks: Sequence[tuple[ContainerKind, _Amount]], on: Sequence[int]
) -> bool:
    """Whether the containers may lie on these cards."""
    taken, kept = [[0, 0] for _ in free], [[0, 0] for _ in free]
    for (kind, amounts), card in zip(asks, on, strict=True):
        if any(any(pool) for other, pool in enumerate(kept) if other != card):
            return False
        for which, amount in enumerate(amounts):
            pool = kept[card][which]
            taken[card][which] += max(0, amount - pool)
            rest = max(amount, pool) if kind is _INIT else max(0, pool - amount)
            kept[card][which] = rest
    return all(t[0] <= f[0] and t[1] <= f[1] for t, f in zip(taken, free, strict=True))


_UNITS, _PERCENT = st.integers(1, 8), st.sampled_from([5, 30, 50, 100])


@settings(max_examples=300)
@given(
    st.lists(st.tuples(_UNITS, _PERCENT), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from([_INIT, _SIDECAR, _APP, _APP]), st.tuples(_UNITS, _PERCENT)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(PlacementPolicy),
)
def test_a_pod_fits_exactly_where_some_cards_for_its_containers_do(
    free: list[_Amount], containers: list[tuple[ContainerKind, _Amount]], policy: PlacementPolicy
) -> None:
    """Though placing one container after the other may take the only card of a later one."""
    asks = [each for each in containers if each[0] is not _APP]
    asks += [each for each in containers if each[0] is _APP]
    cards = tuple(
        Card(f"GPU-{n}", CardNumber(n), CardIndex(n), -1, "V100", MiB(1024 * 8))
        for n in range(len(free))
    )
    healthy = frozenset(card.index for card in cards)
    node = NodeOffer("n1", NodeMode.CORE_MEM, MemoryUnit.GIB, cards, healthy)
    held = [
        PodHold(
            PodRef("ns", f"q{n}", f"q{n}"),
            {0: {CardIndex(n): UnitsAndPercent(Units(8 - units), 100 - percent)}},
        )
        for n, (units, percent) in enumerate(free)
    ]
    asking = PodRequest(
        PodRef("ns", "p", "p"),
        tuple(
            ContainerRequest(f"c{n}", kind, n, {Resource.MEM: units, Resource.CORE: percent})
            for n, (kind, (units, percent)) in enumerate(asks)
        ),
    )

    found = fit(node, node_rooms(node, held), asking, policy)

    assert isinstance(found, Fit) is fits_somehow(free, asks)
    if isinstance(found, Fit):
        hold = found.hold
        bound = hold_of(asking, wish_annotations(hold, 1))
        assert (bound.by_container, bound.extra, bound.unplaced) == (
            hold.by_container,
            hold.extra,
            (),
        )
        taken = hold.by_card()
        for card, (units, percent) in taken.items():
            assert units <= free[card][0]
            assert percent <= free[card][1]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from([100, 60, 25, 0])), min_size=2, max_size=5
    ),
    st.lists(st.tuples(st.sampled_from([_INIT, _APP]), st.integers(1, 8)), min_size=1, max_size=3),
    st.sampled_from(PlacementPolicy),
    st.randoms(use_true_random=False),
)
def test_which_card_has_which_number_changes_no_score(
    free: list[_Amount],
    containers: list[tuple[ContainerKind, int]],
    policy: PlacementPolicy,
    mixed: random.Random,
) -> None:
    """So that the controller may answer nodes with the same left alike."""
    cards = tuple(
        Card(f"GPU-{n}", CardNumber(n), CardIndex(n), -1, "V100", MiB(1024 * 8))
        for n in range(len(free))
    )
    healthy = frozenset(card.index for card in cards)
    node = NodeOffer("n1", NodeMode.CORE_MEM, MemoryUnit.GIB, cards, healthy)
    asking = PodRequest(
        PodRef("ns", "p", "p"),
        tuple(
            ContainerRequest(f"c{n}", kind, n, {Resource.MEM: units, Resource.CORE: 25})
            for n, (kind, units) in enumerate(sorted(containers, key=lambda c: c[0] is _APP))
        ),
    )

    def answered(left: list[_Amount]) -> Score | Misfit:
        held = [
            PodHold(
                PodRef("ns", f"q{n}", f"q{n}"),
                {0: {CardIndex(n): UnitsAndPercent(Units(8 - units), 100 - percent)}},
            )
            for n, (units, percent) in enumerate(left)
        ]
        found = fit(node, node_rooms(node, held), asking, policy)
        return found.score if isinstance(found, Fit) else found

    assert answered(free) == answered(mixed.sample(free, len(free)))


@pytest.mark.parametrize(
    ("policy", "free_units", "units"),
    [(PlacementPolicy.SPREAD, (1, 2), (1, 2)), (PlacementPolicy.BINPACK, (1, 4), (2, 1, 2))],
)
def test_a_container_makes_room_for_a_later_one(
    policy: PlacementPolicy, free_units: tuple[int, ...], units: tuple[int, ...]
) -> None:
    """The policy's first choice would leave one of them without a card."""
    held = [pod((_APP, 15 - free), name=f"q{n}") for n, free in enumerate(free_units)]
    holds = [
        hold_of(each, {ALLOCATION: json.dumps({"0": {str(n): each.containers[0].amount(_MEM)}})})
        for n, each in enumerate(held)
    ]
    asking = pod(*[(_APP, each) for each in units])

    found = fit(offer(2), node_rooms(offer(2), holds), asking, policy)

    assert isinstance(found, Fit)
    assert [sum(u for u, _ in found.hold.by_container[n].values()) for n in range(len(units))] == [
        *units
    ]


def test_a_search_for_cards_ends() -> None:
    """Sixteen containers on eight cards, of which none is like another."""
    cards = tuple(
        Card(f"GPU-{n}", CardNumber(n), CardIndex(n), -1, "V100", MiB(1024 * (90 + n)))
        for n in range(8)
    )
    healthy = frozenset(card.index for card in cards)
    node = NodeOffer("n1", NodeMode.CGPU, MemoryUnit.GIB, cards, healthy)
    asking = pod(*[(_APP, 46)] * 15, (_APP, 47))

    assert isinstance(fit(node, node_rooms(node, []), asking, PlacementPolicy.BINPACK), Misfit)


@pytest.mark.parametrize(("units", "fits"), [(13, True), (14, False)])
def test_a_sidecar_is_counted_beside_the_app_container(units: int, *, fits: bool) -> None:
    """Both are there at the same time."""
    assert isinstance(placed(offer(1), pod((_SIDECAR, 2), (_APP, units))), Fit) is fits


def test_a_pod_on_several_cards_is_counted_on_as_many() -> None:
    """Though no annotation says which."""
    assert free(offer(3), pod((_APP, 20), label="2")) == [5, 5, 15]


def test_what_a_bound_pod_asks_is_counted_though_no_card_has_the_room() -> None:
    """Somebody holds it, whatever we know."""
    first, second = pod((_APP, 10)), pod((_APP, 10), name="q")
    assert free(offer(1), first, second) == [0]


def test_containers_of_one_pod_are_one_pod_on_a_card() -> None:
    """The limit is of pods."""
    four = pod(*[(_APP, 1)] * 4)
    assert isinstance(placed(offer(1, max_pods=2), pod((_APP, 1), name="q"), four), Fit)
    full = placed(offer(1, max_pods=1), pod((_APP, 1), name="q"), four)
    text = "The number of pods per gpu device has reached the maximum allowed"
    assert full == Misfit(text, is_final=False)


def test_an_annotation_counts_only_where_it_adds_up_to_the_request() -> None:
    """Else the node's own policy tells where the units are."""
    asking = pod((_APP, 4))
    assert hold_of(asking, {ALLOCATION: '{"0":{"1":4}}'}).by_card() == {1: (4, 0)}
    assert hold_of(asking, {ALLOCATION: '{"0":{"1":400}}'}).by_card() == {}
    assert hold_of(asking, {ALLOCATION: '{"0":{"0":8,"1":-4}}'}).by_card() == {}


def test_a_wish_keeps_what_init_containers_hold_on_several_cards() -> None:
    """Four units a card, though the app container needs one of each."""
    asking = pod((_INIT, 8), (_APP, 2), label="2")
    found = placed(offer(2), asking)
    assert isinstance(found, Fit)
    hold = found.hold

    for annotations in (wish_annotations(hold, 1), {ALLOCATION: '{"1":{"0":1,"1":1}}'}):
        bound = hold_of(asking, annotations)
        assert [room.free_mem for room in node_rooms(offer(2), [bound])] == [11, 11]


@pytest.mark.parametrize(
    ("core", "is_believed"),
    [(None, True), ("{}", True), ('{"0":{"0":80}}', True)]
    + [(bad, False) for bad in ('{"0":{"1":80}}', '{"0":{"0":5}}', '{"0":{"0":80,"1":80}}')],
)
def test_compute_counts_as_the_spec_says(core: str | None, *, is_believed: bool) -> None:
    """Also where the annotation of it is lost; where it says another, no card is believed."""
    container = ContainerRequest("c0", _APP, 0, {Resource.MEM: 4, Resource.CORE: 80})
    annotations = {ALLOCATION: '{"0":{"0":4}}'} | ({} if core is None else {CORE_ALLOCATION: core})

    held = hold_of(PodRequest(PodRef("ns", "p", "p"), (container,)), annotations)

    assert held.by_card() == ({0: (4, 80)} if is_believed else {})
    assert held.unplaced == (() if is_believed else (Demand(Units(4), 80),))


@pytest.mark.parametrize("label", ["9" * 5000, "-" + "9" * 5000])
def test_a_number_of_cards_without_end_is_refused(label: str) -> None:
    """And a pod with it that is bound counts all the same."""
    found = placed(offer(), pod((_APP, 4), label=label))
    assert found == Misfit("node(s) never serve what the pod asks for: BadCardCount", is_final=True)
    assert free(offer(1), pod((_APP, 4), label=label)) == [11]


def test_an_uneven_share_is_told_in_the_words_of_the_source() -> None:
    """R-522; and what the reason means stands in docs/troubleshooting.md."""
    found = placed(offer(), pod((_APP, 9), label="4"))
    words = "invalid replica for resource aliyun.com/gpu-mem,because 9 / 4 = 2.2"
    text = f"node(s) never serve what the pod asks for: UnevenShare: {words}"
    assert found == Misfit(text, is_final=True)


def test_less_than_nothing_fits_nowhere() -> None:
    """The API server should have refused it."""
    found = placed(offer(), pod((_APP, -4)))
    assert found == Misfit("node(s) never serve what the pod asks for: BadAmount", is_final=True)


_CARD = {"index": 0, "uuid": "GPU-0", "model": "V100", "memory_mib": 16160, "healthy": True}


@pytest.mark.parametrize(
    "cards",
    [
        [{**_CARD, "memory_mib": 10**400}],
        [{**_CARD, "memory_mib": -1}],
        [{**_CARD, "memory_mib": True}],
        [{**_CARD, "index": -1}],
        [{**_CARD, "index": True}],
        [{**_CARD, "uuid": ""}],
        [{**_CARD, "uuid": "\ud800"}],
        [{**_CARD, "model": "\ud800"}],
        [_CARD, {**_CARD, "uuid": "GPU-1"}],
        [_CARD, {**_CARD, "index": 1}],
        ["x" * 100_000],
    ],
)
def test_an_annotation_of_cards_that_cannot_be_is_refused_in_few_words(cards: object) -> None:
    """The node is left out, and no other one suffers."""
    annotation = json.dumps({"mode": "cgpu", "unit_mib": 1024, "cards": cards})
    with pytest.raises(StateError, match=r"^annotation of cards (has|is no JSON)") as raised:
        parse_offer("n1", annotation, {})
    assert len(str(raised.value)) < 300
