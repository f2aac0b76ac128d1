"""A slice that is resized: processes that run take over what a newer limits file says."""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, Box
from tools.harness.isolation.shares import BESIDE_POINTS, POINTS, alone, ready, tenant, work

TINY, SMALL, LARGE = 500 * MIB, 2154 * MIB, 4301 * MIB


def tell(box: Box, revision: int) -> None:
    """As the agent does behind a new file."""
    region = Region(box.root / "state" / "region")
    region.tell_limits(revision)
    region.close()


def resize(box: Box, revision: int, memory_bytes: int, core_percent: int | None = None) -> None:
    """Replaces the limits, and tells of it."""
    box.allow(memory_bytes, core_percent, revision=revision)
    tell(box, revision)


def test_running_processes_grow(box: Box) -> None:
    """Each shows the new size at once, and has it."""
    first, second = box.start(), box.start()
    assert first(f"alloc 1 {3000 * MIB}") == [OUT_OF_MEMORY]
    resize(box, 1, LARGE)

    assert first(f"alloc 1 {3000 * MIB}") == [0]
    for program in (first, second):
        assert program("info")[2] == LARGE
        assert program("nvml")[1] == LARGE
        assert program("total") == [0, LARGE]
    assert second(f"alloc 1 {2000 * MIB}") == [OUT_OF_MEMORY]


def test_what_shrinks_keeps_what_it_has_and_gets_no_more(box: Box) -> None:
    """A use above the limit is shown as a full slice, and room comes back when it falls."""
    program = box.start()
    assert program(f"alloc 1 {1000 * MIB}") == [0]
    resize(box, 1, 500 * MIB)

    assert program("info")[1:] == [0, 500 * MIB]
    assert program(f"alloc 2 {MIB}") == [OUT_OF_MEMORY]
    assert program("free 1") == [0]
    assert program(f"alloc 2 {100 * MIB}") == [0]


TAKES_AND_FREES = """
import ctypes, sys, time
driver, context, held = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), []
driver.cuInit(0)
driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
large, part, last_above = int(sys.argv[1]), 100 << 20, 0
while True:
    pointer, begun = ctypes.c_uint64(), time.monotonic_ns()
    if driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(part)) == 0:
        held.append(pointer)
        last_above = begun if len(held) * part > large else last_above
        continue
    print(begun, len(held) * part, last_above, flush=True)
    while held:
        driver.cuMemFree_v2(held.pop())
"""


@contextmanager
def taking(box: Box) -> Iterator[Callable[[int], tuple[int, int]]]:
    """A process that takes what it gets and gives it back, again and again.

    Of its next refusal after that moment: what it had, and when its last allocation above TINY began.
    """
    program = subprocess.Popen(
        [sys.executable, "-c", TAKES_AND_FREES, str(TINY)],
        env=box.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    refusals = (tuple(map(int, line.split())) for line in program.stdout)

    def refused_since(moment_ns: int) -> tuple[int, int]:
        return next((held, above) for begun, held, above in refusals if begun > moment_ns)

    try:
        refused_since(0)
        yield refused_since
    finally:
        program.kill()
        program.communicate()


def test_no_allocation_that_begins_after_a_slice_shrank_is_above_its_limit(box: Box) -> None:
    """Of two processes that take what they can."""
    with taking(box) as first, taking(box) as second:
        for revision in range(1, 41, 2):
            resize(box, revision, LARGE)
            grown_ns = time.monotonic_ns()
            while all(refused_since(grown_ns)[1] < grown_ns for refused_since in (first, second)):
                pass
            resize(box, revision + 1, TINY)
            shrunk_ns = time.monotonic_ns()
            for refused_since in (first, second):
                refused_since(shrunk_ns)  # it may have begun with more than it may have now
                held, last_above = refused_since(time.monotonic_ns())
                assert held <= TINY
                assert last_above < shrunk_ns


def test_a_process_that_starts_later_reads_the_newest_file(box: Box) -> None:
    """Also where nobody has told the region yet."""
    box.start()
    box.allow(LARGE, revision=1)

    assert box.start()("info")[2] == LARGE


def test_a_process_that_cannot_read_its_new_size_gets_nothing_until_it_can(box: Box) -> None:
    """What it was to give up may be another pod's: it has no descriptor left at that moment."""
    program = box.start()
    resize(box, 1, LARGE)
    assert program("info")[2] == LARGE
    many = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (3, many[1]))
    resize(box, 2, SMALL)
    assert program(f"alloc 1 {MIB}") == [OUT_OF_MEMORY]
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, many)

    assert program("info")[2] == SMALL
    assert program(f"alloc 1 {3000 * MIB}") == [OUT_OF_MEMORY]
    assert program(f"alloc 1 {1000 * MIB}") == [0]


LOOKS_UP_FIRST = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
allocate = driver.cuMemAlloc_v2
print("looked up", flush=True)
input()
device, context, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
driver.cuInit(0)
driver.cuDeviceGet(ctypes.byref(device), 0)
driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
print(total.value, flush=True)
"""


def test_a_process_that_has_only_looked_up_names_has_the_newest_size(box: Box) -> None:
    """Nobody could tell it: the slice's region was not there yet, or not its own."""
    program = subprocess.Popen(
        [sys.executable, "-c", LOOKS_UP_FIRST],
        env=box.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "looked up\n"
    box.allow(LARGE, revision=1)

    assert program.communicate("\n", timeout=60)[0] == f"{LARGE}\n"


@pytest.mark.parametrize("text", ["", "version=2\n", "version=1\nslice=other\n"])
def test_a_file_that_is_not_understood_changes_nothing(box: Box, text: str) -> None:
    """The slice stays open with the size that it had; the next good file counts."""
    program = box.start()
    box.write(text)
    tell(box, 1)
    assert program(f"alloc 1 {3000 * MIB}") == [OUT_OF_MEMORY]
    assert program("info")[2] == SMALL
    resize(box, 2, LARGE)

    assert program(f"alloc 1 {3000 * MIB}") == [0]


def test_an_older_file_and_a_number_that_anybody_wrote_change_nothing(box: Box) -> None:
    """The container writes its region as it likes."""
    program = box.start()
    resize(box, 2, LARGE)
    assert program("info")[2] == LARGE
    box.allow(SMALL, revision=1)
    for told in (1, 7, 2**32 - 1):
        tell(box, told)

        assert program("info")[2] == LARGE


@pytest.mark.parametrize(("first", "then"), [(20, 60), (60, 20), (None, 30)])
def test_compute_changes_with_the_next_leases(
    make_box: MakeBox, first: int | None, then: int
) -> None:
    """Of a program that has worked with the percent before, or without a cap."""
    box = alone(make_box, first)
    program = ready(box, "stream")
    work((program, "stream"), seconds=1)
    resize(box, 1, 2000 * MIB, then)
    work((program, "stream"), seconds=1)

    assert work((program, "stream"))[0] == pytest.approx(then, abs=POINTS)


def test_a_neighbour_keeps_its_share_while_a_slice_grows_and_shrinks(make_box: MakeBox) -> None:
    """Both work all the time; the neighbour's cap stays, and the rest of the card is enough for either."""
    one, other = tenant(make_box, "a", 20), tenant(make_box, "b", 50)
    programs = [(ready(box, "stream"), "stream") for box in (one, other)]
    for revision, percent in enumerate((40, 20), start=1):
        uuid = one.node.uuids[0]
        one.write(
            f"version=1\nslice=a\nrevision={revision}\n"
            f"device={uuid} memory_bytes={2000 * MIB} core_percent={percent}\n"
        )
        tell(one, revision)
        had = work(*programs, seconds=3)

        assert had[0] == pytest.approx(percent, abs=BESIDE_POINTS), had
        assert had[1] == pytest.approx(50, abs=BESIDE_POINTS), had


def test_a_slice_without_a_cap_from_now_on_has_the_card(make_box: MakeBox) -> None:
    """What was out under the cap is still measured."""
    box = alone(make_box, 30)
    program = ready(box, "stream")
    work((program, "stream"), seconds=1)
    resize(box, 1, 2000 * MIB, 100)
    work((program, "stream"), seconds=1)

    assert work((program, "stream"))[0] > 95
