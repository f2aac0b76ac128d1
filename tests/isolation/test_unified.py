"""A card whose memory is the system's (GB10): NVML does not tell of it, and the slice holds.

Seen in kai-scheduler 1967: on such machines the memory limit was not enforced.
"""

import pytest
from tests.isolation.region import Region
from tests.isolation.test_overhead import CONTEXT, TABLE
from tests.isolation.test_views import program_list, selftest
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box, room

NOT_SUPPORTED = 3
SYSTEM_MIB = 122570  # of a DGX Spark, as the operating system shows it


@pytest.fixture(autouse=True)
def _unified(box: Box) -> None:
    """Both of the driver's answers as such machines give them."""
    lines = (f"memory_total_mib={SYSTEM_MIB}", "memory_reserved_mib=0", "memory_unified=1")
    box.node.change(*(f"cards.0.{line}" for line in lines))


def test_the_driver_does_not_tell(box: Box) -> None:
    """What the simulated card is like without us: NVML knows nothing, CUDA the system's memory."""
    program = box.start(LD_PRELOAD="")

    assert program("nvml")[0] == NOT_SUPPORTED
    assert program("nvml2")[0] == NOT_SUPPORTED
    assert program("total") == [0, SYSTEM_MIB * MIB]


@pytest.mark.parametrize("where", ["box", "box_without_nvml"])
def test_a_slice_of_unified_memory_is_enforced(request: pytest.FixtureRequest, where: str) -> None:
    """To the byte, by each kind of call, and across processes."""
    box: Box = request.getfixturevalue(where)
    program = box.start()
    free = room(program)
    for ask in ("alloc 1 {}", "managed 1 {}", "async 1 {}", "create 1 {}"):
        wanted = free // (2 * MIB) * 2 * MIB + 2 * MIB
        assert program(ask.format(wanted)) == [OUT_OF_MEMORY], ask
    assert program(f"alloc 1 {free}") == [0]
    assert program("alloc 2 1") == [OUT_OF_MEMORY]
    other = box.start(ready=False)
    assert other("init") == [0]

    assert other("retain") == [OUT_OF_MEMORY]


def test_all_views_of_unified_memory_agree(box: Box) -> None:
    """NVML says what the slice is and holds, where the driver says that it is not supported."""
    program = box.start()
    assert program(f"alloc 1 {98 * MIB}") == [0]
    _, free, total = program("info")
    used = total - free

    assert (total, used) == (SLICE, 98 * MIB + CONTEXT)
    assert program("total") == [0, SLICE]
    assert program("nvml") == [0, SLICE, used, free]
    assert program("nvml2") == [0, SLICE, used, free, 0]
    assert program_list(box, "processes 3") == {program.pid: used}
    # And as who does not use CUDA sees it.
    assert box.start(ready=False)("nvml") == [0, SLICE, used, free]


def test_free_is_no_more_than_the_system_has(box: Box) -> None:
    """Host programs take of the same memory; the slice is no promise that it is there."""
    program = box.start()
    box.node.change(f"cards.0.memory_base_mib={SYSTEM_MIB - 1000}")

    assert room(program) == 1000 * MIB - CONTEXT
    assert program("nvml")[3] == 1000 * MIB - CONTEXT


def test_without_a_cap_nvml_says_what_the_driver_says(box: Box) -> None:
    """Nothing is invented: how much there is only the system knows."""
    box.allow(None)
    program = box.start()

    assert program("nvml")[0] == NOT_SUPPORTED
    assert program("nvml2")[0] == NOT_SUPPORTED
    assert program("info")[2] == SYSTEM_MIB * MIB


def test_other_cards_of_the_node_are_as_ever(box: Box) -> None:
    """A card without a line has no memory, unified or not."""
    box.node.change("cards.1.memory_unified=1")
    program = box.start(ready=False)

    for card in (1, 2):
        assert program(f"nvml {card}") == [0, 0, 0, 0]
        assert program(f"nvml2 {card}") == [0, 0, 0, 0, 0]


def test_without_nvml_the_cost_of_a_context_is_the_tables(box_without_nvml: Box) -> None:
    """The system's memory moves by itself: before a context is there nothing can be measured."""
    assert SLICE - room(box_without_nvml.start()) == TABLE


def test_in_a_pid_namespace_the_slice_holds_too(box: Box) -> None:
    """NVML lists another pid and no memory: the table says what the first context costs."""
    box.enter_namespaces()
    box.variables["GPU_SIMULATOR_NVML_PIDS"] = "inner"
    ran = box.tell(f"init\nretain\ninfo\nalloc 1 {SLICE - CONTEXT + 1}\n")
    _, _, info, refused = ran.stdout.splitlines()
    free = int(info.split()[1])

    assert SLICE - TABLE <= free <= SLICE - CONTEXT
    assert refused == str(OUT_OF_MEMORY)


def test_the_selftest_is_content_with_unified_memory(box: Box) -> None:
    """Its views are the slice's."""
    ran = selftest(box)

    assert ran.returncode == 0, ran.stdout


def test_refusals_of_unified_memory_are_counted(box: Box) -> None:
    """The agent's metrics are read from the same books."""
    program = box.start()
    assert program(f"alloc 1 {SLICE}") == [OUT_OF_MEMORY]
    region = Region(box.root / "state" / "region")
    refused = region.refused()
    region.close()

    assert refused == 1
