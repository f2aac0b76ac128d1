"""The card never holds more for a slice than the slice has, also inside a call; and nothing that fits is refused.

The simulated card notes the most that processes held of it at any moment, so what a call takes and
gives back before it returns shows too. Of the pages of 2 MiB that a process fills only in part, the first 2 MiB
are not counted.
"""

import asyncio
import random
import subprocess

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, PATIENCE_SECONDS, Box, room
from tools.harness.waiting import until

SLICE = 512 * MIB
PAGE = 2 * MIB
GROWTH_US = 60_000


@pytest.fixture
def small(make_box: MakeBox) -> Box:
    """A container with 512 MiB, alone on its card."""
    box = make_box()
    box.allow(SLICE)
    return box


@pytest.mark.parametrize("exact", ["0", "1"])
@pytest.mark.parametrize("seed", range(6))
def test_pools_and_plain_pieces_in_turn_never_exceed_the_slice(
    small: Box, seed: int, exact: str
) -> None:
    """14 to 37 MiB each; at the first refusal the process had 18 to 29 MiB too much for a moment."""
    sizes = random.Random(seed)  # noqa: S311
    program = small.start(GPU_SIMULATOR_POOL_EXACT=exact)
    assert program("pool_keep default 1") == [0]
    results = []
    for number in range(60):
        size = sizes.randrange(14, 38) * MIB
        results += program(f"{'async' if number % 2 else 'alloc'} {number} {size}")
        if number % 7 == 6:
            assert program(f"free {number - 1}")[0] in (0, 1)
            program("sync")

    assert OUT_OF_MEMORY in results
    assert small.node.held_peak() <= SLICE + PAGE


def test_a_request_beyond_the_slice_does_not_reach_the_driver(small: Box) -> None:
    """A pool grows by 32 MiB, 20 are left: nothing is taken for the length of a call."""
    program = small.start()
    assert program("async 1 1000") == [0]
    assert program(f"alloc 2 {room(program) - 20 * MIB}") == [0]
    before = small.node.held_peak()
    assert program(f"async 3 {40 * MIB}") == [OUT_OF_MEMORY]

    assert small.node.held_peak() == before
    assert program(f"async 4 {16 * MIB}") == [0]  # the pool has as much
    assert small.node.held_peak() == before


def test_others_wait_for_a_pool_that_reserves_more_than_it_takes(small: Box) -> None:
    """It takes 60 ms: after 20 ms they were refused, although they fit beside what it took."""
    small.allow(1024 * MIB)
    grows = small.start(GPU_SIMULATOR_POOL_GROWTH_US=str(GROWTH_US))
    other = small.start()
    region = Region(small.root / "state" / "region")
    assert grows(f"async 1 {12 * MIB}") == [0]  # 20 of its 32 MiB are unused
    assert other(f"alloc 1 {room(other) - 70 * MIB}") == [0]
    used = region.used(0)
    grows.tell(f"async 2 {40 * MIB}")  # 64 MiB in whole chunks; it takes 32
    asyncio.run(until(lambda: region.used(0) > used, 20))
    got = other(f"alloc 2 {30 * MIB}")
    region.close()

    assert grows.answer() == [0]
    assert got == [0]


def test_a_pool_that_grew_though_it_had_room_does_so_once(small: Box) -> None:
    """Its unused part lies in pieces, so it grows where it had room; from then on that is reserved."""
    program = small.start(GPU_SIMULATOR_POOL_EXACT="1", GPU_SIMULATOR_POOL_PIECE_MIB="8")
    assert program("pool_keep default 1") == [0]
    assert program(f"async 1 {2 * MIB}") == [0]
    assert program(f"alloc 2 {room(program) - 4 * MIB}") == [0]
    assert program(f"async 3 {10 * MIB}") == [OUT_OF_MEMORY]
    assert room(program) == 4 * MIB
    small.node.change("cards.0.held_peak_bytes=0")
    assert program(f"async 3 {10 * MIB}") == [OUT_OF_MEMORY]
    assert program(f"async 4 {8 * MIB}") == [0]

    assert small.node.held_peak() <= SLICE + PAGE


def small_slice(processes: int) -> int:
    """Room for a context of each, and less than any of them asks for."""
    return (60 * processes + 200) * MIB


@pytest.mark.parametrize(("processes", "threads"), [(1, 4), (4, 1), (3, 3)])
def test_nobody_exceeds_the_slice_whatever_is_asked_at_once(
    small: Box, processes: int, threads: int
) -> None:
    """Every kind of call, pieces of 14 to 37 MiB, from several threads and processes; nothing is lost."""
    small.allow(small_slice(processes))
    small.variables["GPU_SIMULATOR_CONTEXT_MIB"] = "60"
    small.variables["GPU_SIMULATOR_POOL_GROWTH_US"] = "2000"
    begun = []
    for seed in range(processes):
        process = subprocess.Popen(
            [small.programs / "mixed", str(threads), "300", str(seed)],
            env=small.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        # One context at a time: what the first costs counts by the table until it is measured.
        assert process.stdout.readline() == "ready\n"
        begun.append(process)
    for process in begun:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    # None ends before all have answered: the simulated card finds out later than the library.
    answers = [
        [int(word) for word in process.stdout.readline().split()]
        for process in begun
        if process.stdout
    ]
    peak = small.node.held_peak()
    for process in begun:
        process.communicate(timeout=PATIENCE_SECONDS)

    assert [failed for _, _, failed, _ in answers] == [0] * processes, answers
    assert sum(refused for _, refused, _, _ in answers) > 0
    # The unused rest of a page is counted once the call is back: as much more for each call that is out.
    assert peak <= small_slice(processes) + processes * (1 + threads) * PAGE
    assert small.start()("info")[1] == small_slice(processes) - 60 * MIB


def test_a_pool_that_takes_more_than_was_reserved_is_settled_once(small: Box) -> None:
    """Two reservations for one call were taken off twice: from then on others waited in vain."""
    program = small.start(
        GPU_SIMULATOR_POOL_EXACT="1", GPU_SIMULATOR_MODULE_MIB="50", CUDA_MODULE_LOADING="EAGER"
    )
    assert program(f"async 1 {100 * MIB}") == [0]  # as asked: so the next is reserved as asked
    assert program("setenv GPU_SIMULATOR_POOL_EXACT 0") == [0]
    assert program(f"async 2 {40 * MIB}") == [0]  # takes 60 all the same
    region = Region(small.root / "state" / "region")
    used, unsettled = region.used(0), region.unsettled(0)
    region.close()
    before = room(program)
    assert program("module") == [0]

    assert (used, unsettled) == (160 * MIB, 0)
    assert before - room(program) == 50 * MIB  # no call is thought to be out still


def test_a_graph_on_two_cards_waits_for_what_others_reserve_on_the_second(small: Box) -> None:
    """It had reserved on the first, and so waited for nobody."""
    lines = [f"device={uuid} memory_bytes={1024 * MIB}" for uuid in small.node.uuids[:2]]
    small.write("\n".join(["version=1", f"slice={small.root.name}", *lines, ""]))
    grows = small.start(ready=False, GPU_SIMULATOR_POOL_GROWTH_US=str(GROWTH_US))
    assert grows("init") == [0]
    assert grows("retain 1") == [0]
    asks = small.start()
    region = Region(small.root / "state" / "region")
    assert grows(f"async 1 {12 * MIB}") == [0]  # 20 of its 32 MiB are unused
    assert grows(f"alloc 3 {room(grows) - 70 * MIB}") == [0]
    assert asks(f"graph_two 1 {30 * MIB}") == [0]
    used = region.used(0, card=1)
    grows.tell(f"async 2 {40 * MIB}")  # 64 MiB in whole chunks; it takes 32
    asyncio.run(until(lambda: region.used(0, card=1) > used, 20))
    got = asks("graph_launch 1")
    refused = region.refused(1)
    region.close()

    assert grows.answer() == [0]
    assert (got, refused) == ([0], 0)
