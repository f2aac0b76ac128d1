"""Processes of a container share one account: races, deaths anywhere, forks and reused pids."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import CARDS_AT, SLOTS, USED, Region, Slot
from tests.simulator.programs import until
from tools.harness.isolation.box import (
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    PATIENCE_SECONDS,
    SLICE,
    Box,
    room,
)

NOT_INITIALIZED = 3
TESTING = "libgpuslice-testing.so"
KILL_POINTS = (
    "layout_begun",
    "layout_mutex",
    "slot_lock_mapped",
    "claim_before_state",
    "claim_after_state",
    "reserve_before_add",
    "reserve_after_add",
    "reserve_done",
    "keep_before_settle",
    "settle_before_add",
    "keep_after_settle",
    "free_before_release",
    "context_begun",
    "context_made",
)


@pytest.fixture
def region(box: Box) -> Iterator[Region]:
    """The region of a container in which one process has run."""
    box.start().kill()
    region = Region(box.root / "state" / "region")
    yield region
    region.close()


def identity(pid: str = "self") -> Slot:
    """Who a living process is, as the library would write it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
    number = int(Path(f"/proc/{pid}/stat").read_text().split(" ", 1)[0])
    return Slot(USED, number, int(fields[19]), int(fields[25]), namespace)


def test_eight_processes_race_for_the_last_bytes(make_box: MakeBox) -> None:
    """Seen elsewhere: two processes both passed the check. 1000 rounds, never one too many."""
    box = make_box()
    box.allow(8 * 240 * MIB + 350 * MIB)  # eight contexts, and three of the eight requests
    ran = box.run("race", "8", "1000", str(100 * MIB))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["3", "3"]


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_death_at_any_point_costs_nothing(make_box: MakeBox, point: str) -> None:
    """Seen elsewhere: a kill at the wrong moment cost every waiter minutes, or the limit."""
    box = make_box(library=TESTING)
    box.allow(SLICE)
    victim = box.start(ready=False, GPUSLICE_KILLPOINT=point)
    for line in ("init", "retain", "alloc 1 1000000000", "free 1"):
        try:
            answer = victim(line)
        except BrokenPipeError:
            answer = []
        if not answer:
            break
    assert victim.process.wait(PATIENCE_SECONDS) == -9
    fresh = box.start()
    free = room(fresh)

    assert fresh(f"alloc 1 {free}") == [0]
    assert SLICE - free == 240 * MIB


def test_every_point_of_the_protocol_is_died_at() -> None:
    """The list above is that of the source."""
    source = Path(__file__).parents[2] / "src" / "isolation"
    named = re.findall(r"KILLPOINT\((\w+)\);", "".join(map(Path.read_text, source.rglob("*.c"))))

    assert sorted(named) == sorted(KILL_POINTS)


@pytest.mark.parametrize("point", [point for point in KILL_POINTS if "layout" not in point])
def test_who_waits_beside_the_dying_goes_on(make_box: MakeBox, point: str) -> None:
    """Seen elsewhere: the holder of the lock died, and all others waited for minutes."""
    box = make_box(library=TESTING)
    box.allow(SLICE)
    survivor = box.start()
    victim = box.start(ready=False, GPUSLICE_KILLPOINT=point)
    for line in ("init", "retain", f"alloc 1 {500 * MIB}", "free 1"):
        with contextlib.suppress(BrokenPipeError):
            victim.tell(line)
    assert victim.process.wait(PATIENCE_SECONDS) == -9

    assert survivor(f"alloc 1 {SLICE - 240 * MIB}") == [0]


def test_a_death_gives_everything_back(box: Box) -> None:
    """Also to a process that was there before."""
    survivor = box.start()
    before = room(survivor)
    victim = box.start()
    assert victim(f"alloc 1 {500 * MIB}") == [0]
    assert before - room(survivor) >= 500 * MIB
    victim.kill()

    assert room(survivor) == before
    assert survivor(f"alloc 1 {before}") == [0]


def test_a_pid_that_came_back_is_another_process(box: Box, region: Region) -> None:
    """Seen elsewhere: without the start time a reused pid keeps a dead slot alive."""
    me = identity()
    region.put(5, Slot(USED, me.pid, me.start_ticks - 1, 0, me.pid_namespace))
    region.put_used(5, 1500 * MIB)

    assert room(box.start()) == SLICE - 240 * MIB
    assert region.slot(5).state != USED


def test_another_pid_namespace_is_not_judged(box: Box, region: Region) -> None:
    """A pid means nothing outside its namespace: without its owner's lock, in doubt it lives."""
    region.put(5, Slot(USED, 2**22 - 1, 1, 0, 1))
    region.put_used(5, 1500 * MIB)

    assert room(box.start()) == SLICE - 1500 * MIB - 240 * MIB


def test_a_restarted_container_does_not_inherit(box: Box) -> None:
    """The same region, a new pid namespace: what the old processes held is free.

    The region is on a tmpfs, as on a node: on overlayfs no lock outlives its descriptor, and in
    doubt the old ones live.
    """
    box.enter_namespaces()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        (box.root / "state").symlink_to(memory)
        for _ in range(2):
            ran = box.tell("init\nretain\nalloc 1 1500000000\nexec /bin/false\n")

            assert ran.stdout.split() == ["0", "0", "0", "0"], ran.stderr


def test_a_daemon_stays_present_without_its_descriptors(box: Box, tmp_path: Path) -> None:
    """It closed all that it had not opened; from another namespace its slot looked dead."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a pid namespace")
    programs = box.programs
    box.programs = tmp_path / "inner"
    box.programs.mkdir()
    enter = "env -u LD_PRELOAD unshare --pid --fork --kill-child --mount-proc"
    (box.programs / "client").write_text(
        f'#!/bin/sh\nexec {enter} env LD_PRELOAD="$LD_PRELOAD" {programs}/client\n'
    )
    (box.programs / "client").chmod(0o755)
    daemon = box.start()
    box.programs = programs
    assert daemon(f"alloc 1 {1400 * MIB}") == [0]
    assert daemon(f"daemonize {tmp_path / 'log'}")[0] == 0
    other = box.start(ready=False)
    assert other("init") == [0]
    assert other("retain") == [0]

    assert other(f"alloc 1 {1400 * MIB}") == [OUT_OF_MEMORY]
    assert other("info")[1] <= SLICE - 1400 * MIB


def test_a_daemons_log_is_not_taken_for_the_region(box: Box, tmp_path: Path) -> None:
    """Its number was ours before; a child wrote its first line over the region's head."""
    daemon = box.start()
    assert daemon(f"daemonize {tmp_path / 'log'}")[0] == 0
    assert daemon("fork init_and_log") == [NOT_INITIALIZED]  # the driver's own word to a child

    assert (tmp_path / "log").read_text() == "worker started\n"
    assert box.start(ready=False)("init") == [0]


@pytest.mark.parametrize("strangers", ["known", "inner"])
def test_two_containers_may_have_processes_of_one_pid(
    make_box: MakeBox, tmp_path: Path, strangers: str
) -> None:
    """In a container small pids repeat; one's memory was taken for the other's, beyond the cap."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a pid namespace")
    programs = tmp_path / "numbered"
    programs.mkdir()
    first, second = (make_box(name) for name in ("first", "second"))
    enter = "env -u LD_PRELOAD unshare --pid --fork --kill-child --mount-proc"
    (programs / "client").write_text(
        f'#!/bin/sh\nexec {enter} env LD_PRELOAD="$LD_PRELOAD" {first.programs}/client\n'
    )
    (programs / "client").chmod(0o755)
    for box in (first, second):
        box.allow(SLICE)
        box.programs = programs
        box.variables["GPU_SIMULATOR_NVML_PIDS"] = strangers
    greedy, neighbour = first.start(), second.start()
    assert neighbour(f"alloc 0 {97 * MIB}") == [0]
    free = room(greedy)

    assert free == SLICE - 240 * MIB
    assert greedy(f"alloc 0 {free}") == [0]
    assert greedy("info") == [0, 0, SLICE]
    assert greedy(f"alloc 1 {MIB}") == [OUT_OF_MEMORY]


def test_a_slot_is_never_moved(box: Box) -> None:
    """Seen elsewhere: slots were compacted, and a process went on writing into another's."""
    first, second, third = box.start(), box.start(), box.start()
    region = Region(box.root / "state" / "region")
    places = {region.slot(i).pid: i for i in range(3)}
    first.kill()
    assert third(f"alloc 1 {100 * MIB}") == [0]

    assert region.slot(places[third.pid]).pid == third.pid
    assert region.used(places[third.pid]) == 100 * MIB
    assert region.used(places[second.pid]) == 0
    region.close()


def test_slots_full_is_a_clear_error(box: Box, region: Region) -> None:
    """The 257th process is told why, and the next is served when one has ended."""
    for index in range(SLOTS):
        region.put(index, identity())
    program = box.start(ready=False)
    assert program("init") == [NOT_READY]
    assert f"{SLOTS} processes" in program.end()
    region.put(200, Slot(0, 0, 0, 0, 0))

    assert box.start(ready=False)("init") == [0]


def test_a_corrupt_region_closes(box: Box, region: Region) -> None:
    """It is never made again while others may use it."""
    region.scribble(0, b"nonsense")
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "corrupt" in program.end()


@pytest.mark.parametrize(
    ("at", "word"),
    [
        pytest.param(64, b"\xfe\xff\xff\x3f", id="held by nobody"),
        pytest.param(64, b"\x01\0\0\0", id="held by a stranger"),
        pytest.param(64, b"\0\0\0\x80", id="waited for, and free"),
        pytest.param(64, b"\xff" * 40, id="all ones"),
        pytest.param(64, bytes(40), id="all zeros"),
        pytest.param(80, b"\x77\x77\0\0", id="no kind of lock"),
        pytest.param(80, bytes(4), id="not robust any more"),
    ],
)
def test_a_corrupt_lock_closes(box: Box, region: Region, at: int, word: bytes) -> None:
    """The first hung cuInit for ever; the others spoke of 256 processes, or went unnoticed."""
    region.scribble(at, word)
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    (line,) = program.end().splitlines()
    assert "corrupt" in line or "beyond repair" in line


@pytest.mark.parametrize(
    ("at", "number"),
    [
        pytest.param(88, -(10**18), id="a debt of a lifetime"),
        pytest.param(88, -(2**63), id="the least number"),
        pytest.param(96, 2**62, id="paid until the future"),
        pytest.param(4336 + 8 * 5, 2**62, id="work for a lifetime"),
    ],
)
def test_nobody_waits_for_numbers_that_cannot_be(make_box: MakeBox, at: int, number: int) -> None:
    """Somebody wrote over the region; launches never came back."""
    box = make_box()
    box.allow(SLICE, core_percent=50)
    box.start().kill()
    region = Region(box.root / "state" / "region")
    region.put(5, identity())
    region.scribble(CARDS_AT + at, number.to_bytes(8, "little", signed=True))
    region.close()
    program = box.start()

    assert [program(line) for line in ("launch 1000000", "sync", "launch 1000")] == [[0]] * 3


def test_a_region_of_the_future_closes(box: Box, region: Region) -> None:
    """The layout number is frozen; another layout is another number."""
    region.scribble(8, b"\x09")
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "another layout" in program.end()


def test_a_region_that_cannot_be_had_closes(box: Box) -> None:
    """For instance a directory that a container runtime made in its place."""
    (box.root / "state" / "region").mkdir(parents=True)
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "region" in program.end()


@pytest.mark.usefixtures("region")
def test_a_grown_region_serves(box: Box) -> None:
    """Somebody in the container wrote to it; the agent cuts it back."""
    with (box.root / "state" / "region").open("ab") as file:
        file.write(b"x" * 4096)

    assert box.start(ready=False)("init") == [0]


@pytest.mark.usefixtures("region")
def test_a_short_region_closes(box: Box) -> None:
    """A mapping past the end would kill the application."""
    with (box.root / "state" / "region").open("r+b") as file:
        file.truncate(4096)
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "1 MiB" in program.end()


def test_a_child_has_an_account_of_its_own(box: Box) -> None:
    """Forked before CUDA was started."""
    parent = box.start(ready=False)
    assert parent("fork init") == [0]
    assert parent("init") == [0]
    assert parent("retain") == [0]

    assert room(parent) == SLICE - 240 * MIB


def test_a_child_of_a_cuda_process_takes_nothing_of_its_parents(box: Box) -> None:
    """The driver refuses it; its end must not empty the parent's slot."""
    parent = box.start()
    assert parent(f"alloc 1 {100 * MIB}") == [0]
    before = room(parent)
    assert parent("fork alloc 2 4096")[0] != 0
    assert parent("fork free 1")[0] != 0

    assert room(parent) == before
    assert box.start()("alloc 1 1") == [0]


def test_vfork_changes_nothing(box: Box) -> None:
    """The child borrows the parent's memory until it execs."""
    parent = box.start()
    assert parent(f"alloc 1 {100 * MIB}") == [0]
    before = room(parent)
    assert parent("vfork") == [0]

    assert room(parent) == before
    assert parent("free 1") == [0]


def test_exec_leaves_nothing_behind(box: Box) -> None:
    """Pid and start time stay, but what the old image held is gone."""
    program = box.start()
    assert program(f"alloc 1 {1000 * MIB}") == [0]
    assert program("exec /bin/sleep 600") == [0]
    image = Path(f"/proc/{program.pid}/comm")
    assert until(lambda: image.read_text() == "sleep\n")  # it answers before it does it
    other = box.start()

    assert other(f"alloc 1 {SLICE - 240 * MIB}") == [0]


def test_threads_may_allocate_while_others_fork(box: Box) -> None:
    """Children forked while the locks were held are not stuck, and nothing is lost."""
    ran = box.run("threads", "4", "60")
    failures, before, after = ran.stdout.split()

    assert failures == "0", ran.stderr
    assert before == after


def test_children_forked_while_nvml_is_started_are_not_stuck(make_box: MakeBox) -> None:
    """The thread that makes the first context starts NVML; its lock was taken for good."""
    for name in map(str, range(10)):  # a fork in ten or so falls into it
        box = make_box(name)
        box.allow(SLICE)
        ran = box.run("forked")
        children, stuck = map(int, ran.stdout.split())

        assert children
        assert stuck == 0


def test_a_child_does_not_keep_its_parents_place(make_box: MakeBox, tmp_path: Path) -> None:
    """Forked while the lock was taken that tells who lives, it kept that lock, and 1000 MiB."""
    box = make_box(library=TESTING)
    box.allow(SLICE)
    file = tmp_path / "waiting"
    points = {"GPUSLICE_PAUSEPOINT": "slot_lock_mapped", "GPUSLICE_PAUSEFILE": str(file)}
    with subprocess.Popen(
        [box.programs / "orphan", file],
        env=box.environment | points,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    try:
        assert SLICE - room(box.start()) == 240 * MIB
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_a_child_forked_during_the_first_look_up_is_not_stuck(box: Box, library: str) -> None:
    """The thread that decides what the slice is does not exist in the child; its lock did."""
    limits, slow = box.root / "config" / "limits", box.root / "config" / "slow"
    text = limits.read_bytes()
    limits.unlink()
    os.mkfifo(limits)
    with subprocess.Popen(
        [box.programs / "early", library],
        env=box.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin
        assert program.stdout
        deciding = os.open(limits, os.O_WRONLY)  # until the thread is in the middle of reading
        limits.rename(slow)  # the child reads at once
        limits.write_bytes(text)
        program.stdin.write("fork\n")
        program.stdin.flush()
        child = program.stdout.readline()
        os.write(deciding, text)
        os.close(deciding)

        assert (child, program.stdout.readline()) == ("0\n", "0\n")


@pytest.mark.long
def test_three_hundred_processes_start_at_once(make_box: MakeBox) -> None:
    """Seen elsewhere: 227 s at the 99th percentile, for one probe after the other."""
    box = make_box(profile="h200", driver=None)
    other = make_box("b", profile="h200", driver=None)
    for each in (box, other):
        each.allow(None)
    with ThreadPoolExecutor() as threads:  # one container has 256 places
        runs = [threads.submit(each.run, "inits", "150") for each in (box, other)]

    for run in runs:
        assert run.result().stdout.split()[0] == "0", run.result().stderr


def test_refusals_are_counted(box: Box) -> None:
    """For gpu_device_plugin_slice_refused_total."""
    program = box.start()
    assert program(f"alloc 1 {SLICE}") == [OUT_OF_MEMORY]
    assert program(f"alloc 1 {SLICE}") == [OUT_OF_MEMORY]
    region = Region(box.root / "state" / "region")

    assert region.refused() == 2
    region.close()
