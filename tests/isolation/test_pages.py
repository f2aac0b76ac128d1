"""Whole pages are what the driver takes: counted with the call, and no later look changes it."""

from collections.abc import Callable

import pytest
from tests.isolation.region import Region
from tests.isolation.test_overhead import CONTEXT, TABLE
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, Program, native_directory

PAGE = 2 * MIB
PIECES = 300


Figures = Callable[[], tuple[int, int]]


@pytest.fixture
def figures(any_box: Box) -> Figures:
    """What the first process holds by the container's books, and by the driver's own list."""
    outside = any_box.start(
        ready=False, LD_PRELOAD="", LD_LIBRARY_PATH=str(native_directory()), GPUSLICE_ROOT=""
    )

    def ask() -> tuple[int, int]:
        outside.tell("processes 3")
        result, *listed = outside.words()
        assert result == "0"
        region = Region(any_box.root / "state" / "region")
        held = region.held(0)
        region.close()
        return held, sum(int(entry.split(":")[1]) for entry in listed)

    return ask


def grown(figures: Figures, since: tuple[int, int]) -> tuple[int, int]:
    """What both say has come since then."""
    books, driver = figures()
    return books - since[0], driver - since[1]


def asked_for_all(program: Program) -> None:
    """The slowest way, with a look whatever it costs; nothing is given."""
    assert program(f"alloc 4000 {SLICE}") == [OUT_OF_MEMORY]


@pytest.mark.parametrize("size", [1, 100_000, 1_000_000, 1_153_434, 3 * MIB + 1])
def test_pieces_count_as_the_pages_that_they_lie_in(
    any_box: Box, figures: Figures, size: int
) -> None:
    """Up to one page, at once; a look finds the same; and they go as they came."""
    program = any_box.start()
    start = figures()

    def same() -> None:
        books, driver = grown(figures, start)
        assert 0 <= driver - books <= PAGE
        asked_for_all(program)
        assert program("info")[0] == 0
        assert grown(figures, start) == (books, driver)

    for number in range(PIECES):
        assert program(f"alloc {number} {size}") == [0]
    assert grown(figures, start)[1] >= PIECES * size
    same()
    for number in range(0, PIECES, 2):
        assert program(f"free {number}") == [0]
    same()
    for number in range(1, PIECES, 2):
        assert program(f"free {number}") == [0]
    assert figures() == start


def test_odd_pieces_do_not_get_more_of_the_card_than_the_slice(
    any_box: Box, figures: Figures
) -> None:
    """Of a little more than half a page each: by their bytes the card would give twice as much."""
    program = any_box.start()
    pieces = 0
    while program(f"alloc {pieces} {MIB + 1}") == [0]:
        pieces += 1
    books, driver = figures()

    # Where NVML does not tell, a context counts as what the largest of its kind cost.
    assert SLICE * 0.995 - (TABLE - CONTEXT) <= driver <= SLICE + PAGE
    assert books >= SLICE - PAGE
    assert pieces >= (SLICE * 0.995 - TABLE - 10 * MIB) // PAGE


def test_one_odd_piece_shows_as_it_was_asked(any_box: Box, figures: Figures) -> None:
    """What is less than a page is let pass: 97 MiB are 97 MiB, though the driver takes 98."""
    program = any_box.start()
    start = figures()
    assert program(f"alloc 1 {97 * MIB}") == [0]
    asked_for_all(program)

    assert grown(figures, start) == (97 * MIB, 98 * MIB)


def test_the_end_of_a_context_takes_its_pages_along(any_box: Box, figures: Figures) -> None:
    """Nobody frees them one by one."""
    program = any_box.start()
    assert program("context 4001") == [0]
    assert program("context_destroy 4001") == [0]
    start = figures()
    assert program("context 4001") == [0]
    for number in range(PIECES):
        assert program(f"alloc {number} {MIB + 1}") == [0]
    assert program("context_destroy 4001") == [0]

    assert figures() == start


def test_arrays_take_pages_too(any_box: Box, figures: Figures) -> None:
    """Their place is not told; what is larger than half a page has its pages to itself."""
    program = any_box.start()
    start = figures()
    for number in range(100):
        assert program(f"array {number} 1100 1100 1 1") == [0]
    books, driver = grown(figures, start)
    asked_for_all(program)
    assert driver == 100 * PAGE
    assert driver - PAGE <= books <= driver
    assert grown(figures, start) == (books, driver)
    for number in range(100):
        assert program(f"array_destroy {number}") == [0]

    assert figures() == start
