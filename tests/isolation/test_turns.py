"""The processes of one slice have an even part of its share each, and its share together.

Measured in simulated time that moves in steps, as in test_compute.py.
"""

import asyncio
import os
import signal

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tests.sweeps import sweep
from tools.harness.isolation.box import MIB
from tools.harness.isolation.shares import (
    BESIDE_POINTS,
    COPY_NS,
    alone,
    ready,
    shares,
    tenant,
    work,
)
from tools.harness.waiting import until

# Of its even part of the share, what a process has at least.
OF_ITS_PART = 0.8
KINDS = {
    "short": "sync@100000",
    "queued": "stream@100000",
    "middle": "sync@1000000",
    "long": "sync@20000000",
    "streams": "streams@1000000",
    "graphs": "graph@1000000",
    "shortest": "sync@20000",
    "copies": f"copying_async@{COPY_NS}",
}


@sweep(
    "kinds",
    [
        "short long",
        "queued queued",
        "queued short",
        "short short",
        "long long",
        "queued long",
        "queued middle",
        "streams short",
        "streams streams",
        "shortest queued",
        "shortest long",
        "graphs short",
        "copies long",
        "copies queued",
        "queued queued queued",
        "short short long",
        "queued short long",
        "streams streams streams",
    ],
)
@sweep("percent", [50, 10, 30, 70])
def test_processes_of_a_slice_have_an_even_part_of_its_share(
    make_box: MakeBox, percent: int, kinds: str
) -> None:
    """Who launched first went first: beside kernels of 20 ms those of 100 us had 0.2 of 50 %, and those of 20 us made it 89."""
    box = tenant(make_box, "a", percent)
    had = shares(*((box, KINDS[kind]) for kind in kinds.split()))

    assert sum(had) == pytest.approx(percent, abs=BESIDE_POINTS), had
    assert min(had) >= OF_ITS_PART * percent / len(had), had


@sweep("kinds", ["short long", "queued queued", "queued short", "queued long", "long long"])
@sweep("other", ["long", "queued", "short"])
def test_so_they_have_beside_a_neighbour(make_box: MakeBox, kinds: str, other: str) -> None:
    """A slice's page is one, whichever of its processes has the card."""
    box, neighbour = tenant(make_box, "a", 30), tenant(make_box, "b", 60)
    *had, beside = shares(
        *((box, KINDS[kind]) for kind in kinds.split()), (neighbour, KINDS[other])
    )

    assert sum(had) == pytest.approx(30, abs=BESIDE_POINTS), had
    assert min(had) >= OF_ITS_PART * 15, had
    assert beside == pytest.approx(60, abs=BESIDE_POINTS)


@sweep("other", ["queued", "short"])
@sweep("percent", [30, 10])
def test_who_works_now_and_then_has_its_part(make_box: MakeBox, percent: int, other: str) -> None:
    """1 ms in each 5 had 4.6 of 15: before each turn the slice saved credit for 5 ms.

    And the card came late to events behind a change of process, so both had 37 % when they changed often.
    """
    box = tenant(make_box, "a", percent)
    had = shares((box, "paced@1000000"), (box, KINDS[other]), seconds=3)

    assert sum(had) == pytest.approx(percent, abs=BESIDE_POINTS), had
    assert had[0] >= OF_ITS_PART * percent / 2, had


def test_short_bursts_are_hardly_delayed_by_others_of_the_slice(make_box: MakeBox) -> None:
    """5 ms each 100 ms: the slice has nothing saved then, and the other has its lease."""
    box = tenant(make_box, "a", 30)
    free = shares((box, "at_times@1000000"), seconds=3)[0]
    had = shares((box, "at_times@1000000"), (box, KINDS["queued"]), seconds=3)

    assert sum(had) == pytest.approx(30, abs=BESIDE_POINTS), had
    assert had[0] >= OF_ITS_PART * free, had


@sweep("kinds", ["100 300", "50 300", "100 100"])
@sweep("percent", [50, 10, 90])
def test_so_they_have_of_kernels_far_longer_than_a_lease(
    make_box: MakeBox, percent: int, kinds: str
) -> None:
    """Who gave its lease up counted as let go, so what the other waited for was cut: 50 ms had 0.3 of its part beside 300."""
    box = tenant(make_box, "a", percent)
    had = shares(*((box, f"sync@{each}000000") for each in kinds.split()), seconds=60)

    assert sum(had) == pytest.approx(percent, abs=BESIDE_POINTS), had
    assert min(had) >= OF_ITS_PART * percent / 2, had


@sweep("kind", ["short", "long", "copies"])
def test_who_copied_alone_for_long_has_its_part_later(make_box: MakeBox, kind: str) -> None:
    """It copied nothing until the other had as much of the card."""
    box = tenant(make_box, "a", 50)
    other, copier = ready(box, KINDS[kind]), ready(box, KINDS["copies"])
    work((copier, KINDS["copies"]), seconds=1)
    work((other, KINDS[kind]), seconds=1)
    work((copier, KINDS["copies"]), seconds=20)
    had = work((copier, KINDS["copies"]), (other, KINDS[kind]))

    assert sum(had) == pytest.approx(50, abs=BESIDE_POINTS), had
    assert min(had) >= OF_ITS_PART * 25, had


def test_they_have_it_where_neighbours_have_no_files(make_box: MakeBox) -> None:
    """Without cards/ their page is in the region."""
    box = alone(make_box, 50)
    had = shares((box, KINDS["short"]), (box, KINDS["long"]))

    assert had == pytest.approx([25, 25], abs=BESIDE_POINTS)


def test_a_process_that_is_stopped_holds_no_other_up(make_box: MakeBox) -> None:
    """Its lease, its place and what it has out end with their time."""
    box = tenant(make_box, "a", 50)
    stopped = box.start()
    region = Region(box.root / "state" / "region")
    stopped.tell("work stream 100000 60")
    asyncio.run(until(region.charged_ns, 20))
    os.kill(stopped.process.pid, signal.SIGSTOP)
    program = ready(box, KINDS["middle"])
    program.tell("work sync 1000000 4 1")
    result, pieces, took_ns = program.answer()
    os.kill(stopped.process.pid, signal.SIGCONT)
    region.close()

    assert result == 0
    assert 100 * pieces * 1_000_000 / took_ns == pytest.approx(50, abs=BESIDE_POINTS)


def test_a_killed_process_holds_no_lease(make_box: MakeBox) -> None:
    """Copies of others waited for who had had less, and the dead have had nothing."""
    box = alone(make_box, 50)
    holder, other = ready(box, KINDS["short"]), ready(box, KINDS["short"])
    region = Region(box.root / "state" / "region")
    work((holder, KINDS["short"]), seconds=0.001)
    held = region.lease()
    holder.kill()
    other(f"alloc 1 {3000 * MIB}")  # looks for the dead before it refuses
    given_up = region.lease()
    region.close()

    assert held
    assert not given_up
