"""The promise: what a container does with its own files harms no program of another container.

The files of slices share a file system in memory (a tmpfs here, small and real). A program that
touches mapped memory for which that has no room is killed with SIGBUS.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from tests.hostile.small_disk import fill, small_tmpfs
from tools.harness.isolation.box import Box, Node, native_directory
from tools.harness.isolation.compile import compile_programs
from tools.harness.rig import running_rig, slice_of
from tools.harness.waiting import until

from gpu_device_plugin.disk.file_sizes import LOOKS_PER_SECOND
from gpu_device_plugin.disk.library_versions import LIBRARY, PRELOAD, LibraryVersions, Package
from gpu_device_plugin.disk.region import REGION_BYTES
from gpu_device_plugin.disk.slice_files import ACTIVITY_BYTES, SliceFiles, SliceSpec
from gpu_device_plugin.errors import NoRoomError, StorageError

KIB = 1024


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run directory with room for 256 KiB."""
    with small_tmpfs(tmp_path / "run", 256) as directory:
        yield directory


def spec(slice_id: str, *cards: str) -> SliceSpec:
    """Of a slice on these cards."""
    lines = "".join(f"device={card} memory_bytes={2 << 30} core_percent=30\n" for card in cards)
    return SliceSpec(slice_id, f"version=1\nslice={slice_id}\npolicy=fixed\n{lines}", cards)


def region(run_dir: Path, slice_id: str) -> Path:
    """Where a slice's region is."""
    return run_dir / "slices" / slice_id / "region"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of tests/isolation."""
    if not (native_directory() / "libgpuslice.so").exists() or shutil.which("cc") is None:
        pytest.skip("needs make native, and a C compiler")
    return compile_programs(tmp_path_factory.mktemp("programs"))


def container(root: Path, node: Node, programs: Path, run_dir: Path, slice_id: str) -> Box:
    """A container with the files of a slice, at the places where the library looks."""
    (root / "state").mkdir(parents=True)
    (root / "config").symlink_to(run_dir / "slices" / slice_id / "config")
    (root / "state" / "region").symlink_to(region(run_dir, slice_id))
    (root / "cards").symlink_to(run_dir / "cards")
    return Box(root, node, programs)


@pytest.mark.parametrize("cards", [1, 4])
def test_a_program_lives_where_its_neighbour_has_filled_the_run_directory(
    run_dir: Path, tmp_path: Path, programs: Path, cards: int
) -> None:
    """Its first page fault in a sparse file killed it: SIGBUS in cuInit."""
    node = Node.create(tmp_path, "dgx-1", "535.309.01")
    files = SliceFiles(run_dir, run_dir / "cdi")
    files.make(spec("hostile", node.uuids[0]))
    files.make(spec("victim", *node.uuids[:cards]))
    box = container(tmp_path / "victim", node, programs, run_dir, "victim")
    fill(region(run_dir, "hostile"))

    program = box.start(ready=False)
    try:
        lines = ("init", "retain", "alloc 0 1048576", "launch 1000", "sync")
        assert {line: program(line)[:1] for line in lines} == {line: [0] for line in lines}
    finally:
        program.end()
    assert program.process.returncode == 0


def test_files_that_an_older_agent_left_sparse_get_their_blocks(run_dir: Path) -> None:
    """At the first look at the node after an upgrade; containers keep what is in them."""
    files = SliceFiles(run_dir, run_dir / "cdi")
    files.make(spec("5", "GPU-a"))
    for path, size in ((region(run_dir, "5"), REGION_BYTES), (activity(run_dir), ACTIVITY_BYTES)):
        os.truncate(path, 0)
        os.truncate(path, size)
        assert path.stat().st_blocks == 0

    assert not files.make(spec("5", "GPU-a"))
    assert region(run_dir, "5").stat().st_blocks * 512 == 10 * 4 * KIB
    assert activity(run_dir).stat().st_blocks * 512 == 4 * KIB


def activity(run_dir: Path) -> Path:
    """Where slice 5 has its page of card GPU-a."""
    return run_dir / "cards" / "GPU-a" / "5"


def test_what_a_slice_takes_grows_with_its_cards_and_not_with_its_file(run_dir: Path) -> None:
    """The blocks count as the agent's memory, which has a limit: hundreds of slices must fit."""
    files = SliceFiles(run_dir, run_dir / "cdi")
    taken = []
    for number in (1, 2):
        files.make(spec(str(number), *(f"GPU-{card}" for card in range(number))))
        taken.append(region(run_dir, str(number)).stat().st_blocks * 512)

    assert taken == [40 * KIB, 56 * KIB]


def test_a_slice_that_cannot_be_backed_is_refused_and_leaves_nothing_half(run_dir: Path) -> None:
    """Said as the file system's fullness; with room again the same slice is made."""
    fill(run_dir / "filler")
    os.truncate(run_dir / "filler", (256 - 24) * KIB)
    files = SliceFiles(run_dir, run_dir / "cdi")

    with pytest.raises(NoRoomError, match=r"region: .*slice 5 cannot be made: No space left") as no:
        files.make(spec("5", "GPU-a"))
    assert no.value.reason == "RunDirectoryFull"
    assert {path.name for path in run_dir.rglob("*") if path.is_file()} == {"limits", "filler"}
    os.truncate(run_dir / "filler", 0)
    assert files.make(spec("5", "GPU-a"))


def test_room_that_a_container_took_by_growing_its_file_is_taken_back_for_a_new_slice(
    run_dir: Path,
) -> None:
    """Before anything is refused, and without waiting for an event."""
    files = SliceFiles(run_dir, run_dir / "cdi")
    files.make(spec("hostile", "GPU-a"))
    grown: list[tuple[str, str, int]] = []
    files.sizes.on_grown = lambda slice_id, name, size: grown.append((slice_id, name, size))
    page = run_dir / "cards" / "GPU-a" / "hostile"
    fill(page)
    found = page.stat().st_size

    assert files.make(spec("5", "GPU-a"))
    assert grown == [("hostile", "activity file of card GPU-a", found)]


async def test_growth_is_cut_back_when_it_happens(run_dir: Path) -> None:
    """By the event, for there is no other look here; a file made later is watched too."""
    files = SliceFiles(run_dir, run_dir / "cdi")
    files.make(spec("5", "GPU-a"))
    watching = asyncio.create_task(files.sizes.run())
    try:
        for slice_id in ("5", "6"):
            files.make(spec(slice_id, "GPU-a"))
            path = region(run_dir, slice_id)
            await asyncio.sleep(0)
            os.truncate(path, 8 * REGION_BYTES)
            await until(lambda path=path: path.stat().st_size == REGION_BYTES, 20)
    finally:
        watching.cancel()


TAKEN = """
import os, sys
from pathlib import Path
from gpu_device_plugin.disk.slice_files import SliceFiles, SliceSpec
files = SliceFiles(Path(sys.argv[1]), Path(sys.argv[1]) / "cdi")
files.make(SliceSpec("5", "limits", ("GPU-a",)))
print("made", flush=True)
sys.stdin.readline()
files.sizes.cut_back()
"""


def test_a_container_cannot_take_the_right_to_cut_its_file_back(run_dir: Path) -> None:
    """Root in a container may change owner and mode; the agent is root without capabilities."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, for a process without capabilities")
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    with subprocess.Popen(
        [*bare, sys.executable, "-c", TAKEN, run_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout
        assert agent.stdout.readline() == "made\n"
        path = region(run_dir, "5")
        path.chmod(0)
        os.chown(path, 65534, 65534)
        os.truncate(path, 8 * REGION_BYTES)
        agent.communicate("\n")

    assert path.stat().st_size == REGION_BYTES


@pytest.mark.parametrize("writes", [20_000, 200_000])
async def test_a_container_that_grows_its_files_in_a_loop_causes_a_few_looks_a_second(
    run_dir: Path, writes: int
) -> None:
    """Counted at two sizes of the flood: what bounds the looks is the time, not the writes."""
    files = SliceFiles(run_dir, run_dir / "cdi")
    files.make(spec("5", "GPU-a"))
    cuts: list[int] = []
    files.sizes.on_grown = lambda *found: cuts.append(found[2])
    watching = asyncio.create_task(files.sizes.run())
    loop = asyncio.get_running_loop()
    try:
        begun = loop.time()
        await asyncio.to_thread(grow, [region(run_dir, "5"), activity(run_dir)], writes)
        await until(lambda: activity(run_dir).stat().st_size == ACTIVITY_BYTES, 20)
        looks = (loop.time() - begun) * LOOKS_PER_SECOND + 2
    finally:
        watching.cancel()

    assert 0 < len(cuts) <= 2 * looks  # two files


def grow(paths: list[Path], times: int) -> None:
    """Make each larger by a byte, again and again: no two events in a row are the same."""
    for number in range(times):
        os.truncate(paths[number % len(paths)], 2 * REGION_BYTES + number)


async def test_the_agent_refuses_a_pod_whose_slice_has_no_room_and_says_so() -> None:
    """With a reason of its own; earlier slices stay, and with room the next pod is admitted."""
    async with running_rig(is_started=False) as rig:
        with small_tmpfs(rig.run, 256):
            try:
                await rig.serve()
                await rig.admit("before", slice_of(2, 30))
                fill(rig.run / "filler")
                refused = await rig.admit("unlucky", slice_of(2, 30))
                assert "cannot be made: No space left on device" in refused.message
                await until(lambda: rig.events("RunDirectoryFull"), 20)
                (rig.run / "filler").unlink()
                assert (await rig.admit("lucky", slice_of(2, 30))).is_admitted
                assert not rig.events("RunDirectoryShared")  # this one has its own file system
            finally:
                await rig.stop_agent()


LEASED = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for descriptor in held:
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
sys.stdin.read()
"""


@contextmanager
def leased(*paths: Path) -> Iterator[None]:
    """Another process, root as in a container, has a lease on these files, and keeps it."""
    with subprocess.Popen(
        [sys.executable, "-c", LEASED, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "leased\n"
        try:
            yield
        finally:
            holder.kill()


def is_refused_a_lease(path: Path) -> bool:
    """Whether the kernel gives nobody a lease to write on this file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


async def test_a_lease_on_a_slices_files_holds_nobody_up(run_dir: Path) -> None:
    """An open() of a leased file waits 45 s; the event loop of the agent did, at each look."""
    before = SliceFiles(run_dir, run_dir / "cdi")
    before.make(spec("5", "GPU-a"))
    before.sizes.forget("5")  # as with the end of its agent
    limits = run_dir / "slices" / "5" / "config" / "limits"
    os.truncate(region(run_dir, "5"), 0)
    with leased(limits, region(run_dir, "5")):
        files = SliceFiles(run_dir, run_dir / "cdi")  # of an agent that has started since
        async with asyncio.timeout(20):
            with pytest.raises(StorageError, match=r"region: .*Resource temporarily unavailable"):
                await asyncio.to_thread(files.make, spec("5", "GPU-a"))
    assert limits.read_text() == spec("5", "GPU-a").limits
    assert files.make(spec("5", "GPU-a"))


@pytest.mark.parametrize("is_late", [False, True])
async def test_no_container_can_lease_the_librarys_files(tmp_path: Path, *, is_late: bool) -> None:
    """All containers open /etc/ld.so.preload at every exec: a lease on it held up all of them.

    A lease that was taken while no agent ran is the last one of that file.
    """
    ours = Package("1.0-0123456789ab", {LIBRARY: b"library", PRELOAD: b"preload\n"})
    LibraryVersions(tmp_path, ours).install()
    preload = tmp_path / ours.version / PRELOAD
    before = os.open(preload, os.O_PATH)
    with leased(preload) if is_late else nullcontext():
        versions = LibraryVersions(tmp_path, ours)
        async with asyncio.timeout(20):
            await asyncio.to_thread(versions.install)
            await asyncio.to_thread(versions.whole)
    mounted = Path(f"/proc/self/fd/{before}")
    await until(lambda: is_refused_a_lease(mounted), 20)
    assert is_refused_a_lease(preload)
    os.close(before)


def test_files_of_the_library_are_closed_with_their_version(tmp_path: Path) -> None:
    """Else each version that an agent has ever had would stay on the disk, without a name."""
    old = Package("1.0-0123456789ab", {LIBRARY: b"old", PRELOAD: b"preload\n"})
    new = Package("1.1-0123456789ac", {LIBRARY: b"new", PRELOAD: b"preload\n"})
    LibraryVersions(tmp_path, old).install()
    versions = LibraryVersions(tmp_path, new)
    versions.install()
    versions.whole()
    assert len(kept_open(tmp_path)) == 4
    versions.remove_unused([])
    versions.whole()
    assert {Path(name).parent.name for name in kept_open(tmp_path)} == {new.version}


def kept_open(directory: Path) -> list[str]:
    """What this process has open below a directory."""
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            names.append(str(link.readlink()))
    return [name for name in names if name.startswith(f"{directory}/")]
