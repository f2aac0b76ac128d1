"""The machine under the agent: clocks, chance, processes, files; all of one history, from one seed.

While a machine is `running`, the operating system's edge of this Python process is its own:
`time` tells virtual time, `secrets` and `random` follow the seed, `os.kill` ends simulated
processes, gRPC and HTTP stay in memory, files lie on a tmpfs and suffer the faults of `Disk`. The
agent's code is the shipped one, whole and unchanged.
"""

import contextlib
import gc
import os
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import grpc
import structlog
import yaml
from tests.histories.disk import Disk
from tests.histories.loop import PROCESS, VirtualLoop
from tests.histories.wire import Network

from gpu_device_plugin.disk.failpoints import VARIABLE

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a fifth of a history was reading XIDs
_EPOCH = 1_750_000_000.0  # the wall clock at boot
_FIRST_PID = 1 << 23  # above every pid that Linux gives out
_OWN_PID = _FIRST_PID - 1
_MEMORY = Path("/dev/shm")  # noqa: S108 - a tmpfs; every history makes a directory of its own


class KilledError(BaseException):
    """A failpoint killed the process inside a step; nobody of it may catch this."""


class Machine:
    """One node's operating system.

    Attributes:
        root: Where its files lie.
        loop: Its time.
        chance: What is left to chance in the world around the agent.
        network: Its unix sockets.
        disk: Its disk.
        boot: Counts boots.
        booted_at: When the last one was, by the loop's clock.
        story: What happened, with virtual times.
        wall_ahead: By how much the wall clock was set, in seconds.
        kept_files: Descriptors of containers' processes, which the agent's end does not close.
        on_log: Is told every line that a program logs.
    """

    def __init__(self, seed: int) -> None:
        self.root = Path(
            tempfile.mkdtemp(prefix="history-", dir=_MEMORY if _MEMORY.is_dir() else None)
        )
        self.seed = seed
        self.chance = random.Random(seed)  # noqa: S311 - a seeded die
        self.loop = VirtualLoop(start_seconds=100.0)
        self.network = Network(self.chance)
        self.disk = Disk(self.root, self.chance, self._flushes)
        self.loop.thread_seconds = lambda: 0.001 + self.disk.flush_seconds
        self.boot = 1
        self.booted_at = 0.0
        self.story: list[str] = []
        self.wall_ahead = 0.0
        self.kept_files: set[int] = set()
        self.on_log: Callable[[MutableMapping[str, Any]], None] = lambda _: None
        self._children: dict[int, Callable[[], None]] = {}
        self._next_pid = _FIRST_PID

    # -- clocks and chance

    def wall(self) -> float:
        """Seconds since 1970."""
        return _EPOCH + self.loop.now + self.wall_ahead

    def tell(self, text: str) -> None:
        """Add a line to the story."""
        text = text.replace(str(self.root), "")  # named by chance
        self.story.append(f"{self.loop.now - 100:9.2f}  {text}")

    def _flushes(self, path: str) -> None:
        """A program that waits for a disk in its event loop does nothing else meanwhile."""
        if not self.loop.is_in_thread and self.disk.flush_seconds:
            self.loop.failures.append(f"the event loop waits for {path} to be flushed")

    # -- processes

    def spawned(self, kill: Callable[[], None]) -> int:
        """The pid of a child process that is killed by calling `kill`."""
        self._next_pid += 1
        self._children[self._next_pid] = kill
        return self._next_pid

    def kill(self, pid: int, _signal: int) -> None:
        """`os.kill`."""
        if pid == _OWN_PID:
            process = PROCESS.get()
            assert process is not None
            process.kill()
            raise KilledError
        if pid not in self._children:
            raise ProcessLookupError(pid)
        self._children.pop(pid)()

    def arm(self, point: str) -> None:
        """Kill the agent when it comes to this failpoint; an empty name disarms."""
        os.environ[VARIABLE] = point

    def close_files(self) -> None:
        """What the kernel does for a process that has died: its files are closed, its locks gone."""
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                is_its = int(entry.name) not in self.kept_files
                if is_its and Path(entry.path).readlink().is_relative_to(self.root):
                    os.close(int(entry.name))

    # -- the edge of this Python process

    @contextlib.contextmanager
    def running(self, session: Callable[..., Any]) -> Iterator[None]:
        """Stand in for the operating system, with HTTP sessions made by `session`."""
        state = random.getstate()
        random.seed(self.chance.random())
        with contextlib.ExitStack() as stack:
            for owner, name, stand_in in self._edge(session):
                stack.enter_context(mock.patch.object(owner, name, stand_in))
            stack.callback(random.setstate, state)
            stack.enter_context(mock.patch.dict(os.environ, {"POD_NAMESPACE": "", "POD_NAME": ""}))
            stack.callback(structlog.configure, **structlog.get_config())
            structlog.configure(processors=[self._log], cache_logger_on_first_use=False)
            try:
                yield
            finally:
                self._end()

    def _edge(self, session: Callable[..., Any]) -> list[tuple[Any, str, Any]]:
        loop, read_text = self.loop, Path.read_text

        def read(path: Path, *args: Any, **options: Any) -> str:
            if path == BOOT_ID:
                return f"boot-{self.boot}\n"
            return read_text(path, *args, **options)

        return [
            (time, "monotonic", lambda: loop.now),
            (time, "monotonic_ns", lambda: int(loop.now * 1e9)),
            (time, "perf_counter", lambda: loop.now),
            (time, "clock_gettime", lambda _: loop.now - self.booted_at),
            (time, "time", self.wall),
            (time, "time_ns", lambda: int(self.wall() * 1e9)),
            (secrets, "token_hex", lambda size: f"{random.getrandbits(8 * size):0{2 * size}x}"),
            (os, "kill", self.kill),
            (os, "getpid", lambda: _OWN_PID),  # a lost write of it is torn by its length
            (gc, "freeze", lambda: None),
            (yaml, "safe_load", lambda text: yaml.load(text, _LOADER)),  # noqa: S506 - a safe one
            (Path, "read_text", read),
            (grpc.aio, "server", self.network.server),
            (grpc.aio, "insecure_channel", self.network.channel),
            (aiohttp, "ClientSession", session),
            (aiohttp, "TCPConnector", lambda **_: None),
            *((os, name, self._dated(name)) for name in ("mknod", "unlink", "replace", "rename")),
            *self.disk.edge(),
        ]

    def _dated(self, name: str) -> Callable[..., None]:
        """A call that changes a directory, which has then changed at virtual time, as has what it names anew.

        Two changes that are seconds apart in the history come within one tick of the kernel's clock.
        """
        call: Callable[..., None] = getattr(os, name)

        def dated(path: Any, *args: Any, **options: Any) -> None:
            call(path, *args, **options)
            changed = [os.path.dirname(path)]  # noqa: PTH120 - a text or a path
            if name != "unlink":
                changed.append(path if name == "mknod" else args[0])
            for each in changed:
                if str(each).startswith(str(self.root)):
                    self.date(each)

        return dated

    def date(self, path: Any) -> None:
        """The file was changed now, by the wall clock of the history."""
        os.utime(path, ns=(int(self.wall() * 1e9),) * 2, follow_symlinks=False)

    def _log(self, _logger: Any, level: str, event: MutableMapping[str, Any]) -> str:
        process = PROCESS.get()
        self.on_log(event)
        words = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        self.tell(f"    {process.name if process else 'world'} {level}: {event['event']} {words}")
        raise structlog.DropEvent

    def _end(self) -> None:
        """Nobody runs any more; what is left of them must not touch files that are not theirs."""
        with mock.patch.object(os, "close"):
            self.loop.discard()
        self.kept_files.clear()
        self.close_files()
        shutil.rmtree(self.root, ignore_errors=True)
