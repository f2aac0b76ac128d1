"""The promise: an id names one unit of one resource on one card, and is short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.domain.cards.card import MAX_CARDS, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.units import (
    Resource,
    UnitId,
    cards_of,
    parse_unit_id,
    unit_ids,
)
from gpu_device_plugin.errors import StateError

CARDS = st.integers(0, MAX_CARDS - 1).map(CardNumber)


@given(st.sampled_from(Resource), CARDS, st.integers(0, 50_000))
def test_an_id_says_what_it_is(resource: Resource, card: CardNumber, unit: int) -> None:
    """Writing and reading an id are each other's inverse, in at most 8 characters."""
    text = unit_ids(resource, card, unit + 1)[unit]

    assert parse_unit_id(text) == UnitId(resource, card, unit)
    assert len(text) <= 8


@given(CARDS, CARDS, st.integers(1, 200))
def test_ids_of_two_resources_and_two_cards_never_meet(one: int, other: int, count: int) -> None:
    """The kubelet looks up an id's health without its resource (#140323)."""
    groups = {(r, card): unit_ids(r, card, count) for r in Resource for card in {one, other}}

    assert len({text for ids in groups.values() for text in ids}) == count * len(groups)


@given(st.text(max_size=10))
def test_a_foreign_id_is_none_of_ours(text: str) -> None:
    """Whatever the kubelet or another plugin calls a device, reading it never fails."""
    unit = parse_unit_id(text)

    assert unit is None or text[0] in "mcn"


def test_ids_tell_their_cards() -> None:
    """Foreign ids count for no card."""
    assert cards_of(["m3a7", "c20", "GPU-0", ""]) == {2, 3}


@pytest.mark.parametrize("unit", MemoryUnit)
def test_a_unit_is_found_by_its_size(unit: MemoryUnit) -> None:
    """Grants and annotations tell a unit in MiB."""
    assert MemoryUnit.of_mib(unit.mib) is unit


def test_a_size_that_is_no_unit_is_named() -> None:
    """A file that says so was not written by this version."""
    with pytest.raises(StateError, match="unit_mib is 512"):
        MemoryUnit.of_mib(512)
