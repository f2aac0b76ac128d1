"""The promise: a resize is read strictly, refused in words, and reached in steps that never allow more than is booked."""

import re
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import CORE, MEM, cards, grant
from tests.held import fraction

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.fraction import Fraction, with_amounts
from gpu_device_plugin.domain.fractions.pod_annotations import MOST_ASKED, RESIZE, PodHold
from gpu_device_plugin.domain.fractions.request_rules import MOST_CONTAINERS
from gpu_device_plugin.domain.fractions.resize import (
    AskedSize,
    ContainerAnswer,
    ResizeAnswer,
    ResizedSlice,
    ResizeState,
    SliceSizes,
    check_growth,
    check_resize,
    growth_room,
    kept_text,
    parse_growth,
    parse_resize,
    parse_resized,
    resize_text,
    resized_annotation,
    sizes_of,
    with_sizes,
)
from gpu_device_plugin.domain.fractions.units import cards_of, unit_ids
from gpu_device_plugin.domain.grants.grant import Demand, UnitsAndPercent
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.node_annotations import MOST_AMOUNT
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import DeviceGroup, NodeState, Pool
from gpu_device_plugin.errors import DoesNotFitError, RefusalError, RequestError

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
AMOUNTS = st.integers(0, 10**9 - 1)
NOTHING = UnitsAndPercent()
SIZES = st.builds(UnitsAndPercent, st.integers(1, 40).map(Units), st.integers(0, 100))


def size(units: int, percent: int = 0) -> UnitsAndPercent:
    return UnitsAndPercent(Units(units), percent)


def a_slice(request: UnitsAndPercent, booked: UnitsAndPercent | None = None) -> ResizedSlice:
    """A slice of a card of 15 units that has all that is booked."""
    has = booked or request
    sizes = SliceSizes(request, has, has)
    return ResizedSlice("pod default/a, container main", sizes, card_units=Units(15))


@given(
    st.dictionaries(
        NAMES,
        st.builds(
            AskedSize, st.none() | AMOUNTS.map(Units), st.none() | AMOUNTS, st.none() | AMOUNTS
        ).filter(lambda asked: asked.units is not None or asked.percent is not None),
        min_size=1,
        max_size=MOST_CONTAINERS,
    )
)
def test_what_is_written_is_read(asked: dict[str, AskedSize]) -> None:
    """Seconds of any length are read as far as they have six digits."""
    known = {
        name: replace(each, within_seconds=(each.within_seconds or 0) % 10**6)
        for name, each in asked.items()
    }

    text = resize_text(known)

    if len(text) <= MOST_ASKED:
        assert parse_resize(text) == known


@pytest.mark.parametrize(
    "text",
    [
        "",
        "main",
        "main=",
        "main=mem:",
        "main=mem:-1",
        "main=mem:1.5",
        "main=mem:٣",
        "main=mem:1,mem:2",
        "main=mem:1;main=mem:2",
        "main=mem:1;",
        "main= mem:1",
        "Main=mem:1",
        "main=mem:1\n",
        "main=gpu:1",
        "main=within:60s",
        "main=mem:1,within:60",
        "main=mem:1,within:1d",
        "main=mem:" + "1" * 10,
        "a" * 64 + "=mem:1",
        ";".join(f"c{n}=mem:1" for n in range(MOST_CONTAINERS + 1)),
        "main=mem:1;" * MOST_ASKED,
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A tenant may write whatever it likes; the text that says so is short."""
    with pytest.raises(RequestError) as caught:
        parse_resize(text)

    assert caught.value.reason == "BadResize"
    assert RESIZE in str(caught.value)
    assert "main=mem:4,core:50,within:60s" in str(caught.value)


def test_what_is_not_named_stays() -> None:
    """Growing memory alone leaves the percent."""
    asked = parse_resize("main=mem:4;side=core:10,within:2h")

    assert asked["main"].over(size(2, 30)) == size(4, 30)
    assert asked["side"].over(size(2, 30)) == size(2, 10)
    assert asked["side"].within_seconds == 7200


def test_a_namespace_without_a_word_may_grow_nothing() -> None:
    """What it names may grow."""
    assert parse_growth("") == NOTHING
    assert parse_growth("mem:8") == size(8)
    with pytest.raises(RequestError, match="8 GiB"):
        parse_growth("mem:8 GiB")
    for text in ("main=mem:8", "mem:8,within:5s"):
        with pytest.raises(
            RequestError, match=r"resize-growth: .* write for instance mem:8,core:100"
        ):
            parse_growth(text)


@given(SIZES, SIZES, SIZES, st.integers(0, 40))
def test_a_resize_comes_to_its_end_and_never_allows_more_than_is_booked(
    request_: UnitsAndPercent, first: UnitsAndPercent, then: UnitsAndPercent, used: int
) -> None:
    """In few steps, each with the request reserved; room above it is taken once and given back with the use."""
    sizes = SliceSizes(request_, request_, request_)
    for target in (first, then):
        most = target.units if target is first else used
        steps = [sizes]
        while (following := steps[-1].towards(target, Units(most))) != steps[-1]:
            assert len(steps) < 5
            steps.append(following)
        for before, after in pairwise(steps):
            assert before.booked.less(after.booked) == NOTHING or before.limit == target
        for each in steps:
            assert each.request.less(each.booked) == NOTHING
            assert each.limit.less(each.booked) == NOTHING
        sizes = steps[-1]
        assert sizes.limit == target
        assert sizes.booked.percent == max(request_.percent, target.percent)
        if most <= target.units:
            assert sizes.booked.units == max(request_.units, target.units)
            assert sizes.grown == target.less(request_)


@given(SIZES, SIZES, st.integers(0, 40))
def test_a_slice_that_shrinks_under_use_keeps_its_room(
    grown: UnitsAndPercent, target: UnitsAndPercent, used: int
) -> None:
    """Nothing is given back that is in use: whoever got it would have no memory."""
    sizes = SliceSizes(size(1), grown.plus(size(1).less(grown)), grown)
    for _ in range(5):
        sizes = sizes.towards(target, Units(used))

    if target.units < used <= grown.units:
        assert sizes.booked.units >= grown.units
    assert sizes.limit == target


def test_below_its_request_a_slice_gives_back_what_it_grew_whatever_it_uses_of_the_request() -> (
    None
):
    """What stays booked covers the use."""
    sizes = SliceSizes(size(4), size(8), size(8)).towards(size(2), Units(3))

    assert sizes == SliceSizes(size(4), size(8), size(2))
    assert sizes.towards(size(2), Units(5)) == sizes
    assert sizes.towards(size(2), Units(4)) == SliceSizes(size(4), size(4), size(2))


@pytest.mark.parametrize(
    ("of", "asked", "reason"),
    [
        (replace(a_slice(size(2)), fixed="it is a claim"), AskedSize(Units(2)), "NotResizable"),
        (
            replace(a_slice(size(2)), divides_compute=False),
            AskedSize(percent=50),
            "ComputeNotServed",
        ),
        (a_slice(size(2, 30)), AskedSize(percent=7), "BadPercentage"),
        (a_slice(size(2, 30)), AskedSize(percent=0), "BadPercentage"),
        (a_slice(size(2, 30)), AskedSize(percent=105), "BadPercentage"),
        (a_slice(size(2)), AskedSize(Units(0)), "BadAmount"),
        (replace(a_slice(size(4)), cards=2), AskedSize(Units(5)), "UnevenShare"),
        (a_slice(size(2)), AskedSize(Units(16)), "LargerThanCard"),
        (replace(a_slice(size(4)), cards=2), AskedSize(Units(32)), "LargerThanCard"),
    ],
)
def test_what_can_never_be_is_refused(of: ResizedSlice, asked: AskedSize, reason: str) -> None:
    """The text names the slice, what it asks for and what it has."""
    with pytest.raises(RequestError) as caught:
        check_resize(of, asked)

    assert caught.value.reason == reason
    assert "pod default/a, container main asks to have" in str(caught.value)
    assert "instead of" in str(caught.value)


@pytest.mark.parametrize(
    "asked", [AskedSize(Units(0)), AskedSize(Units(5)), AskedSize(Units(32)), AskedSize(percent=7)]
)
def test_each_answer_names_the_unit_of_memory(asked: AskedSize) -> None:
    """A number of units alone says nothing."""
    of = replace(a_slice(size(4, 30)), cards=2, unit=MemoryUnit.MIB128)
    with pytest.raises(RequestError) as caught:
        check_resize(of, asked)

    kept = kept_text(of, SliceSizes(size(4), size(8), size(2)), Units(6))
    assert "uses 6 units of 128 MiB" in kept
    for text in (str(caught.value), kept):
        assert len(re.findall(r"\bunits? of 128 MiB", text)) == len(re.findall(r"\bunits?\b", text))


def test_growing_is_one_step() -> None:
    """So that a decision writes the grants once."""
    of_two = SliceSizes(size(2, 30), size(2, 30), size(2, 30))

    grown = of_two.towards(size(8, 10), Units(0))
    assert grown == SliceSizes(size(2, 30), size(8, 30), size(8, 10))
    assert grown.towards(size(8, 10), Units(8)) == grown


@pytest.mark.parametrize(
    ("target", "allowed", "others", "free", "expected"),
    [
        (size(1, 5), NOTHING, NOTHING, NOTHING, None),
        (size(2, 30), NOTHING, NOTHING, NOTHING, None),
        (size(3, 30), NOTHING, NOTHING, size(13, 70), RequestError),
        (size(3, 30), size(1), NOTHING, size(13, 70), None),
        (size(3, 35), size(1), NOTHING, size(13, 70), RequestError),
        (size(3, 30), size(2), size(2), size(13, 70), DoesNotFitError),
        (size(5, 50), size(3, 20), NOTHING, size(3, 15), DoesNotFitError),
        (size(5, 50), size(3, 20), NOTHING, size(2, 70), DoesNotFitError),
        (size(5, 50), size(3, 20), NOTHING, size(3, 20), None),
    ],
)
def test_only_growing_needs_room_and_leave(
    target: UnitsAndPercent,
    allowed: UnitsAndPercent,
    others: UnitsAndPercent,
    free: UnitsAndPercent,
    expected: type[RefusalError] | None,
) -> None:
    """Of 2 units and 30 %: what is free or allowed later is waited for, and what is never allowed is refused."""
    of = a_slice(size(2, 30))
    if expected is None:
        check_growth(of, target, allowed, others, free, "")
        return
    with pytest.raises(expected) as caught:
        check_growth(of, target, allowed, others, free, "pod default/b has 4 units")

    assert type(caught.value) is expected
    assert caught.value.reason in {"GrowthNotAllowed", "NoRoom"}
    assert caught.value.reason == "GrowthNotAllowed" or "default/b" in str(caught.value)


def test_what_has_been_booked_needs_no_room_again() -> None:
    """An agent that was killed between booking and allowing goes on."""
    check_growth(a_slice(size(2), size(8)), size(8), NOTHING, NOTHING, NOTHING, "")


@given(
    st.text(max_size=50),
    st.dictionaries(
        st.text(max_size=10),
        st.builds(
            ContainerAnswer,
            st.integers(0, 9999),
            st.integers(0, 100),
            st.sampled_from(ResizeState),
            st.text(max_size=32),
            st.text(),
        ),
        max_size=5,
    ),
    st.text(),
)
def test_an_answer_is_read_as_it_was_written(
    asked: str, containers: dict[str, ContainerAnswer], text: str
) -> None:
    """Whatever stands in its texts."""
    answer = ResizeAnswer(asked, 128, containers, text)

    assert parse_resized(resized_annotation(answer)) == answer


def test_the_longest_answer_can_be_read() -> None:
    """Its texts and times are left out where it would be too long."""
    names = [f"{n:02}".rjust(25, "x") for n in range(MOST_CONTAINERS)]
    asked = resize_text({name: AskedSize(Units(1)) for name in names})
    long = ContainerAnswer(MOST_AMOUNT, 100, ResizeState.REFUSED, "s" * 32, "t" * 1000)
    answer = ResizeAnswer(asked, MOST_AMOUNT, dict.fromkeys(names, long))
    read = parse_resized(resized_annotation(answer))

    assert MOST_ASKED - len(asked) < MOST_CONTAINERS
    assert read == replace_texts(answer)


def replace_texts(answer: ResizeAnswer) -> ResizeAnswer:
    """The answer without the texts and times of its containers."""
    short = {
        name: ContainerAnswer(of.mem, of.core, of.state) for name, of in answer.containers.items()
    }
    return msgspec.structs.replace(answer, containers=short)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[" * 100_000, '{"asked":"","unit_mib":-1}', '{"asked":1,"unit_mib":1}'],
)
def test_no_answer_of_an_agent_says_nothing(text: str) -> None:
    """Where no policy keeps it, anybody may have written it."""
    assert parse_resized(text) is None


@given(
    st.integers(1, 5),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 100)), max_size=5),
    st.sets(st.integers(0, 14)),
    st.integers(1, 2),
)
def test_a_grown_slice_has_units_of_its_cards_that_nobody_else_has(
    units: int, percent: int, targets: list[tuple[int, int]], taken: set[int], cards_: int
) -> None:
    """It counts as much as it has; where the ids are taken, it stays as it is."""
    on, percent = cards(16160, 16160)[:cards_], percent if cards_ == 1 else 0
    mem = [t for card in on for t in unit_ids(MEM, card.number, units)]
    core = unit_ids(CORE, on[0].number, percent)
    each = fraction(
        "s",
        PodRef("default", "a", "uid-a"),
        "main",
        units={MEM: tuple(sorted(mem)), CORE: tuple(sorted(core))},
        cards=[card.uuid for card in on],
    )
    others = frozenset(unit_ids(MEM, card.number, 15)[n] for card in on for n in taken) - {*mem}
    for target in targets:
        wanted = UnitsAndPercent(Units(target[0] * cards_), target[1] if cards_ == 1 else 0)
        before = sizes_of(each)
        following = before.towards(wanted, Units(0))
        if (found := with_sizes(each, following, on, others | each.all_ids)) is None:
            assert following.booked.less(before.booked) != NOTHING
            continue
        each = found
        assert sizes_of(each) == following
        assert each.extra_ids.isdisjoint(others | each.all_ids)
        assert cards_of(each.extra_ids) <= {card.number for card in on}
        assert sum(s.memory_mib for s in each.shares) == following.booked.units * 1024
        assert each.core_percent == following.booked.percent
        assert each.ids(MEM) == tuple(sorted(mem))
        assert following.limit == before.limit or each.resized is not None


def offered(*ids: str) -> DeviceGroup:
    return DeviceGroup(ids, card="GPU-0")


def kept(*ids: str) -> DeviceGroup:
    return replace(offered(*ids), is_healthy=False)


def test_units_that_are_kept_back_are_offered_to_nobody_and_stay_in_the_list() -> None:
    """The kubelet goes on counting them as capacity; whoever holds a unit beside them keeps it healthy."""
    pool = Pool("r", (offered("a", "b", "c"), kept("d")))

    assert pool.without(frozenset()) is pool
    assert pool.without(frozenset("x")) is pool
    assert pool.without(frozenset("bd")).groups == (offered("a", "c"), kept("b"), kept("d"))


def test_room_is_what_nobody_has_and_nobody_was_promised() -> None:
    """Of an unhealthy card there is none."""
    [card] = cards(16160)
    mine = with_amounts(
        replace(grant("a", "m00 m01", "c00 c01", on=card.uuid), resized=None), Fraction(Units(2)), 2
    )
    other = grant("b", "m02 m03 m04", "c05", on=card.uuid)
    ledger = Ledger({g.slice_id: g for g in (mine, other)})
    state = NodeState("node-a", NodeMode.CORE_MEM, cards=(card,))
    coming = PodHold(PodRef("default", "c"), unplaced=(Demand(Units(4), 20),))

    assert growth_room(mine, ledger, state, [])[0] == size(10, 97)
    free, holders = growth_room(mine, ledger, state, [coming])
    assert free == size(6, 77)
    assert "pod default/b 3 units" in holders
    assert "pod default/c, which is bound here" in holders
    sick = replace(state, unhealthy={card.uuid: "Xid79"})
    assert growth_room(mine, ledger, sick, [])[0] == NOTHING
    assert growth_room(mine, ledger, replace(state, cards=()), [])[0] == NOTHING
