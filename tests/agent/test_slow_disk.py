"""The promise: a disk that stalls delays nobody but the Allocate that needs it, and that one fails."""

import asyncio
import fcntl
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.domain.words import grant
from tools.harness.rig import FOUR_CARDS, MEM, running_rig, slice_of, until

from gpu_device_plugin.agent.card_watch.configuration_follower import ConfigurationFollower, InForce
from gpu_device_plugin.agent.state import ledger_store
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.agent.state.node_store import NodeStore, first_state
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.grant_file import KIND, GrantStore
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import NodeError, StorageError
from gpu_device_plugin.kubernetes.objects.events import EventNote
from gpu_device_plugin.settings.agent_settings import load_settings
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics

FIRST, SECOND, THIRD = grant("a", "m00", "c00"), grant("b", "m01", "c01"), grant("c", "m02", "c02")


@dataclass
class Disk:
    """A disk whose flushes wait while `is_free` is not set."""

    is_free: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)

    def flush(self, descriptor: int) -> None:
        if not self.is_free.is_set():
            self.waiting.set()
            assert self.is_free.wait(60)
        os.fdatasync(descriptor)


@dataclass
class Node:
    """A ledger on such a disk."""

    disk: Disk
    store: LedgerStore
    path: Path

    def on_disk(self) -> Ledger:
        return GrantStore(self.path, "").read()

    async def until_on_disk(self, ledger: Ledger) -> None:
        await until(lambda: self.on_disk() == ledger, 20, self.on_disk)

    async def until_stuck(self) -> None:
        """A write has begun and does not end."""
        assert await asyncio.to_thread(self.disk.waiting.wait, 60)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Holds one grant, on a disk that answers."""
    disk, writer = Disk(), Writer()
    disk.is_free.set()
    store = LedgerStore(GrantStore(tmp_path, "boot", disk.flush), writer)
    await store.load(1.0)
    await store.hold(FIRST)
    yield Node(disk, store, tmp_path)
    disk.is_free.set()
    await store.close(20)
    await writer.run(lambda: None)  # behind all that is in the queue


async def test_an_allocate_fails_with_its_deadline_and_its_late_write_is_rolled_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kubelet was refused is not on the disk either, once the disk has caught up."""
    # Long enough for the write to begin: one that has not is dropped.
    monkeypatch.setattr(ledger_store, "WRITE_SECONDS", 2.0)
    node.disk.is_free.clear()
    with pytest.raises(NodeError, match="took no write within") as refusal:
        await node.store.hold(SECOND)
    assert refusal.value.reason == "StateNotWritable"
    assert node.store.disk_fault
    await node.until_stuck()
    # The write lies in the kernel's memory already, only its flush is stuck.
    assert node.on_disk() == Ledger({}).hold(FIRST).hold(SECOND)

    node.disk.is_free.set()
    await node.until_on_disk(Ledger({}).hold(FIRST))
    await until(lambda: node.store.disk_fault is None, 20)
    assert node.store.ledger == Ledger({}).hold(FIRST)


async def test_a_call_that_is_given_up_leaves_nothing_on_the_disk(node: Node) -> None:
    """The call's own deadline may come first."""
    node.disk.is_free.clear()
    call = asyncio.create_task(node.store.hold(SECOND))
    await node.until_stuck()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    node.disk.is_free.set()

    await node.until_on_disk(Ledger({}).hold(FIRST))


async def test_calls_behind_a_stuck_write_fail_too_and_are_never_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits in line for a disk to come back; the next call after it succeeds."""
    monkeypatch.setattr(ledger_store, "WRITE_SECONDS", 0.1)
    node.disk.is_free.clear()
    for late in (SECOND, THIRD, SECOND):
        with pytest.raises(NodeError):
            await node.store.hold(late)
    monkeypatch.setattr(ledger_store, "WRITE_SECONDS", 20.0)
    node.disk.is_free.set()
    await node.store.hold(THIRD)

    assert node.on_disk() == node.store.ledger == Ledger({}).hold(FIRST).hold(THIRD)


async def test_what_is_learnt_is_seen_at_once_and_on_disk_when_the_disk_is_back(node: Node) -> None:
    """Releases and corrections wait for nothing; a promise under way keeps its place."""
    node.disk.is_free.clear()
    call = asyncio.create_task(node.store.hold(SECOND))
    await node.until_stuck()
    node.store.amend([THIRD], ended=[FIRST.slice_id])
    assert node.store.ledger == Ledger({}).hold(THIRD)
    node.disk.is_free.set()
    await call

    assert node.store.ledger.grants.keys() == {SECOND.slice_id, THIRD.slice_id}
    await node.until_on_disk(node.store.ledger)


async def test_a_change_that_the_disk_refuses_is_written_when_it_takes_writes_again(
    tmp_path: Path,
) -> None:
    """A release is not undone by a full disk, and not forgotten by it."""
    is_full = False

    def flush(descriptor: int) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        os.fdatasync(descriptor)

    writer = Writer()
    store = LedgerStore(GrantStore(tmp_path, "boot", flush), writer)
    await store.hold(FIRST)
    is_full = True
    store.amend((), ended=[FIRST.slice_id])
    await until(lambda: store.disk_fault is not None, 20)
    assert "No space left" in (store.disk_fault or "")
    with pytest.raises(NodeError, match="No space left"):
        await store.hold(SECOND)
    is_full = False
    store.rewrite()
    await until(lambda: store.disk_fault is None, 20)

    assert GrantStore(tmp_path, "").read() == store.ledger == Ledger()


async def test_a_job_that_fails_does_so_where_it_is_waited_for() -> None:
    """The thread goes on with the next one."""
    writer = Writer()

    def fail() -> None:
        raise StorageError("broken")

    with pytest.raises(StorageError, match="broken"):
        await writer.run(fail)
    assert await writer.run(lambda: 7) == 7


@asynccontextmanager
async def stuck(path: Path) -> AsyncIterator[Callable[[], None]]:
    """Let anyone who next writes to this file wait in the kernel, until what is given here is called.

    A FIFO nobody reads: opening it for writing blocks, as a disk does that does not answer.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    ends: list[int] = []

    def free() -> None:
        if not ends:
            ends.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

    try:
        yield free
    finally:
        free()
        os.close(ends[0])


async def test_while_the_disk_is_stuck_pages_and_starts_are_answered_and_one_allocate_fails() -> (
    None
):
    """The real agent, whose next write of grants hangs in the kernel; then the disk comes back."""
    async with running_rig() as rig:
        assert (await rig.admit("before", slice_of(2, 30))).is_admitted
        pair = (rig.state / KIND, rig.state / f"{KIND}.other")
        older = min(pair, key=lambda path: path.stat().st_mtime_ns)
        async with stuck(older) as free:
            refused = await rig.admit("unlucky", slice_of(2, 30))
            assert "took no write within 3 s" in refused.message
            # The write is stuck until `free` is called; nothing else waits for it.
            assert [(await rig.page(name))[0] for name in ("healthz", "metrics")] == [200, 200]
            await until(lambda: rig.kubelet.allocatable(MEM) == 0, 20)
            await rig.kubelet.start_container(rig.uid("before"), "main-0")
            free()
            await rig.until_offered(FOUR_CARDS, 20)
        assert (await rig.admit("after", slice_of(2, 30))).is_admitted
        assert {g.pod.name for g in rig.grants()} == {"before", "after"}


@contextmanager
def unopenable(path: Path) -> Iterator[Callable[[], object]]:
    """Let anyone who opens this file wait in the kernel, until what is given here is called.

    A lease: the kernel asks the holder to end it first (`fcntl(2)`), for 45 s unless told otherwise.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # asked by a signal that does nothing
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        yield lambda: fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


async def test_on_a_disk_that_is_stuck_from_the_start_the_pages_are_served_with_the_reason() -> (
    None
):
    """No probe kills an agent that waits; it goes on when the disk does, and ends when asked."""
    async with running_rig(is_started=False) as rig:
        rig.state.mkdir()
        with unopenable(rig.state / "lock") as free:
            await rig.start_agent()
            await rig.until_page(f"state: {rig.state} is not read yet")
            assert [(await rig.page(name))[0] for name in ("healthz", "metrics")] == [200, 200]
            assert await rig.stop_agent() == 0
            await rig.start_agent()
            await rig.until_page(f"state: {rig.state} is not read yet")
            free()
            await rig.until_ready()


async def test_a_configuration_file_that_does_not_answer_stops_nothing(tmp_path: Path) -> None:
    """It is taken once it answers."""
    file, notes = tmp_path / "config.yaml", list[EventNote]()
    file.write_text("version: v1\n")
    settings = load_settings(
        {"node_name": "n1", "config_file": str(file), "state_dir": str(tmp_path)}, {}, None
    )
    store, in_force = NodeStore(first_state(settings)), InForce(nvidia_configuration(settings))
    recorder = EventRecorder(AgentMetrics(""), notes.append, store, lambda: 0.0, Schemes())
    follower = ConfigurationFollower(
        settings, store, lambda: None, tuple, recorder, in_force, lambda: None
    )
    following = asyncio.ensure_future(follower.follow())
    file.unlink()
    os.mkfifo(file)  # anyone who reads it waits for somebody who writes
    os.utime(file, (0, 0))  # not as young as one that is being written
    go, is_written = threading.Event(), threading.Event()

    def write() -> None:
        go.wait(600)
        resources = "[{name: nvidia.com/gpu, replicas: 7}]"
        file.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: {resources}}}}}")
        is_written.set()

    threading.Thread(target=write, daemon=True).start()
    for _ in range(3):
        follower.run()
        await asyncio.sleep(0)
    assert [following.done(), is_written.is_set()] == [False, False]
    go.set()
    await until(lambda: bool(notes), 20)
    assert [note.reason for note in notes] == ["ConfigurationChanged"]
    assert [each.replicas for each in in_force.current.sharing.resources] == [7]
