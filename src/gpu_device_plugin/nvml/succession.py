"""A second child that opens NVML anew while the first one goes on watching."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.messages import InventoryLine, Starting
from gpu_device_plugin.nvml.process import ChildProcess

log = structlog.get_logger()

# For a card that stays out, NVML is opened anew ever more rarely: it wakes every other card.
_LONGEST_PAUSES = 6


class Succession:
    """At most one successor at a time, started when it is wanted and due.

    Args:
        start: Starts a child.
        pause_seconds: Before the first successor for a card that fails, and between two. It
            doubles up to six times as long, until the child no longer wants one.
    """

    def __init__(self, start: Callable[[], Awaitable[ChildProcess]], pause_seconds: float) -> None:
        self._start = start
        self._first_seconds = self._pause_seconds = pause_seconds
        self._due_seconds: float | None = None
        self._earliest_seconds = 0.0
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
        """What the child says about opening NVML anew (`Beat.reopen`)."""
        now = asyncio.get_running_loop().time()
        if not reopen:
            self._due_seconds, self._pause_seconds = None, self._first_seconds
            return
        wait_seconds = 0.0 if reopen == "changed" else self._pause_seconds
        due = max(now + wait_seconds, self._earliest_seconds)
        self._due_seconds = due if self._due_seconds is None else min(due, self._due_seconds)
        is_busy = self._child is not None or (self._task is not None and not self._task.done())
        if self._due_seconds > now or is_busy:
            return
        self._due_seconds = None
        self._earliest_seconds = now + self._pause_seconds
        longest = self._first_seconds * _LONGEST_PAUSES
        self._pause_seconds = min(self._pause_seconds * 2, longest)
        self._task = asyncio.create_task(self._prepare())

    def drop(self) -> ChildProcess | None:
        """Forget the successor, ready or not; its process is the caller's to keep or to end."""
        if self._task is not None:
            self._task.cancel()
        child, self._task, self._child, self._inventory = self._child, None, None, None
        return child

    async def _prepare(self) -> None:
        """Start a child and hear it up to its inventory."""
        try:
            self._child = await self._start()
            line = await self._child.line()
            while isinstance(line, Starting):
                line = await self._child.line()
        except NvmlError as error:
            await self._failed(str(error))
        else:
            if isinstance(line, InventoryLine):
                self._inventory = line
            else:
                await self._failed(f"instead of the inventory it said {line}")

    async def _failed(self, error: str) -> None:
        """The child has not opened NVML; while it cannot be ended there is no other one."""
        log.warning("nvml_not_reopened", error=error)
        if self._child is not None:
            await self._child.end()
        self._child = None
