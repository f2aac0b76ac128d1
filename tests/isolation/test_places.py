"""Memory that is not the slice's is not counted, and nothing else passes for such memory.

Pinned memory of the host is nobody's slice, by whatever pool or call; what another process
allocated is charged to that process alone.
"""

import asyncio
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, Program, room
from tools.harness.waiting import until

CONTEXT = 240 * MIB  # of the simulated V100
INVALID_VALUE = 1
DEVICE, HOST, HOST_NUMA, LATER = 1, 2, 3, 9  # CUmemLocationType
PINNED, MANAGED = 1, 2  # CUmemAllocationType
FILE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@pytest.fixture
def newest(box: Box) -> Box:
    """A driver of CUDA 13, which has pools of the host and of managed memory."""
    box.variables["GPU_SIMULATOR_CUDA_VERSION"] = "13000"
    return box


def told(program: Program, line: str) -> str:
    """The one word behind a result of 0."""
    program.tell(line)
    result, word = program.words()
    assert result == "0"
    return word


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param([f"pool_at 1 {HOST} 0 {PINNED}"], id="host"),
        pytest.param([f"pool_at 1 {HOST_NUMA} 0 {PINNED}"], id="host NUMA"),
        pytest.param([f"pool_of 1 {HOST} 0"], id="the host's own"),
    ],
)
def test_a_pool_of_the_host_is_not_the_slices(newest: Box, ways: list[str]) -> None:
    """Not counted, and not refused on a full slice."""
    program = newest.start()
    assert program(f"alloc 2 {room(program)}") == [0]
    for way in ways:
        assert program(way)[0] == 0
    assert program(f"from_pool 3 1 {3000 * MIB}") == [0]
    assert room(program) == 0
    assert program("free_async 3") == [0]
    assert program("free 2") == [0]
    region = Region(newest.root / "state" / "region")
    assert (region.used(0), region.refused()) == (0, 0)
    region.close()


def test_a_cards_pool_found_by_its_place_is_the_cards(newest: Box) -> None:
    """CuMemGetMemPool names the pool that cuMemAllocAsync draws from."""
    program = newest.start()
    before = room(program)
    assert program(f"pool_of 1 {DEVICE} 0") == [0, 1]
    assert program(f"from_pool 2 1 {before + MIB}") == [OUT_OF_MEMORY]
    assert program(f"from_pool 2 1 {100 * MIB}") == [0]

    assert before - room(program) >= 100 * MIB


@pytest.mark.parametrize("place", [DEVICE, HOST, 0])
def test_a_pool_of_managed_memory_counts(newest: Box, place: int) -> None:
    """Wherever it prefers to be: the card may hold it at any time, as with cuMemAllocManaged."""
    program = newest.start()
    before = room(program)
    assert program(f"pool_at 1 {place} 0 {MANAGED}") == [0]
    assert program(f"from_pool 2 1 {before + MIB}") == [OUT_OF_MEMORY]
    assert program(f"from_pool 2 1 {100 * MIB}") == [0]

    assert before - room(program) >= 100 * MIB


def test_managed_memory_of_a_pool_does_not_hide_what_a_context_costs(newest: Box) -> None:
    """It is the card's only while it is there: NVML's figure then says less than the books."""
    program = newest.start()
    before = room(program)
    assert program(f"pool_at 1 {HOST} 0 {MANAGED}") == [0]
    assert program(f"from_pool 2 1 {1000 * MIB}") == [0]
    for _ in range(3):
        assert before - room(program) == 1024 * MIB  # whole chunks


def test_physical_memory_of_the_host_is_not_the_slices(box: Box) -> None:
    """CuMemCreate on a NUMA node."""
    program = box.start()
    assert program(f"alloc 1 {room(program)}") == [0]

    assert program(f"create_at 2 {64 * MIB} {HOST_NUMA} 0") == [0]
    assert room(program) == 0


def test_a_kind_of_place_that_came_after_us_is_the_cards(box: Box) -> None:
    """Whatever is not the host's is held against the card, until the driver has refused it."""
    program = box.start()
    before = room(program)

    assert program(f"create_at 1 {before // MIB * MIB + 2 * MIB} {LATER} 0") == [OUT_OF_MEMORY]
    assert program(f"create_at 1 {64 * MIB} {LATER} 0") in ([0], [INVALID_VALUE])


def test_an_imported_pools_memory_is_its_exporters(make_box: MakeBox) -> None:
    """Two containers: one holds the memory, the other only sees it, on a full slice."""
    exporter, importer = make_box("one"), make_box("other")
    exporter.allow(SLICE)
    importer.allow(SLICE)
    owner, guest = exporter.start(), importer.start()
    before = room(owner)
    assert owner(f"pool_at 1 {DEVICE} 0 {PINNED} {FILE}") == [0]
    assert owner(f"from_pool 2 1 {1000 * MIB}") == [0]
    assert before - room(owner) == 1024 * MIB  # whole chunks
    result, file = owner("pool_export 1")
    assert result == 0
    assert guest(f"alloc 9 {room(guest)}") == [0]
    assert guest(f"pool_import 1 {owner.pid} {file}") == [0]
    assert guest(f"pool_pointer_import 2 1 {told(owner, 'pool_pointer 2')}") == [0]
    assert room(guest) == 0
    # New memory cannot come out of it: the driver's answer, not the library's.
    assert guest(f"from_pool 3 1 {MIB}") == [INVALID_VALUE]
    assert guest("free_async 2") == [0]
    assert guest(f"pool_pointer_import 2 1 {told(owner, 'pool_pointer 2')}") == [0]
    assert guest("free 2") == [0]
    assert guest("pool_destroy 1") == [0]
    assert guest("free 9") == [0]

    assert before - room(owner) == 1024 * MIB
    # NVML listed it with the importer as well, and is asked again a while later only.
    asyncio.run(until(lambda: room(guest) == before, 20))
    # The number of a pool that is gone says nothing of the next.
    assert guest("pool 1") == [0]
    assert guest(f"from_pool 3 1 {before + MIB}") == [OUT_OF_MEMORY]


def test_what_nvml_lists_of_an_import_is_not_taken_for_own_memory(make_box: MakeBox) -> None:
    """It lists the memory with both processes; the importer's code is measured by that figure."""
    exporter, importer = make_box("one"), make_box("other")
    exporter.allow(SLICE)
    importer.allow(SLICE)
    owner = exporter.start()
    guest = importer.start(GPU_SIMULATOR_MODULE_MIB="30", CUDA_MODULE_LOADING="EAGER")
    assert owner(f"alloc 1 {500 * MIB}") == [0]
    before, handle = room(guest), told(owner, "ipc 1")
    assert guest(f"ipc_open 1 {handle}") == [0]
    assert guest("module 5") == [0]

    assert before - room(guest) == 30 * MIB
    assert guest("ipc_close 1") == [0]
    assert guest("module_unload 5") == [0]
    assert room(guest) == before


def test_an_import_is_not_taken_for_own_memory_while_it_is_made(
    make_box: MakeBox, tmp_path: Path
) -> None:
    """Another thread asked NVML after it was listed, and before it was known as an import."""
    exporter, importer = make_box("one"), make_box("other")
    exporter.allow(SLICE)
    importer.allow(SLICE)
    owner = exporter.start()
    assert owner(f"alloc 1 {500 * MIB}") == [0]
    handle = told(owner, "ipc 1")
    importer.library = "libgpuslice-testing.so"
    ran = importer.run(
        "meanwhile",
        "import",
        handle,
        GPUSLICE_PAUSEPOINT="import_opened",
        GPUSLICE_PAUSEFILE=str(tmp_path / "waiting"),
    )

    assert ran.stdout.split() == ["0", "0", str(SLICE - CONTEXT)], ran.stderr


def test_imported_memory_is_its_exporters(make_box: MakeBox) -> None:
    """By IPC handle, by descriptor, and of another API: on a full slice, and nothing is counted."""
    exporter, importer = make_box("one"), make_box("other")
    exporter.allow(SLICE)
    importer.allow(SLICE)
    owner, guest = exporter.start(), importer.start()
    before = room(guest)
    assert owner(f"alloc 1 {500 * MIB}") == [0]
    result, file = owner(f"create_shared 2 {500 * MIB}")
    assert result == 0
    assert guest(f"alloc 9 {before}") == [0]
    assert guest(f"ipc_open 1 {told(owner, 'ipc 1')}") == [0]
    assert guest(f"import 2 {owner.pid} {file}") == [0]
    assert guest(f"map 3 2 {500 * MIB}") == [0]
    assert guest(f"external {500 * MIB} {owner.pid} {file}") == [0]
    assert room(guest) == 0
    assert guest(f"unmap 3 {500 * MIB}") == [0]
    assert guest("release 2") == [0]
    assert guest("ipc_close 1") == [0]
    assert guest("free 9") == [0]

    assert room(guest) == before
    assert before - room(owner) == 1000 * MIB


@pytest.mark.parametrize("is_mapped", [False, True])
def test_exported_memory_is_charged_until_its_exporter_ends(box: Box, *, is_mapped: bool) -> None:
    """A descriptor in any process keeps it on the card; it was free once it was released."""
    program, other = box.start(), box.start()
    before = room(program)
    assert program(f"create_shared 2 {500 * MIB}")[0] == 0
    if is_mapped:
        assert program(f"map 3 2 {500 * MIB}") == [0]
    assert program("release 2") == [0]
    if is_mapped:
        assert program(f"unmap 3 {500 * MIB}") == [0]
    assert before - room(program) == 500 * MIB
    for number in range(4, 7):  # the driver gives the handle again
        assert program(f"create {number} {2 * MIB}") == [0]
        assert program(f"release {number}") == [0]
    assert before - room(other) == 500 * MIB
    program.kill()

    assert room(other) > before
