"""A page of activity is believed as far as it can be true, and across versions of the library."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.isolation.conftest import MakeBox
from tests.sweeps import sweep
from tools.harness.isolation import activity
from tools.harness.isolation.box import Box
from tools.harness.isolation.shares import (
    BESIDE_POINTS,
    OF_SHARE,
    POINTS,
    is_kept,
    ready,
    shares,
    tenant,
)

# Seconds, and what a victim has of its share at least, beside pages that lie.
FORGED_SECONDS = 6
OF_A_VICTIM = 0.8


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


@sweep("percent", [30, 16, 10, 50, 90])
@sweep("way", ["holds", "wants"])
@sweep("forgers", [1, 15])
def test_pages_that_claim_the_card_again_and_again_starve_nobody(
    make_box: MakeBox, percent: int, way: str, forgers: int
) -> None:
    """Each new claim was believed for 100 ms, and who waited earned nothing: 16 % and more had 0.00."""
    box = tenant(make_box, "a", percent)
    others = [tenant(make_box, f"forger{i}", 1) for i in range(forgers)]
    pages = box.root.parent / "cards" / box.node.uuids[0]
    together = str(1 + forgers)
    program = ready(box, "sync@100000")
    program.tell(f"work sync 100000 {FORGED_SECONDS} {together}")
    with ThreadPoolExecutor(forgers) as pool:
        for other in others:
            page = str(pages / other.root.name)
            pool.submit(other.run, "forger", page, str(FORGED_SECONDS), way, together)
        result, pieces, took_ns = program.answer()
    had = 100 * pieces * 100_000 / took_ns

    assert result == 0
    assert OF_A_VICTIM * percent <= had <= percent + BESIDE_POINTS
