"""No call takes a byte more than the slice has, by any way to ask for memory; all of it can be had."""

import subprocess

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, Program, room

CHUNK = 2 * MIB  # of physical memory
POOL_CHUNK = 32 * MIB  # by which the driver's pools grow


def allow_two_cards(box: Box) -> None:
    """The usual slice of the first card, 1000 MiB of the second."""
    first, second = box.node.uuids[:2]
    devices = f"device={first} memory_bytes={SLICE}\ndevice={second} memory_bytes={1000 * MIB}"
    box.write(f"version=1\nslice=a\n{devices}\n")


@pytest.mark.parametrize(
    ("ask", "give_back", "step"),
    [
        pytest.param("alloc 1 {}", "free 1", 1, id="cuMemAlloc"),
        pytest.param("managed 1 {}", "free 1", 1, id="cuMemAllocManaged"),
        pytest.param("pitch 1 {rows} 1024", "free 1", 512 * 1024, id="cuMemAllocPitch"),
        pytest.param("create 1 {}", "release 1", CHUNK, id="cuMemCreate"),
        pytest.param("async 1 {}", "free_async 1", POOL_CHUNK, id="cuMemAllocAsync"),
        pytest.param("from_pool 1 9 {}", "free_async 1", POOL_CHUNK, id="cuMemAllocFromPoolAsync"),
        pytest.param("array 1 {row16} 1024 1 1", "array_destroy 1", 1024, id="cuArrayCreate"),
        pytest.param("array3d 1 {layer} 64 64 1 1", "array_destroy 1", 4096, id="cuArray3DCreate"),
    ],
)
def test_the_last_step_fits_and_one_more_does_not(
    box: Box, ask: str, give_back: str, step: int
) -> None:
    """Limit minus a step, the limit, the limit plus a step (R-561)."""
    program = box.start()
    assert program("pool 9") == [0]
    most = room(program) // step * step

    def line(size: int) -> str:
        return ask.format(size, rows=size // 1024, row16=size // 1024, layer=size // 4096)

    assert program(line(most + step))[0] == OUT_OF_MEMORY
    assert program(line(most))[0] == 0
    assert room(program) < step
    assert program(give_back)[0] == 0
    program("sync")
    assert program(line(most - step))[0] == 0
    # Less where the driver, which hands out whole blocks, took more than was asked.
    assert room(program) < 2 * step


def test_all_of_the_slice_can_be_had(box: Box) -> None:
    """What contexts leave is usable to the byte."""
    program = box.start()
    free = room(program)
    used_by_context = SLICE - free

    assert program(f"alloc 1 {free}") == [0]
    assert program("alloc 2 1") == [OUT_OF_MEMORY]
    assert used_by_context < 500 * MIB
    assert room(program) == 0


def test_what_is_freed_can_be_had_again(box: Box) -> None:
    """A thousand times, without a byte lost."""
    program = box.start()
    before = room(program)
    for _ in range(1000):
        assert program("alloc 1 1000000") == [0]
        assert program("free 1") == [0]

    assert room(program) == before


def test_host_memory_is_not_the_slices(box: Box) -> None:
    """Pinned memory of the host is not counted, and not refused when the slice is full."""
    program = box.start()
    free = room(program)
    assert program(f"alloc 1 {free}") == [0]

    assert program(f"host {64 * MIB}") == [0]
    assert room(program) == 0


def test_a_pitch_is_charged_as_the_driver_makes_it(box: Box) -> None:
    """Seen elsewhere: the pitch was guessed from the element size, and undercounted."""
    program = box.start()
    before = room(program)
    result, pitch = program("pitch 1 1000 2048")

    assert (result, pitch) == (0, 1024)
    assert before - room(program) == pitch * 2048


def test_physical_memory_lives_until_the_last_handle_and_mapping(box: Box) -> None:
    """Released but mapped memory still counts."""
    program = box.start()
    before = room(program)
    size = 64 * MIB
    assert program(f"create 1 {size}") == [0]
    assert program(f"map 2 1 {size}") == [0]
    assert program("release 1") == [0]
    assert before - room(program) == size
    assert program("retain_handle 3 2") == [0]
    assert program(f"unmap 2 {size}") == [0]
    assert before - room(program) == size
    assert program("release 3") == [0]

    assert room(program) == before


def test_physical_memory_can_be_had_without_a_context_while_a_graph_is_recorded(box: Box) -> None:
    """Seen in HAMi-core 186, 187, 192: NCCL's cuMemCreate crashed, the device unknown."""
    other = f"device={box.node.uuids[1]} memory_bytes={100 * MIB}"
    box.write(f"version=1\nslice=a\ndevice={box.node.uuids[0]} memory_bytes={SLICE}\n{other}\n")
    ran = box.run("nccl", str(102 * MIB))

    assert ran.stdout.split() == ["0", str(OUT_OF_MEMORY), "0"], ran.stderr


# The C library gives freed memory to any thread, and so the simulated driver its handles' numbers.
ONE_HEAP = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"


def test_threads_may_unmap_while_others_get_the_same_handle(any_box: Box) -> None:
    """The last mapping ended, and the number was another thread's memory before that was counted."""
    ran = any_box.run("mapped", "8", "3000", GLIBC_TUNABLES=ONE_HEAP)

    assert ran.stdout == "0 0\n", ran.stderr


def test_a_pool_is_charged_what_it_keeps(box: Box) -> None:
    """Seen elsewhere: freed to the pool is not freed to the slice."""
    program = box.start()
    before = room(program)
    assert program(f"pool_keep default {1 << 40}") == [0]
    assert program(f"async 1 {100 * MIB}") == [0]
    assert program("free_async 1") == [0]
    assert program("sync") == [0]
    assert before - room(program) >= 100 * MIB
    # Asking for the room makes the driver give the unused back.
    assert program(f"alloc 2 {before}") == [0]


def test_a_pool_of_ones_own_is_charged_too(box: Box) -> None:
    """Seen elsewhere: cuMemAllocFromPoolAsync was an uncounted bypass."""
    program = box.start()
    before = room(program)
    assert program("pool 1") == [0]
    assert program(f"from_pool 2 1 {100 * MIB}") == [0]
    assert before - room(program) >= 100 * MIB
    assert program(f"from_pool 3 1 {before}") == [OUT_OF_MEMORY]
    assert program("free_async 2") == [0]
    assert program("sync") == [0]
    assert program("pool_destroy 1") == [0]

    assert room(program) == before


def test_a_call_for_no_pool_leaves_the_charge_of_a_destroyed_one(box: Box) -> None:
    """A free place of the table was found for it, and what stood there was taken off once more."""
    program = box.start()
    assert program(f"alloc 5 {600 * MIB}") == [0]
    assert program("pool 1") == [0]
    assert program(f"from_pool 2 1 {1024 * MIB}") == [0]
    assert program("pool_destroy 1") == [0]
    region = Region(box.root / "state" / "region")
    before = region.used(0)
    assert program("pool_trim 40") != [0]
    assert program("pool_destroy 40") != [0]
    used = region.used(0)
    region.close()

    assert (used, before) == (1624 * MIB, 1624 * MIB)


@pytest.mark.parametrize("free", ["free_async", "free"])
def test_a_destroyed_pool_is_charged_until_the_last_piece_of_it_is_freed(
    box: Box, free: str
) -> None:
    """The driver keeps its chunks as long, and no longer; a second destroy is refused."""
    program = box.start(GPU_SIMULATOR_MODULE_MIB="50", CUDA_MODULE_LOADING="EAGER")
    before = room(program)
    assert program("pool 1") == [0]
    for number in (2, 3):
        assert program(f"from_pool {number} 1 {300 * MIB}") == [0]
    assert program(f"{free} 2") == [0]
    assert program("pool_destroy 1") == [0]
    assert program("pool_destroy 1") != [0]
    assert program("from_pool 4 1 1000") != [0]
    assert before - room(program) == 320 * MIB  # whole chunks
    assert program("module") == [0]  # what is taken meanwhile is measured
    assert before - room(program) == 370 * MIB
    assert program(f"{free} 3") == [0]
    assert program("sync") == [0]

    assert before - room(program) == 50 * MIB


def test_many_destroyed_pools_never_hold_more_than_the_slice(box: Box) -> None:
    """A byte out of each keeps a chunk of 32 MiB on the card: it was charged as a byte."""
    program = box.start()
    results = []
    for number in range(0, 160, 2):
        assert program(f"pool {number}") == [0]
        results += program(f"from_pool {number + 1} {number} 1")
        assert program(f"pool_destroy {number}") == [0]

    assert results.count(0) == (SLICE - 240 * MIB) // POOL_CHUNK
    assert results[-1] == OUT_OF_MEMORY
    assert box.node.held_peak() <= SLICE


def test_a_device_draws_from_its_default_pool_after_its_own_was_destroyed(box: Box) -> None:
    """Also while something is out of the destroyed one."""
    program = box.start()
    assert program("pool 1") == [0]
    assert program("pool_use 1") == [0]
    assert program("async 2 1000") == [0]
    assert program("pool_destroy 1") == [0]

    assert program("async 3 1000") == [0]
    assert program("free_async 2") == [0]
    assert program("free_async 3") == [0]


def test_a_default_pool_is_not_destroyed(box: Box) -> None:
    """The driver refuses it, with memory out of it too."""
    program = box.start()
    assert program("pool_default 1 0") == [0]
    assert program("async 2 1000") == [0]

    assert program("pool_destroy 1") != [0]
    assert program("async 3 1000") == [0]


def test_what_a_pool_has_itself_is_not_counted_as_refused(box: Box) -> None:
    """On a full slice: only what was refused is, once."""
    program = box.start()
    assert program("async 1 20000000") == [0]
    assert program(f"alloc 2 {room(program) - 1000000}") == [0]
    region = Region(box.root / "state" / "region")
    for number in range(3, 6):
        assert program(f"async {number} 1000") == [0]
    had = region.refused()
    assert program(f"async 6 {POOL_CHUNK}") == [OUT_OF_MEMORY]
    refused = region.refused()
    region.close()

    assert (had, refused) == (0, 1)


def test_a_pool_that_need_not_grow_takes_no_room_from_other_processes(any_box: Box) -> None:
    """For the time of each call a chunk was reserved, and others were refused meanwhile."""
    with subprocess.Popen(
        [any_box.programs / "inside", "pool"],
        env=any_box.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as pool:
        assert pool.stdout
        assert pool.stdout.readline() == "0\n"
        refused = any_box.run("inside", "linear", "10000").stdout
        pool.kill()

    # Of hundreds; a machine that takes the core from the pool for long may still cost one.
    assert int(refused) <= 20


def test_a_pool_in_a_full_slice_keeps_the_room_that_it_serves_from(box: Box) -> None:
    """A piece that the pool had room for made every pool give its chunks back first."""
    program = box.start()
    region = Region(box.root / "state" / "region")
    assert program(f"pool_keep default {1 << 40}") == [0]
    assert program(f"async 1 {512 * MIB}") == [0]
    assert program("free_async 1") == [0]
    assert program("sync") == [0]
    assert program(f"alloc 2 {room(program) - 8 * MIB}") == [0]
    before = region.used(0)
    assert program(f"async 3 {MIB}") == [0]
    used, refused = region.used(0), region.refused()
    region.close()

    assert used == before
    assert refused == 0


def test_another_cards_default_pool_is_held_against_that_card(box: Box) -> None:
    """It was taken for another process's, and nobody was charged; without a line there is none."""
    allow_two_cards(box)
    program = box.start()
    before = room(program)
    assert program("pool_default 1 1") == [0]
    assert program(f"from_pool 2 1 {1001 * MIB}") == [OUT_OF_MEMORY]
    assert program(f"from_pool 2 1 {500 * MIB}") == [0]
    assert program("pool_default 3 2") == [0]
    assert program(f"from_pool 4 3 {MIB}") == [OUT_OF_MEMORY]
    region = Region(box.root / "state" / "region")
    used = region.used(0, card=1)
    region.close()

    assert used == 512 * MIB  # whole chunks
    assert room(program) == before


def test_what_is_less_than_a_pools_chunk_is_there_for_others(box: Box) -> None:
    """A pool grows as on a card of that size: by whole chunks. All the rest can be had otherwise."""
    program = box.start()
    chunks, rest = divmod(room(program), POOL_CHUNK)
    for number in range(chunks * POOL_CHUNK // CHUNK):
        assert program(f"async {number} {CHUNK}") == [0]
    assert program(f"async 4000 {CHUNK}") == [OUT_OF_MEMORY]
    assert room(program) == rest
    assert program(f"alloc 4001 {rest}") == [0]
    assert program("alloc 4002 1") == [OUT_OF_MEMORY]

    assert room(program) == 0


def test_unused_chunks_of_a_pool_are_given_up_before_anything_is_refused(box: Box) -> None:
    """Of another pool, and kept by its threshold."""
    program = box.start()
    before = room(program)
    assert program("pool 1") == [0]
    assert program(f"pool_keep 1 {1 << 40}") == [0]
    assert program(f"from_pool 2 1 {before // POOL_CHUNK * POOL_CHUNK}") == [0]
    assert program("free_async 2") == [0]
    assert program("sync") == [0]

    assert program(f"async 3 {before // POOL_CHUNK * POOL_CHUNK}") == [0]


@pytest.mark.parametrize("exact", ["0", "1"])
@pytest.mark.parametrize(
    "sizes", [[1000, 100], [950, 32], [640, 640, 64], [1000, 600, 100, 1], [1, 1000, 2, 600, 100]]
)
def test_a_pool_gives_what_fits_whatever_it_grew_by_before(
    box: Box, sizes: list[int], exact: str
) -> None:
    """The first growth was taken for the least; 100 MiB were refused with 890 MiB free."""
    program = box.start(GPU_SIMULATOR_POOL_EXACT=exact)
    assert program("pool 1") == [0]
    for number, mib in enumerate(sizes[:-1]):
        assert program(f"async {number + 2} {mib * MIB}") == [0]

    assert program(f"async 100 {sizes[-1] * MIB}") == [0]
    # Another pool grows by what it needs itself.
    assert program(f"from_pool 101 1 {32 * MIB}") == [0]


def test_a_pool_takes_the_last_megabytes_where_the_driver_gives_them(box: Box) -> None:
    """The guess of a growth was held against the slice, though the driver took what was asked."""
    program = box.start(GPU_SIMULATOR_POOL_EXACT="1")
    assert program(f"async 1 {100 * MIB}") == [0]
    assert program(f"alloc 2 {room(program) - 51 * MIB}") == [0]
    assert program(f"async 3 {50 * MIB}") == [0]

    assert room(program) == MIB


def test_a_pool_whose_room_is_in_pieces_gives_what_fits(box: Box) -> None:
    """In whole chunks it would not: the driver has shown that what is larger comes as asked."""
    program = box.start(GPU_SIMULATOR_POOL_EXACT="1", GPU_SIMULATOR_POOL_PIECE_MIB="29")
    assert program("pool_keep default 1") == [0]
    assert program(f"async 1 {2 * MIB}") == [0]  # 30 of its 32 MiB are unused
    assert program("pool 8") == [0]
    assert program(f"from_pool 9 8 {50 * MIB}") == [0]  # grows by 50
    assert program(f"alloc 2 {room(program) - 44 * MIB}") == [0]
    assert program(f"async 3 {60 * MIB}") == [OUT_OF_MEMORY]  # lacks 30, grows by 60
    assert program(f"async 4 {29 * MIB}") == [0]

    assert program(f"async 5 {40 * MIB}") == [0]  # lacks 39, grows by 40


def test_a_refused_growth_of_a_pool_leaves_nothing(box: Box) -> None:
    """And is counted once each time."""
    program = box.start()
    assert program("pool_keep default 1") == [0]
    assert program(f"alloc 2 {room(program) - 20 * MIB}") == [0]
    for _ in range(3):
        assert program(f"async 3 {MIB}") == [OUT_OF_MEMORY]
        assert room(program) == 20 * MIB
    region = Region(box.root / "state" / "region")
    refused = region.refused()
    region.close()
    assert refused == 3
    assert program("free 2") == [0]

    assert program(f"async 3 {MIB}") == [0]


def test_a_pool_may_grow_by_more_than_it_ever_did(box: Box) -> None:
    """Drivers may take a chunk for the small and no more than asked for the large."""
    program = box.start(GPU_SIMULATOR_POOL_EXACT="1")
    before = room(program)
    assert program(f"pool_keep default {1 << 40}") == [0]
    # The large take what is asked, the small one takes 32.
    for number, mib in enumerate([100, 66, 1]):
        assert program(f"async {number} {mib * MIB}") == [0]
    assert before - room(program) == (100 + 66 + 32) * MIB
    # Its chunk is full, and the next again larger than asked; nothing is left that was not used.
    assert program(f"async 4 {31 * MIB}") == [0]
    assert program(f"async 5 {1 * MIB}") == [0]

    assert before - room(program) == (100 + 66 + 32 + 32) * MIB


def test_a_pools_growth_beyond_the_slice_is_refused_after_larger_ones(box: Box) -> None:
    """The call fails, nothing of it stays, and the books know."""
    program = box.start(GPU_SIMULATOR_POOL_EXACT="1")
    assert program(f"pool_keep default {1 << 40}") == [0]
    for number, mib in enumerate([100, 66]):
        assert program(f"async {number} {mib * MIB}") == [0]
    before = room(program)
    # Leaves less than a chunk and more than what is asked next.
    assert program(f"alloc 2 {before - 20 * MIB}") == [0]
    assert program(f"async 3 {1 * MIB}") == [OUT_OF_MEMORY]
    assert room(program) == 20 * MIB
    assert program("free 2") == [0]

    assert room(program) == before


def test_a_mipmap_costs_all_its_levels(box: Box) -> None:
    """Seen elsewhere: the bytes of mipmapped arrays were never added."""
    program = box.start()
    before = room(program)
    # In whole blocks: what a card rounds up is found out at some time, and stays for a while.
    assert program("mipmap 1 4096 2048 3") == [0]
    asked = 4 * (4096 * 2048 + 2048 * 1024 + 1024 * 512)
    assert asked <= before - room(program) < asked + 2 * MIB  # the driver takes whole blocks
    assert program("mipmap_destroy 1") == [0]

    assert room(program) == before


def test_an_allocation_node_is_charged_when_its_graph_runs(box: Box) -> None:
    """Seen elsewhere: graph allocation nodes were a bypass."""
    program = box.start()
    before = room(program)
    assert program(f"graph 1 {100 * MIB}") == [0]
    assert program("graph_launch 1") == [0]
    assert before - room(program) >= 100 * MIB
    assert program("graph_launch 1") == [0]
    assert program(f"graph 2 {before + CHUNK}") == [0]
    assert program("graph_launch 2") == [OUT_OF_MEMORY]
    assert program("graph_trim") == [0]

    assert room(program) == before


def test_graphs_together_never_take_more_than_the_slice(box: Box) -> None:
    """Four of 600 MiB in 2154: what one does not use is given up before the next has its own."""
    program = box.start()
    most = room(program)
    region = Region(box.root / "state" / "region")
    for number in range(4):
        assert program(f"graph {number} {600 * MIB}") == [0]
    used = []
    for number in (0, 1, 2, 3, 0, 1):
        assert program(f"graph_launch {number}") == [0]
        used.append(region.used(0))
    refused = region.refused()
    region.close()

    assert max(used) <= most
    assert refused == 0


def needs_room_for_its_nodes(program: Program, nodes: int, taken_bytes: int) -> None:
    """A graph of so many nodes of one byte launches where there is this much room, and not a byte less."""
    most = room(program)
    assert program(f"graph 1 1 0 {nodes}") == [0]
    assert program(f"alloc 2 {most - taken_bytes + 1}") == [0]
    assert program("graph_launch 1") == [OUT_OF_MEMORY]
    assert program("free 2") == [0]
    assert program(f"alloc 2 {most - taken_bytes}") == [0]

    assert program("graph_launch 1") == [0]
    assert room(program) == 0


def test_every_allocation_node_takes_whole_blocks(box: Box) -> None:
    """Five hundred of one byte are 1000 MiB to the driver."""
    program = box.start()
    needs_room_for_its_nodes(program, 500, 500 * CHUNK)


def test_an_allocation_node_is_held_against_the_card_that_it_names(box: Box) -> None:
    """Not the one that the stream runs on; a card without a line has no memory."""
    allow_two_cards(box)
    program = box.start()
    assert program("retain 1") == [0]
    assert program("retain") == [0]
    before = room(program)
    for number, (size, card) in enumerate([(1002, 1), (2, 2), (500, 1)]):
        assert program(f"graph {number} {size * MIB} {card}") == [0]
    assert program("graph_launch 0") == [OUT_OF_MEMORY]
    assert program("graph_launch 1") == [OUT_OF_MEMORY]
    assert program("graph_launch 2") == [0]
    region = Region(box.root / "state" / "region")
    used = region.used(0, card=1)
    region.close()

    assert used == 500 * MIB
    assert room(program) == before


def test_an_allocation_node_may_name_a_card_without_a_context(box: Box) -> None:
    """The driver needs none there; what it takes is held against that card all the same."""
    allow_two_cards(box)
    program = box.start()
    assert program(f"graph 1 {1002 * MIB} 1") == [0]
    assert program(f"graph 2 {500 * MIB} 1") == [0]
    assert program("graph_launch 1") == [OUT_OF_MEMORY]
    assert program("graph_launch 2") == [0]
    region = Region(box.root / "state" / "region")
    used = region.used(0, card=1)
    region.close()

    assert used == 500 * MIB


def test_a_graph_in_use_launches_again_after_a_call_was_refused(box: Box) -> None:
    """Room for all of it was asked for once more, though making room had taken nothing from it."""
    program = box.start()
    assert program(f"graph 1 {1200 * MIB} 0 1 kept") == [0]
    assert program("graph_launch 1") == [0]
    assert program("graph_launch 1") == [0]
    assert program(f"alloc 2 {1500 * MIB}") == [OUT_OF_MEMORY]

    assert program("graph_launch 1") == [0]


def test_the_driver_says_in_which_blocks_graphs_take_memory(box: Box) -> None:
    """Blocks of 16 MiB instead of 2: ten nodes of one byte are 160."""
    program = box.start(GPU_SIMULATOR_GRANULARITY_BYTES=str(16 * MIB))
    needs_room_for_its_nodes(program, 10, 160 * MIB)


def test_what_graphs_take_beyond_what_the_driver_says_is_charged(box: Box) -> None:
    """Nobody promises that their blocks are those of cuMemCreate."""
    program = box.start(GPU_SIMULATOR_GRAPH_BLOCK_BYTES=str(8 * MIB))
    most = room(program)
    assert program("graph 1 1 0 10") == [0]
    assert program("graph_launch 1") == [0]
    assert most - room(program) == 80 * MIB
    assert program("graph_trim") == [0]
    assert room(program) == most


def test_a_graph_uploaded_when_it_is_made_is_held_against_the_slice(box: Box) -> None:
    """CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD took its memory before anybody asked the books."""
    program = box.start()
    before = room(program)
    assert program(f"graph_uploaded 1 {before + CHUNK}")[0] == OUT_OF_MEMORY
    assert room(program) == before
    assert program(f"graph_uploaded 2 {100 * MIB}") == [0, 0]
    region = Region(box.root / "state" / "region")
    used = region.used(0)
    region.close()
    assert used == 100 * MIB
    assert program("graph_launch 2") == [0]

    assert before - room(program) == 100 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_an_updated_graph_is_held_against_the_slice_as_a_new_one(box: Box, version: int) -> None:
    """cuGraphExecUpdate: launched before, its next launch reserved nothing and took anything."""
    program = box.start()
    before = room(program)
    assert program(f"graph 1 {10 * MIB}") == [0]
    assert program("graph_launch 1") == [0]
    assert program(f"graph_update 1 {before + CHUNK} {version}") == [0]
    assert program("graph_launch 1") == [OUT_OF_MEMORY]
    assert program(f"graph_update 1 {100 * MIB} {version}") == [0]
    assert program("graph_launch 1") == [0]

    assert before - room(program) == 100 * MIB


def test_the_end_of_a_context_gives_its_memory_back(box: Box) -> None:
    """What was allocated in it, and what it cost itself."""
    program = box.start()
    before = room(program)
    assert program("context 1") == [0]
    assert program("alloc 2 1000000") == [0]
    assert program("context_destroy 1") == [0]
    assert program("retain") == [0]

    assert room(program) == before


def test_a_context_that_does_not_fit_is_refused_once_its_cost_is_known(make_box: MakeBox) -> None:
    """The first is measured, the second has to fit beside what is held."""
    box = make_box()
    box.allow(600 * MIB)
    first = box.start()
    assert first(f"alloc 1 {room(first)}") == [0]
    second = box.start(ready=False)
    assert second("init") == [0]

    assert second("retain") == [OUT_OF_MEMORY]


def test_a_first_context_larger_than_the_slice_leaves_nothing(make_box: MakeBox) -> None:
    """Its cost could not be known before: from then on everything is refused."""
    box = make_box()
    box.allow(100 * MIB)
    program = box.start()

    assert room(program) == 0
    assert program("alloc 1 1") == [OUT_OF_MEMORY]


def test_modules_count(box: Box) -> None:
    """Loaded code is memory that no allocation call asked for."""
    program = box.start(GPU_SIMULATOR_MODULE_MIB="50", CUDA_MODULE_LOADING="EAGER")
    before = room(program)
    assert program("module") == [0]

    assert before - room(program) == 50 * MIB


def test_a_card_that_is_not_ours_has_no_memory(box: Box) -> None:
    """A card without a line: its cap is 0 bytes."""
    program = box.start()

    assert program("total 1") == [0, 0]
    assert program("context 1 1") == [OUT_OF_MEMORY]
    assert program(f"create 1 {CHUNK} 1") == [OUT_OF_MEMORY]


def test_a_card_without_a_cap_is_whole(make_box: MakeBox) -> None:
    """A missing memory_bytes is no cap."""
    box = make_box()
    box.allow(None)
    program = box.start()

    assert program("total") == [0, 16160 * MIB]


def test_a_pointer_we_do_not_know_is_freed_by_the_driver(box: Box) -> None:
    """Seen elsewhere: freeing an untracked pointer returned -1 and did nothing."""
    program = box.start()

    assert program("free 9") == [0]  # a null pointer: nothing to free


def test_a_mig_instance_can_be_sliced(make_box: MakeBox) -> None:
    """It is known by its own UUID, as CUDA shows it."""
    box = make_box(profile="a100-mig", driver=None)
    instance = box.node.instances[0]
    box.write(f"version=1\nslice=a\ndevice={instance} memory_bytes={1000 * MIB}\n")
    program = box.start(NVIDIA_VISIBLE_DEVICES=instance, CUDA_VISIBLE_DEVICES=instance)
    free = room(program)

    assert program("total") == [0, 1000 * MIB]
    assert program(f"alloc 1 {free + 1}") == [OUT_OF_MEMORY]
    assert program(f"alloc 1 {free}") == [0]
