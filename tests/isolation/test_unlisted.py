"""Where NVML does not tell what a process holds, the books say no less than the card gave.

Drivers before 565.57 in a pod, and containers without NVML: contexts count by a table, code by the
size of its image, heaps as they are set. Nothing is measured, so nobody waits for anybody, and no
neighbour changes any of it.
"""

from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.test_overhead import CONTEXT, TABLE
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, room

IMAGE = 3 * MIB
PAGE = 2 * MIB
PIECE = 64 * 1024


def in_pages(size: int, count: int = 1) -> int:
    """As so many images of this size count: each in pieces of 64 KiB, all in whole pages."""
    return -(-count * (size // PIECE + 1) * PIECE // PAGE) * PAGE


@pytest.fixture(params=["box_without_sizes", "box_of_strangers", "box_without_nvml"])
def unlisted(request: pytest.FixtureRequest) -> Box:
    """A container whose processes NVML says nothing of."""
    box: Box = request.getfixturevalue(request.param)
    return box


def test_a_context_counts_as_the_table_says(unlisted: Box) -> None:
    """Not less than it takes, and not more than what the largest of its kind would."""
    program = unlisted.start()

    assert SLICE - room(program) == TABLE
    assert 0 <= TABLE - CONTEXT <= 100 * MIB


def test_a_context_that_does_not_fit_by_the_table_is_refused(unlisted: Box) -> None:
    """From the second process on its price is known."""
    first = unlisted.start()
    assert first(f"alloc 1 {room(first) - TABLE + 1}") == [0]
    second = unlisted.start(ready=False)
    assert second("init") == [0]
    assert second("retain") == [OUT_OF_MEMORY]
    assert first("free 1") == [0]

    assert second("retain") == [0]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (f"image text {IMAGE}", 4 * IMAGE),
        (f"image fat {IMAGE}", 4 * (IMAGE - 64)),
        (f"image wrapper {IMAGE}", 4 * (IMAGE - 64)),
        (f"image cubin {IMAGE}", IMAGE),
        (f"fat {IMAGE} 80", IMAGE),
        (f"fat {IMAGE} 80 90", IMAGE),
        (f"fat {IMAGE} 80 80", 2 * IMAGE),
        (f"variables {70 * MIB}", 70 * MIB),
    ],
)
def test_code_counts_by_the_size_of_its_image(unlisted: Box, what: str, code: int) -> None:
    """PTX as four times its text, of a fat binary the largest architecture, variables with it."""
    program = unlisted.start()
    before = room(program)
    for _ in range(3):
        assert program(what) == [0]
        assert before - room(program) == in_pages(code)
        assert program("module_unload") == [0]
        assert room(program) == before


def test_many_small_images_share_pages(unlisted: Box) -> None:
    """A page for each would charge what compiles its kernels one by one for gigabytes."""
    program = unlisted.start()
    before = room(program)
    assert program("loads library 500") == [0]

    assert before - room(program) == in_pages(1, 500)


def test_code_of_a_file_counts_by_the_files_size(unlisted: Box, tmp_path: Path) -> None:
    """As four times that: whether it is text or compressed is not looked at."""
    file = tmp_path / "image.ptx"
    file.write_text(".version 7.0\n.target sm_50\n.address_size 64\n".ljust(IMAGE))
    program = unlisted.start()
    before = room(program)
    assert program(f"image file {file}") == [0]

    assert before - room(program) == in_pages(4 * IMAGE)


def test_a_librarys_code_counts_in_each_context(unlisted: Box) -> None:
    """It has one handle for all of them, and goes with each."""
    program = unlisted.start()
    before = room(program)
    assert program("library") == [0]
    assert before - room(program) == PAGE
    assert program("context 1") == [0]
    assert before - room(program) == TABLE + PAGE  # small ones share it
    assert program("context_destroy 1") == [0]
    assert program("retain") == [0]
    assert before - room(program) == PAGE
    assert program("library_unload") == [0]

    assert room(program) == before


def test_code_goes_with_its_context(unlisted: Box) -> None:
    """Anyone who resets it has not unloaded anything."""
    program = unlisted.start()
    before = room(program)
    for _ in range(3):
        assert program(f"image text {IMAGE}") == [0]
        assert program("reset") == [0]
        assert program("retain") == [0]
        assert room(program) == before


def test_heaps_count_as_they_are_set(unlisted: Box) -> None:
    """The driver takes them without an allocation."""
    program = unlisted.start()
    before = room(program)
    assert program(f"heap {300 * MIB}") == [0]
    assert 290 * MIB <= before - room(program) <= 300 * MIB
    assert program("reset") == [0]
    assert program("retain") == [0]

    assert room(program) == before


def test_a_neighbour_changes_nothing(unlisted: Box, make_box: MakeBox) -> None:
    """What it took while the card was watched was held against the slice, for good."""
    beside = make_box("neighbour")
    beside.allow(8192 * MIB)
    neighbour = beside.start()
    neighbour.tell(f"churn {256 * MIB} 1")
    program = unlisted.start()
    start = room(program)
    for count in range(1, 20):
        assert program(f"image text {IMAGE}") == [0]
        assert start - room(program) == in_pages(4 * IMAGE, count)
    neighbour.answer()


def test_the_card_gives_no_more_than_the_slice(unlisted: Box) -> None:
    """With code that takes as much as its images can."""
    program = unlisted.start(GPU_SIMULATOR_MODULE_MIB="12", CUDA_MODULE_LOADING="EAGER")
    number = 0
    while program(f"alloc {number} {37 * MIB}") == [0]:
        assert program(f"image text {IMAGE}") == [0]
        number += 1

    assert number > 30
    # The last image was not asked for: nothing can refuse it before the driver takes it.
    assert unlisted.node.held_peak() <= SLICE + in_pages(4 * IMAGE)
