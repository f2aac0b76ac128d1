"""One child process: its lines, each with a deadline, and its end.

A child that does not die when it is killed sits in an uninterruptible driver call.

A second child that opens NVML again while the first one goes on watching.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.child_messages import (
    Asking,
    Beat,
    InventoryLine,
    Line,
    NoDriver,
    Starting,
    decode,
)

_log = structlog.get_logger("nvml")

_LINE_BYTES = 1024 * 1024
# For a killed child to die, until it counts as abandoned.
_DEATH_SECONDS = 2.0
_LEAST_SECONDS = 1.0
Kill = Callable[[int], None]


def kill(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)


class ChildProcess:
    """A running child. `start_seconds` are for each line up to its inventory.

    Lines that only name a card are no signs of life.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        start_seconds: float,
        answer_seconds: float,
        kill: Kill,
    ) -> None:
        if process.stdout is None:
            raise NvmlError("started without a pipe")
        self._process = process
        self._stdout = process.stdout
        self._start_seconds, self._answer_seconds = start_seconds, answer_seconds
        self._kill = kill
        self.is_starting = True  # its cards are not told yet
        self._heard_at = asyncio.get_running_loop().time()
        self.was_silent = False  # it said nothing in time
        self.asked: int | None = None
        """Index of the card that has owed an answer longest."""

    @classmethod
    async def start(
        cls, command: Sequence[str], start_seconds: float, answer_seconds: float, kill: Kill
    ) -> "ChildProcess":
        """Start a child; raises NvmlError where that fails."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, limit=_LINE_BYTES
            )
        except OSError as error:
            raise NvmlError(f"cannot be started: {error}") from error
        return cls(process, start_seconds, answer_seconds, kill)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self) -> Line:
        """The next line. NvmlError: none in time, the child has ended, or it is not a child's line."""
        now = asyncio.get_running_loop().time()
        seconds = self._start_seconds if self.is_starting else self._answer_seconds
        try:
            # This process may have been late itself.
            async with asyncio.timeout_at(max(self._heard_at + seconds, now + _LEAST_SECONDS)):
                text = await self._stdout.readline()
        except TimeoutError as error:
            self.was_silent = True
            raise NvmlError(f"no answer within {seconds:g} s") from error
        except ValueError as error:
            raise NvmlError(f"a line of more than {_LINE_BYTES} bytes") from error
        if not text:
            raise NvmlError("ended by itself")
        line = decode(text)
        if isinstance(line, Asking):
            self.asked = line.index
        else:
            self._heard_at = asyncio.get_running_loop().time()
        if isinstance(line, Starting | InventoryLine | NoDriver):
            self.is_starting = isinstance(line, Starting)
        return line

    async def last_lines(self) -> AsyncGenerator[Line, None]:
        """Close its stdin, which makes it end, and return what it still says."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(NvmlError):
            while True:
                yield await self.line()

    async def dies(self) -> bool:
        """Kill it; whether it is gone soon after."""
        if self._process.returncode is not None:
            return True
        with suppress(ProcessLookupError):
            self._kill(self.pid)
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await self._process.wait()
        except TimeoutError:
            _log.warning("NVML child abandoned", pid=self.pid, error="stuck inside the driver")
            return False
        return True

    async def end(self) -> None:
        """Kill it, and wait until it is gone, however long that takes."""
        if not await self.dies():
            await self._process.wait()


# For a card that stays out, NVML is opened again ever more rarely: it wakes every other card.
_LONGEST_PAUSES = 6


class Succession:
    """At most one successor at a time, started when it is wanted and due.

    `pause_seconds` pass before the first successor for a card that fails, and between two. They double up to
    six times as long: for a card that fails until the child no longer wants one, else while successors fail.
    """

    def __init__(self, start: Callable[[], Awaitable[ChildProcess]], pause_seconds: float) -> None:
        self._start = start
        self._first_seconds = self._pause_seconds = pause_seconds
        self._due_seconds: float | None = None
        self._began_seconds = -pause_seconds
        self._failed = 0  # successors in a row
        self._task: asyncio.Task[None] | None = None
        self._child: ChildProcess | None = None
        self._inventory: InventoryLine | None = None

    @property
    def ready(self) -> tuple[ChildProcess, InventoryLine] | None:
        """The successor that has opened NVML, with its inventory."""
        if self._child is None or self._inventory is None:
            return None
        return self._child, self._inventory

    def wish(self, reopen: str) -> None:
        """What the child says about opening NVML again (`Beat.reopen`)."""
        now = asyncio.get_running_loop().time()
        if not reopen:
            self._due_seconds, self._pause_seconds = None, self._first_seconds
            return
        due = now + self._pause_seconds
        longest = self._first_seconds * _LONGEST_PAUSES
        if reopen == "changed":  # which a card that has failed for long must not keep waiting
            pause = min(self._first_seconds * 2.0**self._failed, longest)
            due = max(now, self._began_seconds + pause)
        self._due_seconds = due if self._due_seconds is None else min(due, self._due_seconds)
        is_busy = self._child is not None or (self._task is not None and not self._task.done())
        if self._due_seconds > now or is_busy:
            return
        self._due_seconds = None
        self._began_seconds = now
        self._pause_seconds = min(self._pause_seconds * 2, longest)
        self._task = asyncio.create_task(self._prepare())

    def drop(self) -> ChildProcess | None:
        """Forget the successor, ready or not; its process is the caller's to keep or to end."""
        if self._task is not None:
            self._task.cancel()
        child, self._task, self._child, self._inventory = self._child, None, None, None
        return child

    async def _prepare(self) -> None:
        try:
            self._child = await self._start()
            line = await self._child.line()
            while isinstance(line, Starting | Asking | Beat):
                line = await self._child.line()
        except NvmlError as error:
            await self._fail(str(error))
        else:
            if isinstance(line, InventoryLine):
                self._inventory, self._failed = line, 0
            else:
                await self._fail(f"instead of the inventory it said {line}")

    async def _fail(self, error: str) -> None:
        """The child has not opened NVML; while it cannot be ended there is no other one."""
        self._failed += 1
        _log.warning("NVML not opened again", error=error)
        if self._child is not None:
            await self._child.end()
        self._child = None
