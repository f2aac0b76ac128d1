"""Memory that nobody asks for is counted by whichever way there is to know it."""

import asyncio
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, Program, room
from tools.harness.waiting import until

CONTEXT = 240 * MIB  # of the simulated V100
TABLE = 32 * MIB + 80 * 2048 * 1920  # what its size suggests


def test_without_nvml_the_first_context_costs_what_the_table_says(box_without_nvml: Box) -> None:
    """Nothing can be measured before there is a context."""
    program = box_without_nvml.start()

    assert room(program) == SLICE - TABLE


def test_in_a_pid_namespace_the_cost_is_measured_too(box_in_namespace: Box) -> None:
    """NVML's pid is believed only after our first context made it appear."""
    lines = "init\nretain\ninfo\nalloc 1 1000000\ninfo\nprocesses 3\n"
    ran = box_in_namespace.tell(lines)
    answers = ran.stdout.splitlines()

    result, free, _ = map(int, answers[2].split())
    assert (result, free) == (0, SLICE - CONTEXT), ran.stderr
    # Process 1 of its own namespace, as it sees itself.
    assert answers[5].split()[1].startswith("1:")


def test_a_neighbour_of_another_namespace_is_not_reaped(box: Box) -> None:
    """Two processes of one container in different pid namespaces hold their parts."""
    first = box.start()
    assert first(f"alloc 1 {1500 * MIB}") == [0]
    box.enter_namespaces()
    ran = box.tell(f"init\nretain\nalloc 1 {1000 * MIB}\n")

    assert ran.stdout.split() == ["0", "0", str(OUT_OF_MEMORY)], ran.stderr


def stop_in_context(box: Box, file: Path) -> Program:
    """A program that stands still with its context made and not yet measured, as long as `file`."""
    box.library = "libgpuslice-testing.so"
    program = box.start(
        ready=False, GPUSLICE_PAUSEPOINT="context_made", GPUSLICE_PAUSEFILE=str(file)
    )
    assert program("init") == [0]
    program.tell("retain")
    asyncio.run(until(file.exists, 20))
    return program


def make_context_beside(box: Box, other: Program, file: Path, mib: int) -> Program:
    """A program that makes its context while another container's takes so much of the card."""
    program = stop_in_context(box, file)
    assert other(f"alloc 1 {mib * MIB}") == [0]
    file.unlink()
    assert program.answer() == [0]
    return program


@pytest.fixture
def neighbour(make_box: MakeBox) -> Program:
    """A program of another container on the card."""
    box = make_box("neighbour")
    box.allow(4096 * MIB)
    return box.start()


@pytest.mark.parametrize("mib", [100, 2000])
def test_a_neighbours_memory_is_not_kept_as_the_price_of_a_context(
    box_in_namespace: Box, neighbour: Program, tmp_path: Path, mib: int
) -> None:
    """It came while the card was watched; the next contexts cost what they cost."""
    box = box_in_namespace
    make_context_beside(box, neighbour, tmp_path / "waiting", mib).kill()
    for _ in range(2):
        program = box.start()
        assert room(program) == SLICE - CONTEXT
        program.kill()
    program = box.start()
    assert program(f"alloc 1 {SLICE - 2 * CONTEXT}") == [0]
    last = box.start()

    assert room(last) == 0


def test_without_nvml_a_graphs_memory_is_counted_once(box_without_nvml: Box) -> None:
    """Its first launch is watched for code, and what its nodes take is charged already."""
    program = box_without_nvml.start()
    before = room(program)
    assert program(f"graph 1 {100 * MIB}") == [0]
    assert program("graph_launch 1") == [0]

    assert before - room(program) == 100 * MIB


@pytest.mark.parametrize("first", ["launch 1000", "graph_launch 1"])
def test_lazily_loaded_code_is_found_out(box: Box, first: str) -> None:
    """It comes with the first launch, for which no allocation call is made."""
    program = box.start(GPU_SIMULATOR_MODULE_MIB="300", CUDA_MODULE_LOADING="LAZY")
    before = room(program)
    assert program("kernel_graph 1 1000 1") == [0]
    assert program(first) == [0]
    assert program("sync") == [0]

    assert before - room(program) == 300 * MIB
    assert program(f"alloc 1 {before - 299 * MIB}") == [OUT_OF_MEMORY]


def test_code_is_measured_after_somebody_ended_nvml_once_too_often(box: Box) -> None:
    """The last end takes the library's own start away; then code was never measured again."""
    program = box.start(GPU_SIMULATOR_MODULE_MIB="300")
    before = room(program)
    assert program("nvml")[0] == 0
    assert program("nvml_end")[0] >= 1
    assert program("kernel_graph 1 1000 1") == [0]
    assert program("launch 1000") == [0]
    assert program("sync") == [0]

    assert before - room(program) == 300 * MIB


def allow_two_cards(box: Box, memory_bytes: int) -> None:
    """Limits of this size on the first two cards."""
    lines = [f"device={uuid} memory_bytes={memory_bytes}" for uuid in box.node.uuids[:2]]
    box.write("\n".join(["version=1", f"slice={box.root.name}", *lines, ""]))


@pytest.mark.parametrize(
    ("way", "brought"),
    [
        pytest.param("kernel", (300, 0), id="a kernel"),
        pytest.param("graph", (300, 0), id="a graph"),
        pytest.param("together", (300, 300), id="one launch for both"),
        pytest.param("shared", (300, 300), id="a handle that both share"),
        pytest.param("recorded", (300, 0), id="what was recorded before"),
    ],
)
def test_code_is_held_against_the_card_of_its_stream(
    box: Box, way: str, brought: tuple[int, int]
) -> None:
    """Another card's context is current; what was free there before can not be had any more."""
    allow_two_cards(box, SLICE)
    ran = box.run("lazy", way, GPU_SIMULATOR_MODULE_MIB="300", CUDA_MODULE_LOADING="LAZY")
    result, *taken, asked = map(int, ran.stdout.split())

    assert result == 0, ran.stderr
    assert [taken[0] // MIB, taken[1] // MIB] == list(brought)
    assert asked == OUT_OF_MEMORY


def start_lazily(box: Box) -> Program:
    """Each module is 300 MiB of code, which comes with the first launch."""
    box.variables["GPU_SIMULATOR_MODULE_MIB"] = "300"
    box.variables["CUDA_MODULE_LOADING"] = "LAZY"
    return box.start()


@pytest.mark.parametrize("way", ["attribute", "registers", "occupancy", "module"])
def test_code_that_a_question_brings_is_found_out(box: Box, way: str) -> None:
    """With lazy loading whatever asks about a function loads it, before any launch."""
    program = start_lazily(box)
    before = room(program)
    assert program("library") == [0]
    assert program(f"ask {way}") == [0]

    assert before - room(program) == 300 * MIB


def test_an_executable_graph_costs_memory_until_it_is_destroyed(box: Box) -> None:
    """It takes it when it is made, without any allocation."""
    box.variables["GPU_SIMULATOR_GRAPH_MIB"] = "40"
    box.variables["GPU_SIMULATOR_GRAPH_LAUNCH_MIB"] = "0"
    program = box.start()
    before = room(program)
    assert program("kernel_graph 1 1000 1") == [0]
    assert before - room(program) == 40 * MIB
    assert program(f"alloc 2 {before}") == [OUT_OF_MEMORY]
    assert program("graph_destroy 1") == [0]

    assert room(program) == before


def launch_code(program: Program, mib: int) -> None:
    """A launch that brings so much code."""
    before = room(program)
    assert program("launch 1000") == [0]
    assert program("sync") == [0]
    assert before - room(program) == mib * MIB


def test_a_known_kernel_brings_its_code_to_a_second_context(box: Box) -> None:
    """It has one handle for both, and its code in each."""
    program = start_lazily(box)
    assert program("library") == [0]
    launch_code(program, 300)
    launch_code(program, 0)
    assert program("context 1") == [0]
    launch_code(program, 300)
    launch_code(program, 0)
    free = room(program)

    assert program(f"alloc 1 {free + 1}") == [OUT_OF_MEMORY]
    assert program(f"alloc 1 {free}") == [0]


def test_a_known_kernel_brings_its_code_again_after_a_reset(box: Box) -> None:
    """What it brought before went with the context, and is free again."""
    program = start_lazily(box)
    before = room(program)
    assert program("library") == [0]
    for _ in range(3):
        launch_code(program, 300)
        assert program("reset") == [0]
        assert program("retain") == [0]
        assert room(program) == before


@pytest.mark.parametrize("kind", ["module", "library"])
def test_code_is_free_again_when_it_is_unloaded(box: Box, kind: str) -> None:
    """Also where its functions' handles come again with the next that is loaded."""
    program = start_lazily(box)
    before = room(program)
    for _ in range(10):
        assert program(kind) == [0]
        launch_code(program, 300)
        assert program(f"{kind}_unload") == [0]
        assert room(program) == before


def test_a_library_is_unloaded_from_all_cards(box: Box) -> None:
    """One of them has no current context."""
    allow_two_cards(box, SLICE)
    ran = box.run("lazy", "unloaded", GPU_SIMULATOR_MODULE_MIB="300", CUDA_MODULE_LOADING="LAZY")

    result, _, on_second, asked = map(int, ran.stdout.split())

    # All that was free before can be had again.
    assert (result, on_second, asked) == (0, 0, 0), ran.stderr


def test_any_number_of_functions_is_watched(box: Box) -> None:
    """Five thousand, each with a module of its own: more than the first table of them holds."""
    allow_two_cards(box, 8192 * MIB)
    ran = box.run("lazy", "many", "5000", GPU_SIMULATOR_MODULE_MIB="1", CUDA_MODULE_LOADING="LAZY")
    result, _, taken, _ = map(int, ran.stdout.split())

    assert (result, taken) == (0, 5000 * MIB), ran.stderr


def test_a_context_is_free_again_when_its_last_user_detaches(box_without_nvml: Box) -> None:
    """With all that was allocated in it; cuCtxDetach is how programs before CUDA 4 end one."""
    program = box_without_nvml.start()
    before = room(program)
    assert program("context 1") == [0]
    assert program(f"alloc 2 {100 * MIB}") == [0]
    assert program("context_attach") == [0]
    assert program("context_detach 1") == [0]
    assert room(program) < before - 100 * MIB
    assert program("context_detach 1") == [0]

    assert room(program) == before


@pytest.fixture
def green_box(box: Box) -> Box:
    """Green contexts take 20 MiB here."""
    box.variables["GPU_SIMULATOR_GREEN_CONTEXT_MIB"] = "20"
    return box


def first_context(box: Box) -> int:
    """What a process's first context is found to cost."""
    program = box.start()
    free = room(program)
    program.kill()
    return SLICE - free


def test_a_green_context_as_first_call_is_measured_as_a_context(green_box: Box) -> None:
    """It makes the primary context live: that costs what it costs any process."""
    cost = first_context(green_box)
    program = green_box.start(ready=False)
    assert program("init") == [0]
    assert program("green 1") == [0]
    assert program("green_current 1") == [0]
    free = room(program)

    assert free == SLICE - cost - 20 * MIB
    assert program(f"alloc 2 {free + 1}") == [OUT_OF_MEMORY]
    assert program(f"alloc 2 {free}") == [0]


def test_a_green_context_that_does_not_fit_is_refused(green_box: Box) -> None:
    """The price of a first context is known by then, and reserved before it is made."""
    first = green_box.start()
    assert first(f"alloc 1 {room(first)}") == [0]
    second = green_box.start(ready=False)
    assert second("init") == [0]

    assert second("green 1") == [OUT_OF_MEMORY]
    assert first("free 1") == [0]
    assert second("green 1") == [0]


def test_a_green_context_of_a_card_that_is_not_ours_is_refused(green_box: Box) -> None:
    """A card without a line: its cap is 0 bytes."""
    program = green_box.start()

    assert program("green 1 1") == [OUT_OF_MEMORY]


def test_what_a_green_context_cost_is_free_when_it_ends(green_box: Box) -> None:
    """A thousand of them, one after the other, cost no more than one."""
    program = green_box.start()
    before = room(program)
    for _ in range(1000):
        assert program("green 1") == [0]
        assert program("green_destroy 1") == [0]

    assert room(program) == before


def test_the_last_green_context_ends_the_primary_one(green_box: Box) -> None:
    """With all that was allocated in it, whichever green context was current."""
    cost = first_context(green_box)
    program = green_box.start(ready=False)
    assert program("init") == [0]
    for number in (1, 2):
        assert program(f"green {number}") == [0]
    assert program("green_current 1") == [0]
    assert program(f"alloc 3 {100 * MIB}") == [0]
    assert program("green_destroy 1") == [0]
    assert program("green_current 2") == [0]
    assert room(program) == SLICE - cost - 120 * MIB
    assert program("green_destroy 2") == [0]
    assert program("retain") == [0]

    assert room(program) == SLICE - cost


def test_a_reset_ends_green_contexts_too(green_box: Box) -> None:
    """They are handles for parts of the primary context, and it is gone."""
    program = green_box.start()
    before = room(program)
    assert program("green 1") == [0]
    assert program("green_current 1") == [0]
    assert program(f"alloc 2 {100 * MIB}") == [0]
    assert program("reset") == [0]
    assert program("green_destroy 1") != [0]
    assert program("retain") == [0]

    assert room(program) == before


def test_a_context_that_threads_make_and_end_at_once_stays_counted(box_without_nvml: Box) -> None:
    """Who retained it while its last user left made it again, and nobody was charged."""
    for _ in range(8):
        ran = box_without_nvml.run("users", "6", "12")

        failures, used_mib = map(int, ran.stdout.split())
        assert failures == 0
        assert used_mib * MIB >= CONTEXT


@pytest.mark.parametrize("way", ["update", "kernel", "node"])
def test_a_new_kernel_of_a_known_graph_counts_before_the_next_allocation(
    box: Box, way: str
) -> None:
    """The graph was launched before, so its launch was not looked at when its kernels were new."""
    ran = box.run("renewed", way, GPU_SIMULATOR_MODULE_MIB="200", CUDA_MODULE_LOADING="LAZY")

    assert ran.stdout == f"0 {OUT_OF_MEMORY}\n"


@pytest.mark.parametrize("way", ["library", "unload", "module"])
def test_loading_code_asks_nvml_seldom(every_box: Box, way: str) -> None:
    """Where a call takes 3 ms, 200 libraries may cost 0.3 s: half a call each. Calls are counted."""
    program = every_box.start(GPU_SIMULATOR_NVML_CALL_US="3000", CUDA_MODULE_LOADING="EAGER")
    assert program("retain") == [0]
    before = program("nvml_calls")[1]
    assert program(f"loads {way} 200") == [0]

    assert program("nvml_calls")[1] - before <= 100


def test_code_that_was_not_measured_yet_is_measured_when_room_is_short(box: Box) -> None:
    """However short the time since the last look, and however long a look takes."""
    program = box.start(
        GPU_SIMULATOR_NVML_CALL_US="20000",
        GPU_SIMULATOR_MODULE_MIB="50",
        CUDA_MODULE_LOADING="EAGER",
    )
    free = room(program)
    assert program("loads module 4") == [0]
    assert program(f"alloc 1 {free - 200 * MIB + 1}") == [OUT_OF_MEMORY]

    assert program(f"alloc 1 {free - 200 * MIB}") == [0]


def test_a_managed_allocation_does_not_end_the_measuring(box: Box) -> None:
    """Nobody knows how much of it is on the card: what that leaves open is what code should take."""
    program = box.start(GPU_SIMULATOR_MODULE_MIB="50", CUDA_MODULE_LOADING="EAGER")
    before = room(program)
    assert program(f"managed 1 {100 * MIB}") == [0]
    assert program("loads module 4") == [0]
    full = room(program)
    assert program("free 1") == [0]

    assert before - 300 * MIB <= full <= before - 200 * MIB
    assert room(program) == before - 200 * MIB


def test_a_context_that_could_not_be_measured_is_when_room_is_short(box: Box) -> None:
    """Beside managed memory NVML's figure proves nothing; then an allocation in its room passed."""
    program = box.start()
    free = room(program)
    assert program(f"alloc 1 {free - 300 * MIB}") == [0]
    assert program(f"managed 2 {MIB}") == [0]
    assert program("context 3") == [0]
    assert program("free 2") == [0]

    assert program(f"alloc 4 {299 * MIB}") == [OUT_OF_MEMORY]


def test_a_context_made_by_an_unknown_call_is_adopted_at_first_sight(every_box: Box) -> None:
    """As those for graphics are, or a later driver's; and it is forgotten when it ends."""
    program = every_box.start()
    before = room(program)
    assert program("context 1") == [0]
    known = room(program)
    assert program("context_destroy 1") == [0]
    assert program("unknown_context 2") == [0]
    adopted = room(program)
    assert program("context_destroy 2") == [0]

    assert known < before
    assert adopted == known
    assert room(program) == before


def test_an_unknown_context_alone_is_held_against_the_slice(every_box: Box) -> None:
    """Nobody has told before what one costs: as NVML says, else the table."""
    program = every_box.start(ready=False)
    assert program("init") == [0]
    assert program("unknown_context 1") == [0]

    assert SLICE - room(program) in {CONTEXT, TABLE}
    assert program(f"alloc 1 {SLICE - CONTEXT + 1}") == [OUT_OF_MEMORY]
