"""The promise: a grant survives being written down, and nothing foreign becomes a grant."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import INIT, grant

from gpu_device_plugin.domain.grants import Grant, grant_from_plain, grant_to_plain
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.units import Resource, unit_ids
from gpu_device_plugin.errors import StateError

GRANTS = st.builds(
    Grant,
    slice_id=st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True),
    pod=st.builds(PodRef, st.text(), st.text(), st.text()),
    container=st.text(),
    kind=st.sampled_from(ContainerKind),
    index=st.integers(0, 9),
    mem_ids=st.integers(0, 40).map(lambda n: unit_ids(Resource.MEM, 3, n)),
    core_ids=st.integers(0, 40).map(lambda n: unit_ids(Resource.CORE, 3, n)),
    cards=st.lists(st.text()).map(tuple),
    mem_units=st.integers(0),
    core_percent=st.integers(0, 100),
    pod_units=st.integers(0),
    unit_mib=st.sampled_from([128, 1024]),
    mode=st.sampled_from(NodeMode).map(str),
    is_isolated=st.booleans(),
    is_checked=st.booleans(),
    library_version=st.text(),
    created_seconds=st.floats(0, 1e12),
)


@given(GRANTS)
def test_a_grant_survives_the_disk(original: Grant) -> None:
    """Plain, to JSON and back is the same grant."""
    assert grant_from_plain(json.loads(json.dumps(grant_to_plain(original)))) == original


PLAIN = grant_to_plain(grant("a", "m00 m01", "c00"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slice_id", ""),
        ("slice_id", "../grants"),
        ("slice_id", ".."),
        ("slice_id", 7),
        ("pod", ["default", "a"]),
        ("pod", "default/a"),
        ("pod", ["default", "a", None]),
        ("container", None),
        ("kind", "ephemeral"),
        ("kind", ["app"]),
        ("index", "0"),
        ("index", True),
        ("mem_ids", "m00"),
        ("mem_ids", [0]),
        ("mem_ids", ["c00"]),
        ("mem_ids", ["GPU-0"]),
        ("core_ids", ["m00"]),
        ("cards", [None]),
        ("mem_units", 2.0),
        ("unit_mib", 512),
        ("mode", "exclusive"),
        ("is_isolated", 1),
        ("created_seconds", "now"),
        ("created_seconds", False),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object) -> None:
    """Whoever looks at the file set aside learns which key is at fault."""
    with pytest.raises(StateError, match=key):
        grant_from_plain(PLAIN | {key: value})


@pytest.mark.parametrize("key", sorted(PLAIN))
def test_a_missing_key_is_named(key: str) -> None:
    """A grant of another version of the format is not guessed at."""
    with pytest.raises(StateError, match=key):
        grant_from_plain({name: value for name, value in PLAIN.items() if name != key})


@pytest.mark.parametrize("plain", [None, [], "grant", PLAIN | {"colour": "red"}])
def test_what_is_no_grant_is_refused(plain: object) -> None:
    """Other shapes and further keys."""
    with pytest.raises(StateError, match=r"mapping|colour"):
        grant_from_plain(plain)


def test_ids_are_kept_in_order() -> None:
    """So that two grants of the same units are equal."""
    held = grant("a").with_ids(Resource.MEM, {"m02", "m00"}).with_ids(Resource.CORE, ["c01", "c00"])

    assert (held.ids(Resource.MEM), held.ids(Resource.CORE)) == (("m00", "m02"), ("c00", "c01"))
    assert held.ids(Resource.COUNT) == ()
    assert held.card_numbers == {0}


@pytest.mark.parametrize(
    ("mode", "isolated", "capped", "bare"),
    [
        ("core_mem", True, True, False),
        ("cgpu", False, False, True),
        ("share", True, False, False),
        ("share", False, False, False),
    ],
)
def test_who_is_capped(mode: str, *, isolated: bool, capped: bool, bare: bool) -> None:
    """R-505: `share` has no cap that one could go without."""
    held = replace(grant("a"), mode=mode, is_isolated=isolated)

    assert (held.is_capped, held.is_bare) == (capped, bare)


def test_only_ordinary_init_containers_hand_on() -> None:
    """A native sidecar keeps its units as long as the pod lives."""
    kinds = {kind: replace(grant("a"), kind=kind).is_handed_on for kind in ContainerKind}

    assert [kind for kind, handed in kinds.items() if handed] == [INIT]


def test_a_grant_of_several_cards_tells_units_a_card() -> None:
    """R-550: 8 units on 4 cards are 2 each; a grant without cards does not divide by 0."""
    assert replace(grant("a"), mem_units=8, cards=("a", "b", "c", "d")).units_per_card == 2
    assert replace(grant("a"), mem_units=8).units_per_card == 8
