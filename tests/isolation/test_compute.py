"""A share of a card's time is what a container gets of it: alone, beside others, by every launch.

Shares are measured in simulated time that moves in steps (src/simulator/cuda/steps.h): it stands
still while a program or the library computes. So the promise is tested as it is made, 2 points
over 10 seconds, and a slow or loaded machine changes nothing. All kernels here are one block: who
charged blocks instead of time would let 20 ms kernels run two hundred times as long.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tests.sweeps import sweep
from tools.harness.isolation.box import MIB, Box
from tools.harness.isolation.shares import (
    BESIDE_POINTS,
    BURST_NS,
    CARD_TURN_US,
    FULL_POINTS,
    OF_SHARE,
    POINTS,
    SECONDS,
    SHORT_TURN_US,
    STEPPING,
    WORK,
    alone,
    in_turns,
    is_kept,
    mix,
    ready,
    shares,
    tenant,
    work,
)
from tools.harness.waiting import until

Free = Callable[[str, float], float]


@pytest.fixture
def free(make_box: MakeBox) -> Free:
    """Percent that kernels of a kind and length (us) have without a cap; each is measured once."""

    def percent(kind: str, unit_us: float) -> float:
        if (kind, unit_us) not in _FREE:
            box = alone(make_box, None)
            _FREE[kind, unit_us] = shares((box, kind), unit_ns=int(unit_us * 1000), seconds=1)[0]
        return _FREE[kind, unit_us]

    return percent


_FREE: dict[tuple[str, float], float] = {}

# Percent of a card's time that changes of process take where none is alone: 152 us for each turn.
CHANGES = 6.8


@sweep("kind", WORK)
@sweep("percent", [30, 10, 50, 90])
@sweep("tenants", [2, 1, 3])
def test_a_share_is_kept(make_box: MakeBox, tenants: int, percent: int, kind: str) -> None:
    """Seen elsewhere: 30 % showed 90 %, flapped, or was 60 % at 20 %; graphs were not limited (R-117, R-560)."""
    tasks = mix(tenants, percent, kind)
    boxes = [tenant(make_box, f"tenant{i}", part) for i, (part, _) in enumerate(tasks)]
    had = shares(*((box, work) for box, (_, work) in zip(boxes, tasks, strict=True)))

    assert all(
        is_kept(each, part, tenants - 1) for each, (part, _) in zip(had, tasks, strict=True)
    ), had


@sweep("turn_us", [CARD_TURN_US, SHORT_TURN_US])
@sweep(
    "tasks",
    [
        ((30, "sync@100000"), (60, "sync")),
        ((30, "stream"), (60, "sync")),
        ((30, "sync@1000000"), (60, "sync")),
        ((30, "sync"), (60, "sync")),
        ((60, "sync@100000"), (30, "sync")),
        ((60, "sync@1000000"), (30, "sync")),
        ((30, "sync@100000"), (60, "sync@100000")),
        ((30, "stream"), (30, "sync"), (30, "sync@1000000")),
        ((25, "sync@2388000/36254000"), (35, "stream@1000000")),
    ],
)
def test_short_and_long_kernels_keep_their_shares_in_turns(
    make_box: MakeBox, tasks: tuple[tuple[int, str], ...], turn_us: int
) -> None:
    """100 us, each waited for, had 12 % beside 20 ms: the wait for a turn was charged as work.

    Pages told the end of work by its mean, and a kernel that went on was beside others: 25 and 35 % had 20 and 30.
    """
    boxes = [
        tenant(make_box, f"tenant{i}", part, turn_us=turn_us) for i, (part, _) in enumerate(tasks)
    ]
    had = shares(*((box, work) for box, (_, work) in zip(boxes, tasks, strict=True)))

    assert had == pytest.approx([part for part, _ in tasks], abs=BESIDE_POINTS)


@sweep("turn_us", [CARD_TURN_US, SHORT_TURN_US])
@sweep("unit_us", [1500, 3000, 5000, 8000])
@sweep("percent", [10, 20, 30])
def test_kernels_of_a_few_turns_keep_a_small_share_beside_all_the_rest(
    make_box: MakeBox, percent: int, unit_us: int, turn_us: int
) -> None:
    """They never ran alone: 20 % with 1.5 ms had 14.7, 30 % with 3 ms 33.3 and left 65.9 of 70."""
    percents = (percent, 100 - percent)
    boxes = [tenant(make_box, f"t{each}", each, turn_us=turn_us) for each in percents]
    had = shares(*((box, f"sync@{unit_us * 1000}") for box in boxes))

    assert had == pytest.approx(percents, abs=FULL_POINTS)


@sweep(
    "before, after, other",
    [
        ("sync@5000000", "sync", "sync"),
        ("sync@5000000", "sync", "stream"),
        ("sync@100000", "sync@1000000", "sync"),
        ("stream@100000", "stream@400000", "sync"),
    ],
)
def test_kernels_that_became_longer_cost_no_neighbour_its_share(
    make_box: MakeBox, before: str, after: str, other: str
) -> None:
    """5 ms and then always 20 were believed to be 5 ms: what was more was charged to the neighbour."""
    grown = ready(tenant(make_box, "grown", 50), before)
    beside = ready(tenant(make_box, "beside", 50), other)
    work((grown, before), seconds=1)
    work((grown, after), (beside, other), seconds=4)
    had = work((grown, after), (beside, other))

    assert had == pytest.approx([50, 50], abs=BESIDE_POINTS)


@sweep(
    "percents, kinds",
    [
        ((70, 15, 15), ("stream", "stream", "stream")),
        ((60, 20, 20), ("graph", "stream", "stream")),
        ((40, 15, 15), ("stream", "stream", "stream")),
        ((50, 10, 10), ("stream", "sync", "graph")),
        ((20, 20, 20, 20, 20), ("sync", "stream", "graph", "stream", "sync")),
    ],
)
def test_shares_are_kept_in_any_mix(
    make_box: MakeBox, percents: tuple[int, ...], kinds: tuple[str, ...]
) -> None:
    """Neighbours that are there now and then, and that notice late that their work has ended."""
    boxes = [tenant(make_box, f"tenant{i}", percent) for i, percent in enumerate(percents)]
    had = shares(*zip(boxes, kinds, strict=True))

    beside = len(percents) - 1
    for each, part in zip(had, percents, strict=True):
        assert is_kept(each, part, beside) or 0.9 * part <= each <= part, had


# By microseconds of a kernel: what is left of the share.
OF_A_SHORT_STREAM = {0.5: 0.7, 1: 0.7, 2: 0.85, 5: 0.95}


@pytest.mark.long
@sweep("kind", ["sync", "stream"])
@sweep("unit_us", [5, 0.5, 1, 2, 20, 50, 100])
@sweep("percent", [30, 50, 90])
def test_small_kernels_get_their_share(
    make_box: MakeBox, free: Free, percent: int, unit_us: float, kind: str
) -> None:
    """Kernels of 5 us, each waited for, had 21 % at 30: naps and gaps were charged.

    Those of 1 us end before the next is launched, and had 27 % at 50: the idle card was charged.
    """
    # In a second as many of the smallest are launched as of the others in three.
    seconds = 1 if unit_us < 5 else 3
    [had] = shares(
        (alone(make_box, percent, "b"), kind), unit_ns=int(unit_us * 1000), seconds=seconds
    )

    wanted = min(percent, free(kind, unit_us))
    # A queue of the shortest pays for the events between them: docs/isolation.md.
    least = OF_A_SHORT_STREAM.get(unit_us, 1.0) if kind == "stream" else 1.0
    assert least * wanted - POINTS <= had <= wanted + POINTS


@sweep(
    "percent, kind",
    [
        *((30, f"sync@{lengths}") for lengths in ("5000/50000", "20000/200000", "100000/1000000")),
        *((10, f"sync@{lengths}") for lengths in ("500000/10000/50", "2000000/40000/50")),
        *((30, f"sync@{lengths}") for lengths in ("20000-60000", "50000-150000")),
        *((30, f"stream@{lengths}") for lengths in ("20000/200000", "20000-60000")),
        (10, "stream@500000/10000/50"),
        (65, "stream@129000/700000/50"),
        (70, "sync@20000/200000"),
        *((55, f"streams@{lengths}") for lengths in ("1000000/14600000", "14600000/1000000")),
        *((percent, "streams@200000/3000000") for percent in (30, 70)),
        *((30, f"{kind}@11000/168000/50") for kind in ("sync", "streams")),
        *((30, "sync@20000/2000000/50"), (10, "sync@10000/1000000/50")),
        (90, "stream@68000-458000"),
    ],
)
def test_kernels_whose_time_varies_get_their_share(
    make_box: MakeBox, percent: int, kind: str
) -> None:
    """One function and grid: each was charged the least that one took, and 30 % had 97.

    On three streams the time up to the event in front of a sample was nobody's, and 55 % had 86. Rare long
    ones were charged as the short ones, where each is waited for: 30 % had 79.
    """
    had = shares((tenant(make_box, "a", percent), kind), seconds=3)

    assert had == pytest.approx([percent], abs=POINTS)


@sweep(
    "kind",
    [
        "sync@5000~1000000~10000",  # 10,000 take 0.2 s, and the others the rest of the time
        "sync@40000~400000~3000",
        "sync@20000~200000~2000",
        "stream@20000~300000~5000",
    ],
)
def test_kernels_that_were_short_and_become_long_are_charged_as_such(
    make_box: MakeBox, kind: str
) -> None:
    """What was measured of the short ones stood for ever: 30 % had 95 to 99."""
    had = shares((tenant(make_box, "a", 30), kind), seconds=5)

    assert had == pytest.approx([30], abs=BESIDE_POINTS)


def test_so_are_they_on_several_streams_a_little_later(make_box: MakeBox) -> None:
    """No sample can be had there, so what was sampled before stood for ever."""
    had = shares((tenant(make_box, "a", 30), "streams@20000~1000000~20000"))

    assert OF_SHARE * 30 <= had[0] <= 30 + RUN_AHEAD


@sweep(
    "tasks",
    [
        ((40, "sync@100000/1000000"), (50, "stream@100000")),
        ((30, "sync@100000/1000000"), (60, "sync@20000000")),
        ((10, "sync@2000000/40000/50"), (50, "sync@2000000")),
        ((30, "sync@1000000/20000/50"), (60, "stream@100000")),
        ((30, "sync@100000-300000"), (60, "stream@100000")),
        ((20, "sync@100000/1000000"), (20, "sync@100000/1000000"), (50, "sync@2000000")),
    ],
)
def test_kernels_whose_time_varies_leave_their_neighbours_theirs(
    make_box: MakeBox, tasks: tuple[tuple[int, str], ...]
) -> None:
    """30 % had 67 and its neighbour 33 of 60: the least is no mean."""
    boxes = [tenant(make_box, f"tenant{i}", part) for i, (part, _) in enumerate(tasks)]
    free = [tenant(make_box, f"free{i}", 100) for i in range(len(tasks))]
    kinds = [kind for _, kind in tasks]
    could = shares(*zip(free, kinds, strict=True), seconds=2)
    had = shares(*zip(boxes, kinds, strict=True))

    for (part, kind), least, each in zip(tasks, could, had, strict=True):
        # Changes of process take their part, and a holder's rests are not filled: docs/isolation.md.
        assert min(part, least) - VARYING_SHORT <= each <= part + BESIDE_POINTS, (kind, had)


# Kernels of several streams end together, and what was there for whom is a guess. Beside another tenant
# with several streams 60 % had 64 or 60, and in one of a hundred runs of ten seconds 54.
STREAMS_POINTS = 5.0
# On a card that the caps fill, streams of 20 us had 35 of 50: docs/isolation.md.
STREAMS_SHORT = 16.0


@pytest.mark.long
@sweep(
    "tasks, turn_us",
    [
        (((30, "streams@20000"),), CARD_TURN_US),
        (((30, "streams@100000"), (60, "sync@5000000")), CARD_TURN_US),
        (((30, "streams@100000"), (60, "sync@5000000")), SHORT_TURN_US),
        (((50, "streams@20000"), (50, "sync")), CARD_TURN_US),
        (((30, "streams@100000"), (60, "stream")), CARD_TURN_US),
        (((30, "streams@100000"), (60, "streams@100000")), CARD_TURN_US),
        (((30, "streams@1000000"), (60, "sync@5000000")), CARD_TURN_US),
        (((30, "streams@11000/168000/50"), (60, "stream@3000000")), CARD_TURN_US),
    ],
)
def test_several_streams_get_their_share_beside_neighbours(
    make_box: MakeBox, tasks: tuple[tuple[int, str], ...], turn_us: int
) -> None:
    """Frameworks compute on one and communicate on others: 30 % had 9, and its neighbour 80 of 60.

    Where a rare kernel is longer, its end was taken for a rest: 30 % had 38, and its neighbour 47 of 60.
    """
    boxes = [
        tenant(make_box, f"tenant{i}", part, turn_us=turn_us) for i, (part, _) in enumerate(tasks)
    ]
    programs = ((box, work) for box, (_, work) in zip(boxes, tasks, strict=True))
    had = shares(*programs, seconds=3 * SECONDS)

    for (part, _), each in zip(tasks, had, strict=True):
        assert part - STREAMS_SHORT <= each <= part + STREAMS_POINTS, had


@sweep("percent", [50, 70, 90, 95])
def test_bursts_get_their_share_from_the_first_second(make_box: MakeBox, percent: int) -> None:
    """50 kernels of 100 us, then 4 ms on the host: the guard let five go, and had 59 % at 90."""
    had = shares((alone(make_box, percent), "burst"), unit_ns=BURST_NS, seconds=1)

    assert OF_SHARE * percent <= had[0] <= percent + POINTS, had


@sweep("lengths", ["57000-143000", "100000", "20000/100000", "10000"])
def test_rests_between_kernels_of_several_streams_are_not_charged(
    make_box: MakeBox, lengths: str
) -> None:
    """20 kernels, then 200 ms of nothing, over and over: half of the rests were charged, and 5 % had 0.0 beside others.

    Three faults: a rest was noted with one stream's event when another's was reached first; what ended in
    a rest seemed to end when it was seen; and so did what had no event, when it was waited for.
    """
    box = alone(make_box, 50)
    [had] = shares((box, f"rests@{lengths}"))
    region = Region(box.root / "state" / "region")
    charged = region.charged_ns() / (SECONDS * 1e9) * 100
    region.close()

    assert 0.7 * had <= charged <= 1.3 * had, had


@sweep(
    "kind",
    [
        *("streams", "ptsz", "ex", "ex_ptsz", "cooperative", "cooperative_ptsz", "graph_ptsz"),
        "retained",
    ],
)
def test_every_way_to_launch_is_charged(make_box: MakeBox, kind: str) -> None:
    """Seen elsewhere: cooperative launches and every _ptsz variant were free."""
    had = shares((tenant(make_box, "a", 30), kind), unit_ns=1_000_000)

    assert is_kept(had[0], 30), had


@sweep("kind", ["sync@1000000", "stream@100000", "streams@1000000"])
def test_launches_that_wait_for_their_end_are_charged(make_box: MakeBox, kind: str) -> None:
    """With CUDA_LAUNCH_BLOCKING a launch returns when its kernel has ended: what came before was free."""
    box = tenant(make_box, "a", 30)
    box.variables["CUDA_LAUNCH_BLOCKING"] = "1"

    # Nobody can tell the call's own 7 us from the kernel.
    assert shares((box, kind)) == pytest.approx([30], abs=BESIDE_POINTS)


@sweep("unit_ns", [5000, 2000])
def test_short_launches_that_wait_for_their_end_get_no_more_than_their_share(
    make_box: MakeBox, unit_ns: int
) -> None:
    """A launch of less than 10 us was taken for one that does not wait: 10 % had 61 and 39, all there is."""
    box = tenant(make_box, "a", 10)
    box.variables["CUDA_LAUNCH_BLOCKING"] = "1"

    assert 2 < shares((box, f"stream@{unit_ns}"), seconds=3)[0] <= 10 + POINTS


@sweep("kind", ["moving@100000", "feeding@100000"])
def test_copies_that_return_before_the_kernel_in_front_has_ended_are_no_wait_for_it(
    make_box: MakeBox, kind: str
) -> None:
    """On the card, and up to 64 KiB to it: kernels of 20 us before copies on the card had 78 at 30 %."""
    had = shares((tenant(make_box, "a", 30), kind), seconds=3)

    assert had == pytest.approx([30], abs=POINTS)


@sweep("kind", ["contexts@5000000", "contexts@100000"])
def test_work_that_is_out_when_its_context_ends_is_charged(make_box: MakeBox, kind: str) -> None:
    """A context, a launch, its end, over and over: what no event had told of was free, and 30 % had all."""
    had = shares((tenant(make_box, "a", 30), kind))

    assert had == pytest.approx([30], abs=POINTS)


def test_a_context_that_does_not_end_when_asked_to_stays_capped(make_box: MakeBox) -> None:
    """The driver refuses to destroy a primary context; launches that waited for credit went at once."""
    had = shares((alone(make_box, 20), "refusals@20000000"), in_steps=False, seconds=3)

    assert 0 < had[0] <= 40


@sweep("percents", [(10, 100), (10, 60), (60, 10)])
@sweep("way", ["second", "kernel", "graph", "sibling", "green", "greens", "together"])
def test_work_is_charged_to_the_card_it_runs_on(
    make_box: MakeBox, way: str, percents: tuple[int, int]
) -> None:
    """Seen in HAMi-core 104: a second card had no cap, or that of the current one."""
    box = in_turns(make_box(library=STEPPING))
    lines = (f"device={box.node.uuids[i]} core_percent={each}\n" for i, each in enumerate(percents))
    box.write(f"version=1\nslice=a\n{''.join(lines)}")
    ran = box.run("cards", way, str(WORK["sync"]), str(SECONDS))
    result, pieces, took_ns = map(int, ran.stdout.split())
    wanted = percents[1 if way == "second" else 0]

    assert result == 0
    assert is_kept(100 * pieces * WORK["sync"] / took_ns, wanted), ran.stdout


def test_a_wait_for_one_green_context_is_none_for_the_work_of_another(make_box: MakeBox) -> None:
    """It counted as one for all of the primary context's: work out was free, and 30 % had 97."""
    box = in_turns(make_box(library=STEPPING))
    lines = (
        f"device={box.node.uuids[i]} core_percent={each}\n" for i, each in enumerate((30, 100))
    )
    box.write(f"version=1\nslice=a\n{''.join(lines)}")
    unit_ns = 100_000
    ran = box.run("cards", "green_apart", str(unit_ns), "3")
    result, pieces, took_ns = map(int, ran.stdout.split())

    assert result == 0
    assert is_kept(100 * pieces * unit_ns / took_ns, 30), ran.stdout


def test_two_threads_on_one_stream_are_charged_in_its_order(
    make_box: MakeBox, tmp_path: Path
) -> None:
    """An event behind a wait for the program came first in the list: what ended before it was not charged."""
    box = alone(make_box, 50)
    ran = box.run(
        "ordered",
        str(200_000_000),
        str(tmp_path / "pause"),
        GPUSLICE_PAUSEFILE=str(tmp_path / "pause"),
    )
    region = Region(box.root / "state" / "region")

    assert ran.stdout == "0\n"
    assert region.charged_ns() > 100_000_000
    region.close()


def test_a_context_that_is_to_end_waits_for_its_launches_without_spinning(
    make_box: MakeBox,
) -> None:
    """Launches that wait for credit may take seconds: the thread gave its processor up 2.6 million times."""
    box = make_box()
    box.allow(2000 * MIB, 10)

    assert box.run("ending").stdout == "0 0\n"


def test_graphs_of_one_card_do_not_wait_for_anothers_time(make_box: MakeBox) -> None:
    """One that waited for ten seconds of credit kept the lock of all graphs with memory."""
    box = make_box()
    lines = (
        f"device={uuid} memory_bytes={2000 * MIB} core_percent={percent}\n"
        for uuid, percent in zip(box.node.uuids, (1, 100), strict=False)
    )
    box.write(f"version=1\nslice=a\n{''.join(lines)}")

    assert box.run("debt").stdout == "0 50\n"


# Points that one may be short beside kernels of varying length, which rest now and then.
VARYING_SHORT = 7.0

# Percentage points of ten seconds: what may be queued unmeasured, a second, and one kernel more.
RUN_AHEAD = 10


# At 70 % paced ones are charged too little, and several streams too much, at 10 % too: docs/isolation-details.md.
WAYS = [
    *itertools.product((10, 30), ("plain", "paced", "two", "graph")),
    (30, "streams"),
    *itertools.product((70,), ("plain", "two", "graph")),
]


@sweep("percent, way", WAYS)
@sweep(
    "turns",
    [
        "200000000 1 1",
        "200000000 1 64",
        "50000000 1 1",
        "100000 1 1 200000000 1 1",
        "100000 500 1 200000000 3 1",
        "100000 500 1 200000000 3 64",
    ],
)
def test_work_that_suddenly_takes_longer_stays_within_a_second_of_the_share(
    make_box: MakeBox, turns: str, way: str, percent: int
) -> None:
    """A kernel known to take 100 us that took 200 ms ran 64 times ahead: 12.8 s, then 113 s of nothing."""
    ran = alone(make_box, percent).run("changing", way, "100000", "30", *turns.split())
    result, permille, busiest_ms, still_ms, _ = map(int, ran.stdout.split())
    longest_ms = max(map(int, turns.split()[::3])) // 1_000_000

    assert result == 0
    assert busiest_ms <= 100 * (percent + RUN_AHEAD) + 2 * longest_ms, ran.stdout
    assert still_ms <= (1000 + 2 * longest_ms) * 100 / percent, ran.stdout
    # Streams run beside each other: what is behind the last mark may be charged twice. Paced ones
    # wait for a thread that wakes late.
    least = 0.75 if way in ("streams", "paced") else OF_SHARE
    assert least * percent <= permille / 10 <= percent + POINTS, ran.stdout


@sweep("percent, behind, streams", [(30, 1, 1), (70, 1, 1), (50, 20, 1), (50, 1, 6)])
def test_a_stream_that_waits_for_the_program_holds_no_other_back(
    make_box: MakeBox, percent: int, behind: int, streams: int
) -> None:
    """Launches behind it went out one a second, because what is queued first was late.

    With four that wait nobody looked at the one that works: 26 kernels in 20 seconds.
    """
    words = ["100000", "10", str(behind), "1", str(streams)]
    ran = alone(make_box, percent).run("waiting", *words)
    result, pieces, took_ns = map(int, ran.stdout.split())

    assert result == 0
    # A second or two pass before it is plain that the many wait for the program, and are made up for.
    most = percent + (POINTS if behind == 1 else RUN_AHEAD)
    assert OF_SHARE * percent <= 100 * pieces * 100_000 / took_ns <= most, ran.stdout


def test_nor_does_it_beside_a_neighbour_that_never_rests(make_box: MakeBox) -> None:
    """What was queued first waited for room, and so did the program that it waits for: for ever."""
    box, other = tenant(make_box, "a", 50), tenant(make_box, "other", 40)
    neighbour = ready(other, "sync@5000000")
    neighbour.tell("work sync 5000000 60 2")
    ran = box.run("waiting", "20000000", "4", "4", "2")
    result, pieces, took_ns = map(int, ran.stdout.split())

    assert result == 0
    assert pieces >= 20, ran.stdout
    assert took_ns < 8e9, ran.stdout


def test_ten_and_ninety_complete_one_to_nine(make_box: MakeBox) -> None:
    """Seen elsewhere: containers of 10 and 90 % completed 1:6 to 1:8."""
    small, large = tenant(make_box, "small", 10), tenant(make_box, "large", 90)
    had = shares((small, "sync"), (large, "sync"))

    assert 8.5 <= had[1] / had[0] <= 9.5


def test_without_neighbour_files_a_share_is_kept_alone(make_box: MakeBox) -> None:
    """Where cards/ is missing the library works without."""
    had = shares((alone(make_box, 30), "sync"))

    assert is_kept(had[0], 30), had


def test_without_neighbour_files_a_share_is_never_more_than_it_should_be(make_box: MakeBox) -> None:
    """Nobody tells of neighbours: their time is charged as one's own."""
    boxes = [alone(make_box, percent, f"tenant{percent}") for percent in (30, 70)]
    had = shares(*((box, "sync") for box in boxes))

    assert 15 < had[0] <= 30 + POINTS
    assert 50 < had[1] <= 70 + POINTS


@sweep("percent", [100, None])
def test_a_hundred_percent_is_no_cap(make_box: MakeBox, percent: int | None) -> None:
    """Or none: all of the card, nothing is measured, nothing waits (R-112)."""
    box = alone(make_box, percent)
    had = shares((box, "sync"))
    region = Region(box.root / "state" / "region")

    assert had[0] > 99.5
    assert region.charged_ns() == 0
    assert region.waited_ns() == 0
    region.close()


def test_a_work_conserving_share_takes_an_idle_card(make_box: MakeBox) -> None:
    """Alone it has it all; beside another it keeps to its share (R-560)."""
    box = tenant(make_box, "a", 30, "work-conserving")
    other = tenant(make_box, "b", 70, "work-conserving")
    undisturbed = shares((box, "sync"))
    had = shares((box, "sync"), (other, "sync"))

    assert undisturbed[0] > 99
    assert had == pytest.approx([30, 70], abs=POINTS)


@sweep("kind, unit_us", [("sync", 100), ("sync", 1000), ("sync", 20_000), ("stream", 100)])
def test_a_work_conserving_share_is_back_at_its_percentage_within_50_ms(
    make_box: MakeBox, kind: str, unit_us: int
) -> None:
    """A neighbour begins two seconds later: what it had alone is no debt, and no licence."""
    unit_ns, later_ns, beside_ns = unit_us * 1000, 2_000_000_000, 1_000_000_000
    alone_it = tenant(make_box, "a", 30, "work-conserving").start()
    alone_it.tell(f"work {kind} {unit_ns} {later_ns / 1e9} 1")
    result, before, _ = alone_it.answer()
    assert result == 0
    first = tenant(make_box, "b", 30, "work-conserving").start()
    second = tenant(make_box, "c", 70).start()
    first.tell(f"work {kind} {unit_ns} {(later_ns + beside_ns) / 1e9} 2")
    second.tell(f"work sync 20000000 {beside_ns / 1e9} 2 {later_ns}")
    result, pieces, _ = first.answer()
    other, _, _ = second.answer()
    had_ns = (pieces - before) * unit_ns
    queued_ns = unit_ns * (200 if kind == "stream" else 1)  # launched before anybody else was there

    assert (result, other) == (0, 0)
    assert 0.25 * beside_ns < had_ns <= 0.3 * beside_ns + 50_000_000 + queued_ns


@sweep("own", ["sync", "stream@100000"])
@sweep("kind", ["sync", "sync@100000", "stream"])
def test_a_work_conserving_share_is_exact_beside_a_fixed_one(
    make_box: MakeBox, kind: str, own: str
) -> None:
    """A neighbour that is there for a little of the time wants the card as well."""
    box = tenant(make_box, "a", 30, "work-conserving")
    other = tenant(make_box, "b", 60)
    had = shares((box, own), (other, kind))
    # One that waits for each of its short kernels gets one for each turn of a neighbour's.
    wanted = [30, 60 if own == "sync" or kind != "sync@100000" else had[1]]

    assert had == pytest.approx(wanted, abs=BESIDE_POINTS)


def test_a_native_share_is_the_drivers(make_box: MakeBox) -> None:
    """Policy native: the percentage is not enforced, and neighbours see what it takes (R-560)."""
    box = tenant(make_box, "a", 30, "native")
    alone_it_had = shares((box, "sync"))
    had = shares((box, "sync"), (tenant(make_box, "b", 30), "sync"))

    assert alone_it_had[0] > 99
    assert had[1] == pytest.approx(30, abs=BESIDE_POINTS)
    assert had[0] == pytest.approx(100 - CHANGES - had[1], abs=BESIDE_POINTS)


@sweep(
    "percent, kind, other, turns_allow",
    [
        (60, "sync", "sync", 50 - CHANGES / 2),
        (60, "stream", "sync", 50 - CHANGES / 2),
        (30, "sync", "stream", 30),
    ],
)
def test_a_neighbour_without_a_cap_is_seen(
    make_box: MakeBox, percent: int, kind: str, other: str, turns_allow: int
) -> None:
    """60 % had 30.9 beside one that told nobody of its work: half of the time was not its own."""
    capped, free = tenant(make_box, "a", percent), tenant(make_box, "b", 100)
    had = shares((capped, kind), (free, other))

    assert had[0] == pytest.approx(turns_allow, abs=BESIDE_POINTS)


@sweep("kind, other", [("sync@1000000", "paced@100000"), ("sync@1000000", "sync@100000")])
def test_a_neighbour_without_a_cap_that_hardly_works_gives_nobody_more(
    make_box: MakeBox, kind: str, other: str
) -> None:
    """30 % had 60: each span was divided by two, whether the neighbour had a turn in it or not."""
    capped, free = tenant(make_box, "a", 30), tenant(make_box, "b", 100)
    had = shares((capped, kind), (free, other))

    assert had[0] <= 30 + POINTS, had


def leave_work_out(box: Box) -> None:
    """A process of the container dies with kernels on the card."""
    victim = box.start()
    region = Region(box.root / "state" / "region")
    charged_ns = region.charged_ns()
    victim.tell("work stream 100000 60")
    asyncio.run(until(lambda: region.charged_ns() > charged_ns, 20))
    victim.kill()
    region.close()


def test_dead_processes_have_no_part_of_the_card(make_box: MakeBox) -> None:
    """Each that died with work out divided what the others were charged: 30 % was 60, and then 90."""
    box = tenant(make_box, "a", 30)
    for _ in range(2):
        leave_work_out(box)
    had = shares((box, "sync@1000000"), seconds=4)

    assert had[0] == pytest.approx(30, abs=POINTS)


def test_nor_have_a_neighbours_dead(make_box: MakeBox) -> None:
    """Those of a slice kept its neighbours from the card for as long as it lived."""
    box, other = tenant(make_box, "a", 50), tenant(make_box, "b", 30)
    leave_work_out(other)
    had = shares((box, "sync@1000000"), (other, "sync@1000000"), seconds=4)

    assert had == [pytest.approx(50, abs=BESIDE_POINTS), pytest.approx(30, abs=BESIDE_POINTS)]


def test_a_neighbours_broken_file_is_nobody(make_box: MakeBox) -> None:
    """Cut off, grown, a directory or rubbish: it is read with pread and counts as idle."""
    box = tenant(make_box, "a", 30)
    card = Path(box.root / "cards" / box.node.uuids[0])
    (card / "short").write_bytes(b"x")
    (card / "rubbish").write_bytes(b"x" * 4096)
    (card / "folder").mkdir()
    (card / "link").symlink_to("/dev/zero")

    had = shares((box, "sync"))

    assert is_kept(had[0], 30), had


def test_a_dead_process_does_not_hold_its_container_back(make_box: MakeBox) -> None:
    """What it had launched is nobody's debt after it was killed."""
    box = tenant(make_box, "a", 50)
    victim, survivor = box.start(), box.start()
    region = Region(box.root / "state" / "region")
    victim.tell("work stream 100000 60")
    asyncio.run(until(region.charged_ns, 20))
    victim.kill()
    region.close()
    survivor.tell("work sync 1000000 1 1")
    result, pieces, _ = survivor.answer()

    assert result == 0
    assert pieces > 100


def test_captured_work_is_left_alone(make_box: MakeBox) -> None:
    """Seen elsewhere: the library's calls into a capture ended it."""
    box = tenant(make_box, "a", 30)
    ran = box.run("capture")

    assert ran.stdout.split() == ["0", "0", "0", "0"], ran.stdout + ran.stderr


def test_the_library_as_it_is_shipped_keeps_a_share_too(make_box: MakeBox) -> None:
    """Its timers are the machine's, so only what no machine can blur: limited, and not starved."""
    box = make_box()
    box.allow(2000 * MIB, 30)
    program = box.start()
    program.tell("work sync 20000000 2")
    result, pieces, took_ns = program.answer()

    assert result == 0
    assert 0 < 100 * pieces * 20_000_000 / took_ns < 36
