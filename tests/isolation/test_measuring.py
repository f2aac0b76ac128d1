"""What NVML says is held against the books of the same moment, whatever other threads do meanwhile."""

import subprocess
from pathlib import Path

import pytest
from tests.isolation.test_overhead import CONTEXT
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, room


@pytest.mark.parametrize("piece_bytes", [20 * MIB + 1, 0], ids=["pieces", "contexts"])
@pytest.mark.parametrize("others", ["threads", "processes"])
def test_what_others_take_is_not_taken_for_code(box: Box, others: str, piece_bytes: int) -> None:
    """In odd pieces, whose pages come and go as well."""
    box.allow(8192 * MIB)
    ran = box.run(
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


@pytest.mark.parametrize(
    ("way", "place"), [("trim", "pool_trimmed"), ("sync", "pool_synchronized")]
)
def test_what_a_pool_gives_back_is_not_taken_off_the_overhead(
    box: Box, tmp_path: Path, way: str, place: str
) -> None:
    """Measured between the driver's call and the books, 512 MiB of a pool hid context and code."""
    box.library = "libgpuslice-testing.so"
    ran = box.run(
        "meanwhile",
        way,
        str(400 * MIB),
        str(512 * MIB),
        GPUSLICE_PAUSEPOINT=place,
        GPUSLICE_PAUSEFILE=str(tmp_path / "waiting"),
        GPU_SIMULATOR_NVML_CALL_US="100000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )

    assert [int(word) for word in ran.stdout.split()] == [0, 0, (400 + 512 - 50) * MIB], ran.stderr


def test_a_pool_that_shrank_meanwhile_grows_within_the_limit(box: Box, tmp_path: Path) -> None:
    """It had room, a look followed it down, and it grew by a chunk that others had by then.

    The wait that shrinks it does not wait for the thread that draws from it.
    """
    box.library = "libgpuslice-testing.so"
    other = box.start()
    environment = box.environment | {
        "GPUSLICE_PAUSEPOINT": "pool_has_room",
        "GPUSLICE_PAUSEFILE": str(tmp_path / "waiting"),
        "GPU_SIMULATOR_MODULE_MIB": "50",
        "CUDA_MODULE_LOADING": "EAGER",
    }
    with subprocess.Popen(
        [box.programs / "meanwhile", "draw", str(50 * MIB), str(32 * MIB)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as drawing:
        assert drawing.stdout
        assert drawing.stdout.readline() == "ready\n"
        taken = other(f"alloc 1 {32 * MIB}")
        (tmp_path / "waiting").unlink()
        answer = drawing.stdout.read().split()

    assert (taken, answer) == ([OUT_OF_MEMORY], ["0", "0", "0"])


def test_a_pool_that_grew_too_far_keeps_no_other_thread_waiting(box: Box) -> None:
    """It gives back behind its stream, which may wait for what another thread does with pools: both stood still."""
    ran = box.run("meanwhile", "undo", str(45 * MIB), str(40 * MIB), GPU_SIMULATOR_POOL_EXACT="1")

    assert ran.stdout.split()[:2] == [str(OUT_OF_MEMORY), "0"], ran.stderr


def test_nvml_is_asked_after_a_pool_grew(box: Box) -> None:
    """What the driver takes beside the pool for it, no figure of the pool's says."""
    program = box.start()
    assert program(f"alloc 1 {1500 * MIB}") == [0]
    before = program("nvml_calls")
    assert program(f"async 2 {40 * MIB}") == [0]
    assert program("alloc 3 4096") == [0]

    assert program("nvml_calls") > before


def test_beside_hundreds_of_processes_nvml_is_believed_too(box: Box) -> None:
    """Its list was read into room for 256; beyond that nothing was measured any more."""
    box.node.change("cards.0.memory_total_mib=32768")
    with subprocess.Popen(
        [box.programs / "crowd", str(box.node.state), "300"],
        env=box.environment | {"LD_PRELOAD": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as crowd:
        assert crowd.stdout
        assert crowd.stdout.readline() == "ready\n"
        program = box.start(GPU_SIMULATOR_MODULE_MIB="50", CUDA_MODULE_LOADING="EAGER")
        before = room(program)
        assert program("module") == [0]
        taken = before - room(program)
        assert crowd.stdin
        crowd.stdin.close()

    assert (SLICE - before, taken) == (CONTEXT, 50 * MIB)


def test_where_nvml_cannot_tell_it_is_not_asked_at_each_allocation(box: Box) -> None:
    """It lists the process without a size: new code stays unmeasured, however often it is asked."""
    program = box.start(
        GPU_SIMULATOR_NVML_PIDS="unsized",
        GPU_SIMULATOR_NVML_CALL_US="20000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )
    assert program(f"alloc 1 {room(program) - 200 * MIB}") == [0]
    assert program("module") == [0]
    before = program("nvml_calls")[1]
    for _ in range(100):
        assert program(f"alloc 2 {MIB}") == [0]
        assert program("free 2") == [0]

    assert program("nvml_calls")[1] - before <= 50
