"""The promise: a container gets the cards that its node's policy prefers, or learns why none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.words import CORE, INIT, MEM, V100_MIB, cards, grant, terms

from gpu_device_plugin.domain.cards.card import CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.no_room import NoRoom
from gpu_device_plugin.domain.fractions.placement import Placement, place
from gpu_device_plugin.domain.fractions.room import Room, at_most, rooms
from gpu_device_plugin.domain.fractions.units import Resource, lie_equally_on, pick_units, unit_ids
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.domain.node.pods import PodRef

BINPACK, SPREAD = PlacementPolicy.BINPACK, PlacementPolicy.SPREAD
FOUR = cards(V100_MIB, V100_MIB, V100_MIB, V100_MIB)
ASKER = PodRef("default", "caller", "uid-caller")


def room(index: int, mem: int, core: int = 100, pods: int = 0, **more: bool | int) -> Room:
    """One of four V100 with this much left."""
    is_healthy = bool(more.get("is_healthy", True))
    most = more.get("max_pods")
    return Room(
        card=FOUR[index],
        is_healthy=is_healthy,
        free_mem=Units(mem),
        free_core=core,
        pods=pods,
        holds_pod=bool(more.get("holds_pod", False)),
        max_pods=None if most is None else int(most),
        least_core=int(more.get("least_core", 0)),
        has_strangers=bool(more.get("has_strangers", False)),
    )


def indexes(found: Placement | NoRoom) -> list[int] | None:
    """NVML indexes of the cards, or None without room."""
    return [card.index for card in found.cards] if isinstance(found, Placement) else None


@pytest.mark.parametrize(("policy", "expected"), [(BINPACK, [0, 0]), (SPREAD, [0, 1])])
def test_the_documented_example(policy: PlacementPolicy, expected: list[int]) -> None:
    """R-504: 2 cards of 15 GiB, pods of 2 and 3: packed on one, spread on two."""
    node = cards(V100_MIB, V100_MIB)
    healthy = {card.uuid: True for card in node}
    ledger, chosen = Ledger(), []
    for name, units in (("a", 2), ("b", 3)):
        pod = PodRef("default", name, f"uid-{name}")
        found = place(
            rooms(node, healthy, ledger, terms(NodeMode.CGPU), pod), Demand(Units(units)), policy
        )
        assert isinstance(found, Placement)
        chosen.append(found.cards[0].index)
        number = found.cards[0].number
        free = [i for i in unit_ids(MEM, number, 15) if not ledger.holders([i])]
        ledger = ledger.hold(grant(name, " ".join(free[:units]), on=found.cards[0].uuid))

    assert chosen == expected


@pytest.mark.parametrize("policy", PlacementPolicy)
@pytest.mark.parametrize("wish", [(), (0,)])
def test_a_card_on_which_strangers_hold_memory_comes_last(
    policy: PlacementPolicy, wish: tuple[int, ...]
) -> None:
    """Whatever the policy prefers, and the scheduler, which does not know; where nothing else fits, it serves."""
    taken = room(0, 8, has_strangers=True)
    wished = [CardIndex(index) for index in wish]
    for others, expected in (((15, 15), 1), ((15, 1), 1), ((1, 1), 0)):
        free = [taken, *(room(index + 1, mem) for index, mem in enumerate(others))]
        assert indexes(place(free, Demand(Units(2)), policy, wish=wished)) == [expected]
    reused = frozenset({taken.card.number})
    assert indexes(place([taken, room(1, 15)], Demand(Units(2)), policy, must=reused)) == [0]


@pytest.mark.parametrize(("policy", "card"), [(BINPACK, 0), (SPREAD, 2), (PlacementPolicy.FGD, 1)])
def test_fgd_takes_the_card_on_which_the_least_room_is_spoiled(
    policy: PlacementPolicy, card: int
) -> None:
    """Of 9 free units one less would serve no six tenths any more; of 10, six tenths are left."""
    found = place([room(0, 9), room(1, 10), room(2, 15)], Demand(Units(1)), policy)

    assert indexes(found) == [card]


def test_fgd_counts_what_is_scarcer_of_memory_and_compute() -> None:
    """Much memory beside no compute is no room that could be spoiled."""
    full_of_compute = room(0, 15, core=30, least_core=5)
    whole = room(1, 15, least_core=5)

    assert indexes(place([whole, full_of_compute], Demand(Units(2), 30), PlacementPolicy.FGD)) == [
        0
    ]


def test_of_equal_cards_fgd_takes_the_first() -> None:
    """So that equal nodes choose the same."""
    rooms = [room(index, 15) for index in range(4)]

    assert indexes(place(rooms, Demand(Units(3)), PlacementPolicy.FGD)) == [0]


def test_a_pod_that_wants_its_card_alone_gets_an_empty_one() -> None:
    """R-528; its own containers may be there, and nobody joins it."""
    alone = Demand(Units(2), is_exclusive=True)
    shared, own = room(0, 13, pods=1), room(1, 13, pods=1, holds_pod=True)
    closed = replace(room(2, 0, pods=1), is_closed=True)

    assert indexes(place([shared, room(1, 15)], alone, BINPACK)) == [1]
    assert indexes(place([shared, own], alone, BINPACK)) == [1]
    assert indexes(place([closed, room(3, 15)], Demand(Units(1)), BINPACK)) == [3]
    found = place([shared, closed], alone, BINPACK)
    assert isinstance(found, NoRoom)
    assert found.lacks == ((0, "1 other pods"), (2, "held by a pod that wants no other beside it"))
    assert found.largest
    assert (found.largest.card, found.reason) == (FOUR[0], "NoRoom")


def test_two_half_free_cards_do_not_add_up() -> None:
    """R-523; the largest slice is told in units and MiB."""
    found = place([room(0, 7), room(1, 8)], Demand(Units(9)), BINPACK)

    assert isinstance(found, NoRoom)
    assert found.largest
    assert (found.largest.free_mem, found.largest.free_slice_mib) == (8, 8618)
    assert (found.largest.card, found.reason) == (FOUR[1], "NoRoom")
    assert found.lacks == ((0, "7 of 15 units free"), (1, "8 of 15 units free"))


def test_the_largest_slice_has_the_compute_that_was_asked() -> None:
    """14 units beside 10 % are no help for somebody who wants 30 %."""
    found = place([room(0, 14, 10), room(1, 3, 30)], Demand(Units(4), 30), BINPACK)

    assert isinstance(found, NoRoom)
    assert found.largest
    assert (found.largest.free_mem, found.largest.card) == (3, FOUR[1])
    assert found.lacks[0] == (0, "10 % compute free, 14 units free")


def test_without_that_compute_anywhere_the_largest_slice_is_of_memory() -> None:
    """So the reader sees what there is."""
    found = place([room(0, 14, 10), room(1, 3, 0)], Demand(Units(4), 30), BINPACK)

    assert isinstance(found, NoRoom)
    assert found.largest
    assert (found.largest.free_mem, found.largest.card) == (14, FOUR[0])


@pytest.mark.parametrize("found", [place([], Demand(Units(1)), BINPACK)])
def test_a_node_without_cards_has_no_room(found: Placement | NoRoom) -> None:
    """And no largest slice."""
    assert isinstance(found, NoRoom)
    assert (found.largest, found.lacks, found.reason) == (None, (), "NoHealthyCard")


def test_unhealthy_cards_serve_nobody() -> None:
    """Nor do they show as the largest slice."""
    found = place([room(0, 15, is_healthy=False)], Demand(Units(1)), BINPACK)

    assert isinstance(found, NoRoom)
    assert (found.largest, found.lacks) == (None, ((0, "unhealthy"),))
    assert found.reason == "NoHealthyCard"


def test_the_seventeenth_pod_finds_no_card() -> None:
    """R-405: at most 16 pods a card with isolation; a pod on the card stays welcome."""
    full = room(0, 5, pods=16, max_pods=16)

    found = place([full], Demand(Units(1)), BINPACK)

    assert isinstance(found, NoRoom)
    assert (found.reason, found.lacks) == ("TooManyPods", ((0, "16 pods, at most 16"),))
    mine = room(0, 5, pods=16, max_pods=16, holds_pod=True)
    assert indexes(place([mine], Demand(Units(1)), BINPACK)) == [0]


def test_a_card_without_compute_serves_nobody_where_compute_is_divided() -> None:
    """With the API away the compute of a container is not known yet, but it is at least 5 %."""
    left = [room(0, 3, 0, least_core=5), room(1, 9, 5, least_core=5)]

    assert indexes(place(left, Demand(Units(2)), BINPACK)) == [1]


def test_a_card_without_memory_serves_nobody() -> None:
    """The same for memory, where the compute is what is asked first."""
    assert indexes(place([room(0, 0), room(1, 9)], Demand(Units(0), 30), BINPACK)) == [1]


def test_earlier_cards_of_the_pod_go_before_the_policy() -> None:
    """A pod's further containers prefer the first's card, as long as it has room."""
    left = [room(0, 2), room(1, 9), room(2, 15)]

    assert indexes(place(left, Demand(Units(2)), BINPACK, prefer=["GPU-2"])) == [2]
    assert indexes(place(left, Demand(Units(3)), BINPACK, prefer=["GPU-0"])) == [1]


def test_a_wish_is_honoured_if_it_fits() -> None:
    """The extender's wish is advice: one that does not fit is passed over."""
    left = [room(0, 2), room(1, 9), room(2, 15)]

    assert indexes(place(left, Demand(Units(2)), BINPACK, wish=[CardIndex(2)])) == [2]
    assert indexes(place(left, Demand(Units(3)), BINPACK, wish=[CardIndex(0)])) == [1]
    assert indexes(place(left, Demand(Units(2)), BINPACK, wish=[CardIndex(7)])) == [0]
    assert indexes(place(left, Demand(Units(2)), BINPACK, wish=[CardIndex(1), CardIndex(2)])) == [0]
    both = [CardIndex(2), CardIndex(1)]
    assert indexes(place(left, Demand(Units(4), cards=2), BINPACK, wish=both)) == [1, 2]


def test_handed_on_units_decide_the_card() -> None:
    """The kubelet gives them in any case: their card, or no room."""
    left = [room(0, 2), room(1, 9), room(2, 15)]
    forced = frozenset({FOUR[2].number})

    assert indexes(place(left, Demand(Units(2)), BINPACK, must=forced, wish=[CardIndex(0)])) == [2]
    assert indexes(place(left, Demand(Units(4), cards=2), BINPACK, must=forced)) == [0, 2]
    both = frozenset({FOUR[1].number, FOUR[2].number})
    found = place(left, Demand(Units(2)), BINPACK, must=both)
    assert isinstance(found, NoRoom)
    assert found.lacks[0] == (0, "fits, but an init container's units lie on another card")


@dataclass(frozen=True, slots=True)
class Question:
    """One random question to `place`."""

    left: Sequence[Room]
    demand: Demand
    prefer: Sequence[str]
    wish: Sequence[CardIndex]
    must: frozenset[CardNumber]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Four cards in any state, and anybody's opinion about them."""
    left = [
        room(
            index,
            draw(st.integers(0, 6)),
            draw(st.sampled_from([100, 30, 5, 0])),
            draw(st.integers(0, 2)),
            is_healthy=draw(st.integers(0, 5)) < 5,
            holds_pod=draw(st.booleans()),
            max_pods=2,
        )
        for index in range(4)
    ]
    count = draw(st.integers(1, 3))
    demand = Demand(
        Units(draw(st.integers(1, 5)) * count), draw(st.sampled_from([0, 5, 30])), count
    )
    some = st.lists(st.integers(0, 3), unique=True, max_size=3)
    return Question(
        left,
        demand,
        [f"GPU-{index}" for index in draw(some)],
        [CardIndex(index) for index in draw(some)],
        frozenset(FOUR[index].number for index in draw(st.lists(st.integers(0, 3), max_size=1))),
    )


def fits(left: Room, demand: Demand) -> bool:
    """The rule once more, from the bare numbers."""
    welcome = left.holds_pod or left.pods < 2
    return (
        left.is_healthy
        and welcome
        and left.free_mem * demand.cards >= demand.mem_units
        and left.free_core >= demand.core_percent
    )


def best_of_all(asked: Question, policy: PlacementPolicy) -> list[int] | None:
    """Brute force: every set of cards, the best by the order of opinions."""
    sign = 1 if policy is BINPACK else -1
    sets = [
        chosen
        for chosen in combinations(asked.left, asked.demand.cards)
        if all(fits(left, asked.demand) for left in chosen)
        and asked.must <= {left.card.number for left in chosen}
    ]
    for chosen in sets:
        if sorted(left.card.index for left in chosen) == sorted(asked.wish):
            return sorted(asked.wish)
    ranked = [
        sorted(
            (
                left.card.number not in asked.must,
                left.card.uuid not in asked.prefer,
                sign * left.free_mem,
                sign * left.free_core,
                left.card.index,
            )
            for left in chosen
        )
        for chosen in sets
    ]
    return sorted(key[4] for key in min(ranked)) if ranked else None


@settings(max_examples=1000)
@given(questions(), st.sampled_from([BINPACK, SPREAD]))
def test_placement_equals_brute_force(asked: Question, policy: PlacementPolicy) -> None:
    """Over all sets of cards none is preferred to the one that is chosen, and none is missed (R-530)."""
    found = place(
        asked.left, asked.demand, policy, prefer=asked.prefer, wish=asked.wish, must=asked.must
    )

    assert indexes(found) == best_of_all(asked, policy)


def seen_rooms(ledger: Ledger, mode: NodeMode, pod: PodRef = ASKER) -> Mapping[int, Room]:
    """Rooms of two V100 by index; card 0 has number 1."""
    node = cards(V100_MIB, V100_MIB)
    found = rooms(node, {"GPU-0": True}, ledger, terms(mode), pod)
    return {left.card.index: left for left in found}


def test_rooms_show_what_others_hold() -> None:
    """By card number; a card that nobody calls healthy is not."""
    ledger = Ledger({"s": grant("a", "m10 m11", "c10", on="GPU-0")})

    left = seen_rooms(ledger, NodeMode.CORE_MEM)

    assert (left[0].free_mem, left[0].free_core, left[0].pods, left[0].holds_pod) == (
        13,
        99,
        1,
        False,
    )
    assert (left[1].free_mem, left[1].free_core, left[1].pods) == (15, 100, 0)
    assert (left[0].is_healthy, left[1].is_healthy) == (True, False)
    assert (left[0].max_pods, left[0].least_core) == (16, 5)


def test_the_cap_on_pods_goes_with_isolation() -> None:
    """R-405; `share` packs as many as there are units."""
    caps = {mode: seen_rooms(Ledger(), mode)[0].max_pods for mode in NodeMode}

    assert {mode for mode, cap in caps.items() if cap == 16} == {NodeMode.CORE_MEM, NodeMode.CGPU}


def test_a_pods_own_init_units_are_free_for_it_alone() -> None:
    """The kubelet will hand them on; for others they are taken."""
    ledger = Ledger({"s": grant("a", "m10 m11", kind=INIT, on="GPU-0")})

    mine = seen_rooms(ledger, NodeMode.CGPU, PodRef("default", "a", "uid-a"))
    others = seen_rooms(ledger, NodeMode.CGPU)

    assert (mine[0].free_mem, mine[0].holds_pod, mine[0].pods) == (15, True, 1)
    assert (others[0].free_mem, others[0].holds_pod) == (13, False)


def test_a_room_is_never_larger_than_what_the_kubelet_has_free() -> None:
    """The kubelet may still count a pod that we know to be gone."""
    left = room(0, 9, 50)

    assert at_most(left, MEM, 4).free_mem == 4
    assert at_most(left, MEM, 12).free_mem == 9
    assert at_most(left, CORE, 20).free_core == 20
    assert at_most(left, Resource.COUNT, 0) == left


NODE = cards(V100_MIB, V100_MIB)


def test_units_are_the_lowest_free_ones_on_the_decided_cards() -> None:
    """By number, not by text: unit 2 comes before unit 10."""
    free = {"m0a", "m02", "m0z", "m10", "c03"}

    assert pick_units(MEM, free, (), [NODE[1]], 2) == ("m02", "m0a")


def test_units_that_come_in_any_case_are_among_them() -> None:
    """The kubelet drops an answer that lacks what it must include."""
    free = set(unit_ids(MEM, 0, 15))

    assert pick_units(MEM, free, {"m0c"}, [NODE[1]], 2) == ("m0c", "m00")
    assert pick_units(MEM, free, {"m10"}, [NODE[1]], 2) is None
    assert pick_units(MEM, free, {"m0a", "m0b", "m0c"}, [NODE[1]], 2) is None


def test_units_lie_in_equal_parts_on_several_cards() -> None:
    """N/M on each, or none at all."""
    free = {*unit_ids(MEM, 0, 2), *unit_ids(MEM, 1, 1)}

    assert pick_units(MEM, free, (), NODE, 2) == ("m10", "m00")
    assert pick_units(MEM, free, (), NODE, 4) is None
    assert pick_units(MEM, free, (), NODE, 3) is None


@given(st.sets(st.sampled_from(unit_ids(MEM, 0, 15) + unit_ids(MEM, 1, 15))), st.integers(1, 15))
def test_picked_units_are_free_and_as_many_as_asked(free: set[str], size: int) -> None:
    """Exactly `size` ids, each once: fewer or others would make the kubelet choose at random."""
    found = pick_units(MEM, free, (), [NODE[0]], size)
    there = {text for text in free if text.startswith("m1")}

    assert (found is None) == (len(there) < size)
    assert found is None or (set(found) <= there and len(set(found)) == len(found) == size)


@pytest.mark.parametrize(
    ("ids", "follow"),
    [
        ("m00 m01 m10 m11", True),
        ("m00 m01 m02 m10", False),
        ("m00 m01", False),
        ("m00 m10 m20", False),
        ("", False),
    ],
)
def test_units_follow_the_decision_or_not(ids: str, *, follow: bool) -> None:
    """The kubelet hands on at random: three units of one card and one of the other are no slice."""
    assert lie_equally_on(NODE, ids.split()) is follow
