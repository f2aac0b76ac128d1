"""What a neighbour's page says of its memory is believed as far as it can be true.

A container can write anything into its page. Where NVML does not tell what a process holds, others
measure their code and contexts by the card's total and by what the pages beside them say.
"""

import asyncio
import select
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.isolation import activity
from tests.isolation.box import MIB, Box, Program, native_directory, share_pages
from tests.isolation.conftest import MakeBox
from tests.waiting import until

SLICE = 2154 * MIB
CONTEXT = 240 * MIB  # of the simulated V100
CODE = 10 * MIB  # of each module here
LARGE = 3 * MIB  # an image that may well bring as much code
LOAD = f"image text {LARGE}"

Forge = Callable[..., None]


def room(program: Program) -> int:
    """Free bytes of the slice."""
    result, free, _ = program("info")
    assert result == 0
    return free


@pytest.fixture(params=["box_of_strangers", "box_without_sizes"])
def watched(request: pytest.FixtureRequest) -> Box:
    """A container whose unasked memory is measured by the card's total."""
    box: Box = request.getfixturevalue(request.param)
    box.library = "libgpuslice-testing.so"
    return box


@pytest.fixture
def beside(watched: Box, make_box: MakeBox) -> Box:
    """A neighbour whose page the container reads."""
    box = make_box("neighbour")
    box.allow(8192 * MIB)
    share_pages(watched, box)
    return box


@pytest.fixture
def forge(beside: Box) -> Forge:
    """Writes the neighbour's page: what it holds, when it told so, by which version, with calls out."""
    page = beside.root.parent / "cards" / beside.node.uuids[0] / "neighbour"

    def write(held: int, told_ns: int, version: int = 1, calls_out: int = 0) -> None:
        head = struct.pack("<QQQIIQQ", activity.MAGIC, 0, 0, version, calls_out, held, told_ns)
        with page.open("r+b", buffering=0) as file:
            file.write(head)

    return write


class Stepped:
    """A program that stands still after each call of the driver's that is measured."""

    def __init__(
        self, box: Box, file: Path, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self.file = file
        self.program = box.start(
            ready=False,
            GPUSLICE_PAUSEPOINT="card_changed",
            GPUSLICE_PAUSEFILE=str(file),
            GPU_SIMULATOR_MODULE_MIB=str(CODE // MIB),
            CUDA_MODULE_LOADING="EAGER",
        )
        assert self.program("init") == [0]
        self.step("retain", meanwhile)

    def step(self, line: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Does what it is told, and `meanwhile` before the second look at the card."""
        self.program.tell(line)
        asyncio.run(until(self.file.exists, 20))
        meanwhile()
        self.file.unlink()
        assert self.program.answer() == [0]


@pytest.fixture
def stepped(watched: Box, beside: Box) -> Stepped:
    """One in the container, with a context and a neighbour."""
    return Stepped(watched, beside.root / "waiting")


@pytest.mark.parametrize("told_ns", [1, 2], ids=["silently", "openly"])
@pytest.mark.parametrize("says_mib", [(4000, 0), (0, 4000), (4000, 500), (1 << 40, 0)])
def test_what_cannot_be_so_is_not_believed_of_a_load(
    stepped: Stepped, forge: Forge, says_mib: tuple[int, int], told_ns: int
) -> None:
    """4 GiB for each load filled a slice for good; what came hid code from the books."""
    before, after = says_mib
    start = room(stepped.program)
    for count in range(1, 6):
        forge(before * MIB, 1)
        stepped.step(LOAD, lambda: forge(after * MIB, told_ns))

        assert start - room(stepped.program) == count * CODE


def test_what_cannot_be_so_is_not_believed_of_an_unload(stepped: Stepped, forge: Forge) -> None:
    """Else each load and unload left more in the books."""
    start = room(stepped.program)
    for _ in range(3):
        stepped.step(LOAD)
        forge(4000 * MIB, 1)
        stepped.step("module_unload", lambda: forge(0, 2))

        assert room(stepped.program) == start


@pytest.mark.parametrize("says_mib", [(200, 0), (0, 4000)])
def test_what_cannot_be_so_is_not_believed_of_a_context(
    watched: Box, forge: Forge, tmp_path: Path, says_mib: tuple[int, int]
) -> None:
    """Its price is kept for all processes of the slice."""
    before, after = says_mib
    forge(before * MIB, 1)
    stepped = Stepped(watched, tmp_path / "waiting", lambda: forge(after * MIB, 2))

    assert room(stepped.program) == SLICE - CONTEXT


@pytest.mark.parametrize("kind", ["text", "fat", "wrapper", "cubin", "file"])
def test_a_neighbour_that_did_free_is_believed(
    stepped: Stepped, beside: Box, tmp_path: Path, kind: str
) -> None:
    """As far as the image can have brought that much code: nothing of it is lost."""
    neighbour = beside.start()
    file = tmp_path / "image.ptx"
    file.write_text(".version 7.0\n.target sm_50\n.address_size 64\n".ljust(LARGE))
    what = str(file) if kind == "file" else str(LARGE)
    start = room(stepped.program)
    assert neighbour(f"alloc 1 {100 * MIB}") == [0]
    stepped.step(f"image {kind} {what}", lambda: neighbour("free 1"))

    assert start - room(stepped.program) == CODE


def test_a_neighbour_that_did_allocate_is_believed(stepped: Stepped, beside: Box) -> None:
    """Its memory is not charged to who loads code meanwhile."""
    neighbour = beside.start()
    start = room(stepped.program)
    stepped.step(LOAD, lambda: neighbour(f"alloc 1 {100 * MIB}"))

    assert start - room(stepped.program) == CODE


def test_a_page_that_is_never_at_rest_holds_nobody_up(watched: Box, forge: Forge) -> None:
    """One that always says of a call that it is out: the first load waited for it for ever."""
    program = watched.start(CUDA_MODULE_LOADING="EAGER")
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            forge(0, time.monotonic_ns(), calls_out=1)

    forger = threading.Thread(target=change)
    forger.start()
    try:
        program.tell("loads module 200")
        assert program.process.stdout
        ready, _, _ = select.select([program.process.stdout], [], [], 20)
    finally:
        is_over.set()
        forger.join()

    assert ready
    assert program.answer() == [0]


@pytest.mark.parametrize(("version", "charged"), [(0, CODE + 100 * MIB), (1, CODE), (2, CODE)])
def test_pages_of_other_versions_tell_of_memory(
    stepped: Stepped, beside: Box, forge: Forge, version: int, charged: int
) -> None:
    """A library older or newer took it; before version 1 none told, and only the card does."""
    beside.variables = {"LD_PRELOAD": "", "LD_LIBRARY_PATH": str(native_directory())}
    neighbour = beside.start()
    forge(0, 1, version)
    start = room(stepped.program)

    def take() -> None:
        assert neighbour(f"alloc 1 {100 * MIB}") == [0]
        forge(100 * MIB, 2, version)

    stepped.step(LOAD, take)

    assert start - room(stepped.program) == charged
