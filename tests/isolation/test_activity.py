"""A page of activity is believed as far as it can be true, and across versions of the library."""

import pytest
from tests.isolation import activity
from tests.isolation.box import Box
from tests.isolation.conftest import MakeBox
from tests.isolation.shares import OF_SHARE, POINTS, is_kept, shares, tenant


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


def test_a_neighbours_page_counts_as_no_more_than_four_processes(make_box: MakeBox) -> None:
    """What it claims is taken from what this slice pays: bounded, as it may claim anything."""
    box = tenant(make_box, "a", 10)
    put(box, "forger", activity.page(64, 1))
    had = shares((box, "sync"))

    assert had[0] <= 5 * 10 + POINTS


def test_a_page_that_always_asks_for_the_card_gets_a_twentieth_of_the_time(
    make_box: MakeBox,
) -> None:
    """For a moment others begin nothing where one asks for that; what they lack then they get after."""
    for percent, least in ((60, 60 - POINTS), (99, 94)):
        box = tenant(make_box, f"a{percent}", percent)
        put(box, "forger", activity.page(0, 1, activity.FOR_EVER))
        had = shares((box, "sync@1000000"))

        assert least <= had[0] <= percent + POINTS, percent


@pytest.mark.parametrize("version", [0, 1, 2])
def test_pages_of_other_versions_are_read(make_box: MakeBox, version: int) -> None:
    """A process that is always there, says a library older or newer: half of the time is its."""
    box = tenant(make_box, "a", 30)
    put(box, "old", activity.page(1, version))
    had = shares((box, "sync"))

    assert 2 * 30 * OF_SHARE <= had[0] <= 2 * 30 + POINTS


def test_a_page_can_be_read_by_a_library_that_knows_of_no_versions(make_box: MakeBox) -> None:
    """Magic and buckets stand where they stood; the version is in what was reserved."""
    box = tenant(make_box, "a", 30)
    had = shares((box, "sync"))
    magic, version, worked_ms = activity.read(box.root / "cards" / box.node.uuids[0] / "a")

    assert (magic, version) == (activity.MAGIC, 1)
    # The last round of the ring: 2 s.
    assert worked_ms == pytest.approx(20.6 * had[0], rel=0.1)
