"""The agent's side of NVML: runs the child process, and never waits for it without a deadline.

A child that says nothing for `answer_seconds` is killed and replaced. One that does not die is
in an uninterruptible driver call. It is abandoned, and no other is started while it exists,
because that would get stuck in the same place. When no child has answered for `stall_seconds`,
that is reported once as `Stalled`, and as `Answered` when one that has told its cards answers. A card that does not answer
while others do is told so by the child, which goes on. If none answers, it may still be that one
card holds up all calls of a process: so the child names each card before it asks it, and the next
child leaves the one that was silent for last. If no card answers that one either, it is the driver. Opening NVML may take
longer without a fault: a child that is starting has `start_seconds`, unless it replaces one that
did not answer.

When a child wants NVML opened again (`Beat.reopen`), a second child, its successor, does that
while the first one goes on watching the cards. When the successor has sent its inventory, the
first child sends what it still has, and ends. So no XID is lost; one that is reported by both
children is passed on twice.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_device_plugin.domain.cards.nvml_reports import (
    Answered,
    DriverChanged,
    DriverMissing,
    Inventory,
    NvmlReport,
    Stalled,
)
from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.child_messages import (
    MISMATCH,
    Asking,
    Beat,
    Line,
    NoDriver,
    Starting,
    reports,
)
from gpu_device_plugin.nvml.child_process import ChildProcess, Kill, Succession, kill

_log = structlog.get_logger("nvml")

# A child that was killed while it opened NVML is followed by one that has twice the time.
_MOST_SLOWNESS = 4.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the agent waits for the child."""

    answer_seconds: float = 5.0  # for its next sign of life, and for a card's answer
    start_seconds: float = 30.0
    """The same while NVML is being opened, which wakes every card; up to four times as long after
    children that did not make it."""
    stall_seconds: float = 10.0  # without an answer of any child, until NVML counts as stalled
    backoff_seconds: float = 5.0  # longest pause before another child
    wait_seconds: float = 2.0  # this and the next: see `rounds.Pace`
    probe_seconds: float = 5.0
    reopen_seconds: float = 10.0
    """Before NVML is opened again for a card that fails, and longer each time that this did not
    help; and between two looks at whether the simulated driver's node was changed."""


@dataclass(frozen=True, slots=True)
class KernelModule:
    """Where the kernel shows its NVIDIA module."""

    driver: Path = Path("/proc/driver/nvidia/version")
    """File that exists while the module is loaded, and names its version."""
    module: Path = Path("/sys/module/nvidia")  # directory that is made again with each load


_KERNEL = KernelModule()


@dataclass(slots=True)
class _Reported:
    """What was reported last, so that only changes are reported."""

    inventory: Inventory | None = None
    missing: DriverMissing | None = None
    kernel_driver: str | None = None
    first_version: str | None = None
    is_stalled: bool = False


class NvmlSource:
    """Inventory, probes, XIDs and use of the node's cards, as reports."""

    def __init__(  # noqa: PLR0913 - what is not the first two is for tests and simulated nodes
        self,
        library: Path | None,
        on_report: Callable[[NvmlReport], None],
        *,
        deadlines: Deadlines | None = None,
        kill: Kill = kill,
        kernel: KernelModule = _KERNEL,
        slices: Path | None = None,
    ) -> None:
        self._slices = [] if slices is None else ["--slices", str(slices)]
        self._library = library
        self._on_report = on_report
        self._deadlines = deadlines or Deadlines()
        self._kill = kill
        self._kernel = kernel
        self._reported = _Reported()
        self._stall: asyncio.TimerHandle | None = None
        self._child: ChildProcess | None = None
        self._succession = Succession(self._start, self._deadlines.reopen_seconds)
        self.restarts = 0  # children that failed and had to be replaced, for the metric
        self._last: int | None = None  # index of the card that is asked last
        self._slowness = 1.0
        self._is_answering = False
        self._was_silent = False

    @property
    def pid(self) -> int | None:
        """The child's pid, None while there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def start_seconds(self) -> float:
        """How long the next child may take to open NVML."""
        return self._deadlines.start_seconds * self._slowness

    async def run(self) -> None:
        self._reported.kernel_driver = self._kernel_version()
        pause_seconds = 0.1
        self._await_answer(self._deadlines.start_seconds)
        try:
            while True:
                self._is_answering = False
                await self._keep_child()
                pause_seconds = 0.1 if self._is_answering else pause_seconds * 2
                self.restarts += 1
                await asyncio.sleep(min(pause_seconds, self._deadlines.backoff_seconds))
        finally:
            if self._stall is not None:
                self._stall.cancel()

    async def _keep_child(self) -> None:
        """Run a child, and its successors after it, until one has to be replaced."""
        try:
            self._child = await self._start()
            while True:
                line = await self._child.line()
                self._take_line(line)
                if isinstance(line, Beat):
                    self._succession.wish(line.reopen)
                    await self._hand_over(self._child)
        except NvmlError as error:
            _log.warning("NVML child failed", pid=self.pid, error=str(error))
            if self._child is not None and self._child.was_silent:
                self._was_silent = True
                self._last = self._last if self._child.asked is None else self._child.asked
                self._slowness = min(self._slowness * 2, _MOST_SLOWNESS)
            for child in self._children():
                await child.end()
        finally:
            for child in self._children():
                await child.dies()
            self._child = None

    def _children(self) -> list[ChildProcess]:
        """Every process there is. A successor is dropped with this."""
        return [child for child in (self._child, self._succession.drop()) if child is not None]

    async def _hand_over(self, child: ChildProcess) -> None:
        """Let a successor that is ready take over, after the last lines of `child`."""
        if self._succession.ready is None:
            return
        async with aclosing(child.last_lines()) as lines:
            async for line in lines:
                self._take_line(line)
        await child.dies()
        successor, inventory = self._succession.ready
        self._succession.drop()
        self._child = successor
        _log.info("NVML opened again", pid=successor.pid)
        self._take_line(inventory)

    async def _start(self) -> ChildProcess:
        answer_seconds = self._deadlines.answer_seconds
        return await ChildProcess.start(
            self._command(), self.start_seconds, answer_seconds, self._kill
        )

    def _take_line(self, line: Line) -> None:
        """Note that NVML answered, and pass on what is new."""
        if isinstance(line, Asking):
            return
        if isinstance(line, Starting):
            if not self._was_silent:
                self._await_answer(self._deadlines.start_seconds)
            return
        self._is_answering, self._was_silent, self._slowness = True, False, 1.0
        self._await_answer(self._deadlines.stall_seconds)
        # Before its inventory a child may be asking cards that all take long.
        is_starting = self._child is None or self._child.is_starting
        if self._reported.is_stalled and not is_starting:
            self._reported.is_stalled = False
            self._on_report(Answered())
        if isinstance(line, NoDriver):
            self._no_driver(line)
        for report in reports(line):
            self._report(report)

    def _report(self, report: NvmlReport) -> None:
        """Pass a report on, unless it equals the last of its kind."""
        reported = self._reported
        if report in (reported.inventory, reported.missing):
            return
        if isinstance(report, Inventory):
            reported.inventory, reported.missing = report, None
        elif isinstance(report, DriverMissing):
            reported.inventory, reported.missing = None, report
        self._on_report(report)
        if isinstance(report, Inventory):
            self._driver_is(report.driver_version)
        elif isinstance(report, DriverMissing) and reported.first_version is None:
            reported.first_version = ""

    def _driver_is(self, version: str) -> None:
        """Report a driver that appears, or another one than at the start of this process."""
        before = self._reported.first_version
        self._reported.first_version = version
        if before is not None and before != version:
            self._on_report(DriverChanged(before, version))

    def _no_driver(self, line: NoDriver) -> None:
        """Report a kernel driver for which this container has no library, or another version."""
        reported = self._reported
        if line.error == MISMATCH and reported.first_version:
            self._on_report(DriverChanged(reported.first_version, ""))
            reported.first_version = ""
        kernel_driver = self._kernel_version()
        if kernel_driver and kernel_driver != reported.kernel_driver:
            reported.kernel_driver = kernel_driver
            self._on_report(DriverChanged(reported.first_version or "", kernel_driver))

    def _await_answer(self, seconds: float) -> None:
        """Set the time after which NVML counts as stalled, unless it answers before."""
        if self._stall is not None:
            self._stall.cancel()
        self._stall = asyncio.get_running_loop().call_later(seconds, self._stalled, seconds)

    def _stalled(self, seconds: float) -> None:
        self._reported.is_stalled = True
        self._reported.inventory = self._reported.missing = None
        _log.warning("NVML stalled", pid=self.pid, seconds=seconds)
        self._on_report(Stalled(seconds))

    def _kernel_version(self) -> str:
        """The loaded kernel module's first line, which names its version; empty without one."""
        try:
            return self._kernel.driver.read_text(encoding="utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError):
            return ""

    def _command(self) -> list[str]:
        pace = self._deadlines
        library = [] if self._library is None else ["--library", str(self._library)]
        return [
            *(sys.executable, "-m", "gpu_device_plugin.nvml.child"),
            *("--parent", str(os.getpid())),
            *("--kernel-module", str(self._kernel.module)),
            *("--wait-seconds", str(pace.wait_seconds)),
            *("--probe-seconds", str(pace.probe_seconds)),
            *("--silent-seconds", str(pace.answer_seconds)),
            *("--reopen-seconds", str(pace.reopen_seconds)),
            *("--last", str(-1 if self._last is None else self._last)),
            *library,
            *self._slices,
        ]
