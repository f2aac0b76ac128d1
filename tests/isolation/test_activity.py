"""A page of activity is believed as far as it can be true, and across versions of the library."""

import pytest
from tests.isolation.conftest import MakeBox
from tools.harness.isolation import activity
from tools.harness.isolation.box import Box
from tools.harness.isolation.shares import OF_SHARE, POINTS, is_kept, shares, tenant


def put(box: Box, name: str, content: bytes) -> None:
    """Writes the page of a slice on card 0, as any program of that container can."""
    (box.root / "cards" / box.node.uuids[0] / name).write_bytes(content)


@pytest.mark.parametrize("kind", ["sync", "stream"])
def test_a_container_cannot_write_itself_a_larger_share(make_box: MakeBox, kind: str) -> None:
    """64 processes that are not there made 10 % into 99.995 %: one page against one slot now."""
    box = tenant(make_box, "a", 10)
    put(box, "a", activity.page(64, 1))
    had = shares((box, kind))

    assert is_kept(had[0], 10), had


@pytest.mark.parametrize("version", [0, 1, activity.VERSION])
def test_a_page_without_leases_counts_as_one_that_takes_its_turns(
    make_box: MakeBox, version: int
) -> None:
    """Of a library before leases, or of a slice without a cap: half of the time is its."""
    box = tenant(make_box, "a", 30)
    put(box, "other", activity.page(1, version))
    had = shares((box, "sync"))

    assert 2 * 30 * OF_SHARE <= had[0] <= 2 * 30 + POINTS


def test_however_many_processes_it_claims(make_box: MakeBox) -> None:
    """What it claims is taken from what this slice pays: bounded, as it may claim anything."""
    box = tenant(make_box, "a", 10)
    put(box, "forger", activity.page(64, 1))
    had = shares((box, "sync"))

    assert had[0] <= 2 * 10 + POINTS


@pytest.mark.parametrize("kind", ["sync@1000000", "stream"])
@pytest.mark.parametrize("word", ["want_until_ns", "hold_until_ns", "out_until_ns"])
def test_a_page_that_always_claims_the_card_costs_its_neighbours_a_tenth_of_a_second(
    make_box: MakeBox, word: str, kind: str
) -> None:
    """Who lacks 100 ms of its share asks nobody."""
    box = tenant(make_box, "a", 60)
    claim = {word: activity.FOR_EVER} | ({"out_until_ns": 1} if word == "want_until_ns" else {})
    put(box, "forger", activity.claim(**claim))
    had = shares((box, kind))

    assert 60 - POINTS <= had[0] <= 60 + POINTS


def test_a_page_says_what_earlier_libraries_look_for(make_box: MakeBox) -> None:
    """Magic and version stand where they stood."""
    box = tenant(make_box, "a", 30)
    shares((box, "sync"), seconds=1)

    path = box.root / "cards" / box.node.uuids[0] / "a"
    assert activity.read(path) == (activity.MAGIC, activity.VERSION, 1)
