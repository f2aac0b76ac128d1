"""Copies between host and card count: a slice's card time is that of its kernels and copies, as a union.

A loop of copies of 32,000,000 bytes gets the slice's share of what it gets
without a cap. Copies start on credit, since their engines work beside another's kernels; only the first of a kind
needs a lease.
Measured in simulated time that moves in steps, as in test_compute.py.
"""

import pytest
from tests.isolation.conftest import MakeBox
from tests.sweeps import sweep
from tools.harness.isolation.shares import (
    BESIDE_POINTS,
    COPY_NS,
    alone,
    ready,
    shares,
    tenant,
    work,
)

COPY_POINTS = 3.0
COPIES = ["copying", "copying_async", "copying_box", "copying_unified"]


def copying(kind: str = "copying") -> str:
    """That kind of work, with the length of a copy."""
    return f"{kind}@{COPY_NS}"


@sweep("kind", COPIES)
@sweep("percent", [30, 10, 50, 90])
def test_a_loop_of_copies_gets_its_share(make_box: MakeBox, percent: int, kind: str) -> None:
    """To and from the card, pageable and pinned, waited for and in a row: 10, 30 and 100 % had the same (R-117)."""
    free = shares((alone(make_box, None, "free"), copying(kind)), seconds=2)[0]
    had = shares((alone(make_box, percent, "capped"), copying(kind)))[0]

    assert 100 * had / free == pytest.approx(percent, abs=COPY_POINTS)


@sweep(
    "kind",
    [
        "copying_taught",
        "copying_batch",
        "copying_boxes",
        "copying_attributes",
        "copying_behind",
        "copying_on_card",
    ],
)
def test_so_does_one_of_copies_in_batches_and_with_attributes(make_box: MakeBox, kind: str) -> None:
    """They had all of the bus, and a library that began to use them undid the cap.

    A batch teaches no price: one of 32 MB with two bytes for the card made each copy of that size as
    cheap. And copies on the card hide none behind them: where they are many, all count.
    """
    free = shares((alone(make_box, None, "free"), copying(kind)), seconds=2)[0]
    had = shares((alone(make_box, 30, "capped"), copying(kind)), seconds=4)[0]

    assert 100 * had / free == pytest.approx(30, abs=COPY_POINTS)


@sweep("percent", [30, 50])
def test_batches_have_their_share_beside_a_neighbours_kernels(
    make_box: MakeBox, percent: int
) -> None:
    """They take leases as kernels do, since nobody knows before what one takes."""
    had = shares(
        (tenant(make_box, "a", percent), copying("copying_batch")),
        (tenant(make_box, "b", 40), "sync"),
    )

    assert had == pytest.approx([percent, 40], abs=COPY_POINTS)


def test_a_batch_claims_the_card_no_longer_than_it_takes(make_box: MakeBox) -> None:
    """Each claimed it by the guess for its bytes: 1 ms each 5 had 80 % of what it has alone, beside a bus that was free."""
    paced, copier = tenant(make_box, "a", 60), tenant(make_box, "b", 30)
    free = shares((paced, "paced@1000000"), seconds=2)[0]
    had = shares((paced, "paced@1000000"), (copier, copying("copying_at_times")), seconds=3)[0]

    assert had > 0.95 * free


@sweep("kind", ["filling", "filling_box"])
@sweep("percent", [30, 70])
def test_a_loop_of_fills_gets_its_share(make_box: MakeBox, percent: int, kind: str) -> None:
    """They are kernels of the driver's own; at 10 % they had all of the card."""
    free = shares((alone(make_box, None, "free"), copying(kind)), seconds=2)[0]
    had = shares((alone(make_box, percent, "capped"), copying(kind)), seconds=4)[0]

    assert 100 * had / free == pytest.approx(percent, abs=COPY_POINTS)


@sweep("kind", COPIES)
@sweep("other", ["sync", "stream"])
def test_kernels_of_another_do_not_delay_them(make_box: MakeBox, kind: str, other: str) -> None:
    """Nor the other way round: copies wait for no lease, and hold none."""
    had = shares((tenant(make_box, "a", 30), copying(kind)), (tenant(make_box, "b", 60), other))

    assert had == pytest.approx([30, 60], abs=COPY_POINTS)


@sweep("other", ["copying", "copying_async", "copying_box"])
def test_what_the_bus_is_shared_for_is_not_charged(make_box: MakeBox, other: str) -> None:
    """Where a slice knows from before what a copy takes by itself."""
    box, neighbour = tenant(make_box, "a", 30), tenant(make_box, "b", 60)
    first, second = ready(box, "copying"), ready(neighbour, other)
    for each in (first, second):
        work((each, copying(other)), seconds=0.1)
        work((each, copying()), seconds=0.1)
    had = work((first, copying()), (second, copying(other)))

    assert had == pytest.approx([30, 60], abs=COPY_POINTS)


@sweep("percents", [(30, 60), (50, 50)])
def test_nobody_copies_more_than_its_share_where_all_copy(
    make_box: MakeBox, percents: tuple[int, int]
) -> None:
    """Who does not learn what a copy takes by itself pays for what the bus is shared for: docs/isolation.md."""
    boxes = [tenant(make_box, f"t{number}", each) for number, each in enumerate(percents)]
    had = shares(*((box, copying()) for box in boxes))

    for each, percent in zip(had, percents, strict=True):
        assert percent / 2 <= each <= percent + COPY_POINTS, had


@sweep("percent", [30, 50, 90])
@sweep("unit_us", [5000, 3000, 10_000])
def test_a_copy_beside_a_kernel_of_its_own_costs_nothing_more(
    make_box: MakeBox, percent: int, unit_us: int
) -> None:
    """A training loop that copies the data of its next step keeps its share of kernels."""
    had = shares((tenant(make_box, "a", percent), f"prefetch@{unit_us * 1000}"))

    assert had == pytest.approx([percent], abs=COPY_POINTS)


@sweep("percent, other", [(30, "sync"), (30, "stream"), (50, "prefetch@5000000")])
def test_nor_does_it_beside_a_neighbour(make_box: MakeBox, percent: int, other: str) -> None:
    """Its kernels wait for the lease, and its copies leave them the credit for it."""
    had = shares(
        (tenant(make_box, "a", percent), "prefetch@5000000"), (tenant(make_box, "b", 40), other)
    )

    assert had == pytest.approx([percent, 40], abs=COPY_POINTS + 1)


def test_the_simulated_bus_is_shared_by_direction(make_box: MakeBox) -> None:
    """Else two loops of copies would show nothing of what a real bus does."""
    free = [alone(make_box, None, name) for name in ("a", "b")]
    one_way = shares(*((box, copying()) for box in free), seconds=1)
    both_ways = shares(*zip(free, map(copying, ("copying", "copying_box")), strict=True), seconds=1)

    assert one_way == pytest.approx([50, 50], abs=2)
    assert both_ways == pytest.approx([100, 100], abs=2)


def test_policy_native_leaves_copies_alone(make_box: MakeBox) -> None:
    """As it does kernels."""
    had = shares((tenant(make_box, "a", 30, "native"), copying()), seconds=2)

    assert had[0] > 99


# What a kernel and its two copies of 1 MiB take of the card one after the other, by microseconds.
STEP_US = {each: each + 2 * (2 + (1 << 20) / 12_000) for each in (20, 100, 1000)}


@sweep("unit_us", STEP_US)
@sweep("percent", [30, 50])
def test_copies_between_the_kernels_of_a_stream_count(
    make_box: MakeBox, percent: int, unit_us: int
) -> None:
    """To the card, a kernel, and back, nothing at once: all of it is card time."""
    had = shares((alone(make_box, percent, "b"), "copies"), unit_ns=unit_us * 1000, seconds=3)

    assert had[0] * STEP_US[unit_us] / unit_us == pytest.approx(percent, abs=COPY_POINTS)


def test_copies_between_kernels_count_beside_a_neighbour(make_box: MakeBox) -> None:
    """300 us of kernel in each 478 of card time."""
    box, other = tenant(make_box, "a", 30), tenant(make_box, "b", 60)
    had = shares((box, "copies@300000"), (other, "sync"))

    assert [had[0] * 478 / 300, had[1]] == pytest.approx([30, 60], abs=2 * BESIDE_POINTS)
