"""While a card is watched nothing else of the container moves it, and nobody waits for ever."""

import asyncio
from pathlib import Path

import pytest
from tests.isolation.box import MIB, OUT_OF_MEMORY, Box, Program
from tests.isolation.region import Region
from tests.isolation.test_overhead import CONTEXT, SLICE, room, stop_in_context
from tests.waiting import until


@pytest.mark.parametrize("piece_bytes", [20 * MIB + 1, 0], ids=["pieces", "contexts"])
@pytest.mark.parametrize("others", ["threads", "processes"])
def test_what_others_take_is_not_taken_for_code(
    any_box: Box, others: str, piece_bytes: int
) -> None:
    """They wait while a first launch is watched; in odd pieces, whose pages come and go as well."""
    any_box.allow(8192 * MIB)
    ran = any_box.run(
        "throng",
        others,
        "4",
        "3000",
        str(piece_bytes),
        GPU_SIMULATOR_MODULE_MIB="1",
        CUDA_MODULE_LOADING="LAZY",
    )

    assert [int(word) for word in ran.stdout.split()] == [0, 3000 * MIB], ran.stderr


def test_code_is_measured_after_a_look_that_came_to_nothing(box: Box) -> None:
    """NVML's figure fits no moment of the books while threads allocate; then the next one does."""
    ran = box.run(
        "threads",
        "2",
        "0",
        str(1700 * MIB),
        GPU_SIMULATOR_NVML_CALL_US="20000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )
    failures, before, after = (int(word) for word in ran.stdout.split())

    assert (failures, before - after) == (0, 50 * MIB), ran.stderr


def test_no_other_thread_passes_while_code_is_being_measured(box: Box) -> None:
    """NVML takes a second to tell; until then the room for the code was free for who asked."""
    ran = box.run(
        "meanwhile",
        "load",
        str(100 * MIB),
        str(51 * MIB),
        GPU_SIMULATOR_NVML_CALL_US="1000000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )

    assert [int(word) for word in ran.stdout.split()] == [0, OUT_OF_MEMORY, 50 * MIB], ran.stderr


def test_what_a_trim_gives_back_is_not_taken_off_the_overhead(box: Box, tmp_path: Path) -> None:
    """Measured between the driver's trim and the books, 512 MiB of a pool hid context and code."""
    box.library = "libgpuslice-testing.so"
    ran = box.run(
        "meanwhile",
        "trim",
        str(400 * MIB),
        str(512 * MIB),
        GPUSLICE_PAUSEPOINT="pool_trimmed",
        GPUSLICE_PAUSEFILE=str(tmp_path / "waiting"),
        GPU_SIMULATOR_NVML_CALL_US="100000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )

    assert [int(word) for word in ran.stdout.split()] == [0, 0, (400 + 512 - 50) * MIB], ran.stderr


def test_where_nvml_cannot_tell_it_is_not_asked_at_each_allocation(box: Box) -> None:
    """It lists the process without a size: new code stays unmeasured, however often it is asked."""
    program = box.start(
        GPU_SIMULATOR_NVML_PIDS="unsized",
        GPU_SIMULATOR_NVML_CALL_US="20000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )
    assert program(f"alloc 1 {room(program('info')) - 200 * MIB}") == [0]
    assert program("module") == [0]
    before = program("nvml_calls")[1]
    for _ in range(100):
        assert program(f"alloc 2 {MIB}") == [0]
        assert program("free 2") == [0]

    assert program("nvml_calls")[1] - before <= 50


@pytest.fixture
def watcher(box_of_strangers: Box, tmp_path: Path) -> Program:
    """A program that stands still with its context made and not yet measured."""
    return stop_in_context(box_of_strangers, tmp_path / "waiting")


def test_who_stands_still_while_it_watches_holds_nobody_up_for_ever(
    watcher: Program, box_of_strangers: Box, tmp_path: Path
) -> None:
    """Others go on after a while, and what they took is not its context's price."""
    other = box_of_strangers.start()
    assert other(f"alloc 1 {100 * MIB}") == [0]
    (tmp_path / "waiting").unlink()
    assert watcher.answer() == [0]

    assert SLICE - room(other("info")) == 100 * MIB + 2 * CONTEXT


def test_who_dies_while_it_watches_is_not_waited_for(
    watcher: Program, box_of_strangers: Box
) -> None:
    """Its context went with it."""
    watcher.kill()
    other = box_of_strangers.start()

    assert other(f"alloc 1 {SLICE - CONTEXT}") == [0]


def naps_of(program: Program) -> int:
    """How often a program in a pid namespace of its own has gone to sleep."""
    pid = program.pid
    child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    status = Path(f"/proc/{child}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_who_waits_already_notices_that_the_watcher_has_died(
    watcher: Program, box_of_strangers: Box
) -> None:
    """It was asked once whether it lives, and then no more until patience was at its end."""
    other = box_of_strangers.start(ready=False)
    assert other("init") == [0]
    other.tell("retain")
    before = naps_of(other)
    asyncio.run(until(lambda: naps_of(other) > before + 200, 20))
    watcher.kill()
    assert other.answer() == [0]

    region = Region(box_of_strangers.root / "state" / "region")
    assert region.reaped() == 1
    region.close()


def test_contexts_are_measured_where_none_is_current(box_without_nvml: Box) -> None:
    """Only a context of the card can say what the card has free, and another thread has one."""
    ran = box_without_nvml.run("apart", "4", GPU_SIMULATOR_CONTEXT_MIB="100")

    assert [int(word) for word in ran.stdout.split()] == [0, 4 * 100 * MIB], ran.stderr
