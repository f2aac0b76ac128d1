"""The agent's side of NVML: runs the child process, and never waits for it without a deadline.

A child that says nothing for `answer_seconds` is killed and replaced. One that does not die is
in an uninterruptible driver call. It is abandoned, and no other is started while it exists,
because that would get stuck in the same place; so there is at most one such process. When no
child has answered for `stall_seconds`, that is reported once as `Stalled`, and the next answer
as `Answered`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_device_plugin.domain.reports import (
    Answered,
    DriverChanged,
    DriverMissing,
    Inventory,
    NvmlReport,
    Stalled,
)
from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.messages import MISMATCH, Line, NoDriver, Starting, decode, reports

log = structlog.get_logger()

_LINE_BYTES = 1024 * 1024
_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the agent waits for the child.

    Attributes:
        answer_seconds: For the child's next line.
        start_seconds: The same while NVML is being opened, which wakes every card.
        stall_seconds: Without an answer of any child, until NVML counts as stalled.
        death_seconds: For a killed child to die, until it counts as abandoned.
        backoff_seconds: Longest pause before another child.
        wait_seconds, probe_seconds, reopen_seconds: The child's pace (`child.Pace`).
    """

    answer_seconds: float = 5.0
    start_seconds: float = 30.0
    stall_seconds: float = 10.0
    death_seconds: float = 2.0
    backoff_seconds: float = 5.0
    wait_seconds: float = 2.0
    probe_seconds: float = 5.0
    reopen_seconds: float = 10.0


@dataclass(slots=True)
class _Told:
    """What was reported last, so that only changes are reported."""

    inventory: Inventory | None = None
    missing: DriverMissing | None = None
    kernel_driver: str | None = None
    first_version: str | None = None
    is_stalled: bool = False


class NvmlSource:
    """Inventory, probes, XIDs and use of the node's cards, as reports.

    Args:
        library: libnvidia-ml.so.1 to load; None for the system's.
        on_report: Called with every report, in the event loop.
        deadlines: How long to wait for what.
        kill: Ends a process for good, by pid.
        kernel_driver: File that exists while the NVIDIA kernel module is loaded.
    """

    def __init__(
        self,
        library: Path | None,
        on_report: Callable[[NvmlReport], None],
        *,
        deadlines: Deadlines | None = None,
        kill: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
        kernel_driver: Path = _KERNEL_DRIVER,
    ) -> None:
        self._library = library
        self._on_report = on_report
        self._deadlines = deadlines or Deadlines()
        self._kill = kill
        self._kernel_driver = kernel_driver
        self._told = _Told()
        self._stall: asyncio.TimerHandle | None = None
        self._pid: int | None = None
        self._restarts = 0
        self._is_answering = False

    @property
    def restarts(self) -> int:
        """How many children had to be replaced, for the metric."""
        return self._restarts

    @property
    def pid(self) -> int | None:
        """The child's pid, None while there is none."""
        return self._pid

    async def run(self) -> None:
        """Keep a child running until cancelled."""
        self._told.kernel_driver = self._kernel_version()
        pause_seconds = 0.1
        self._await_answer()
        try:
            while True:
                self._is_answering = False
                await self._keep_child()
                pause_seconds = 0.1 if self._is_answering else pause_seconds * 2
                self._restarts += 1
                await asyncio.sleep(min(pause_seconds, self._deadlines.backoff_seconds))
        finally:
            if self._stall is not None:
                self._stall.cancel()

    async def _keep_child(self) -> None:
        """One child's life."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES,
            )
        except OSError as error:
            log.warning("nvml_child_not_started", error=str(error))
            return
        self._pid = process.pid
        try:
            await self._listen(process.stdout)
        except NvmlError as error:
            log.warning("nvml_child_failed", pid=process.pid, error=str(error))
            if not await self._dies(process):
                log.warning("nvml_child_abandoned", pid=process.pid, why="stuck inside the driver")
                await process.wait()
        finally:
            if process.returncode is None:
                await self._dies(process)
            self._pid = None

    async def _listen(self, stdout: asyncio.StreamReader | None) -> None:
        """Pass on what the child says; raises NvmlError when the child has to be replaced."""
        if stdout is None:
            raise NvmlError("started without a pipe")
        allowed_seconds = self._deadlines.start_seconds
        while True:
            try:
                async with asyncio.timeout(allowed_seconds):
                    text = await stdout.readline()
            except TimeoutError as error:
                raise NvmlError(f"no answer within {allowed_seconds:g} s") from error
            except ValueError as error:
                raise NvmlError(f"a line of more than {_LINE_BYTES} bytes") from error
            if not text:
                raise NvmlError("ended by itself")
            line = decode(text)
            is_start = isinstance(line, Starting)
            allowed_seconds = (
                self._deadlines.start_seconds if is_start else self._deadlines.answer_seconds
            )
            if not is_start:
                self._answered(line)

    async def _dies(self, process: asyncio.subprocess.Process) -> bool:
        """Kill the child; returns whether it is gone soon after."""
        with suppress(ProcessLookupError):
            self._kill(process.pid)
        try:
            async with asyncio.timeout(self._deadlines.death_seconds):
                await process.wait()
        except TimeoutError:
            return False
        return True

    def _answered(self, line: Line) -> None:
        """Note that NVML answered, and pass on what is new."""
        self._is_answering = True
        self._await_answer()
        if self._told.is_stalled:
            self._told.is_stalled = False
            self._on_report(Answered())
        if isinstance(line, NoDriver):
            self._no_driver(line)
        for report in reports(line):
            self._tell(report)

    def _tell(self, report: NvmlReport) -> None:
        """Pass a report on, unless it equals the last of its kind."""
        told = self._told
        if report in (told.inventory, told.missing):
            return
        if isinstance(report, Inventory):
            told.inventory, told.missing = report, None
        elif isinstance(report, DriverMissing):
            told.inventory, told.missing = None, report
        self._on_report(report)
        if isinstance(report, Inventory):
            self._driver_is(report.driver_version)
        elif isinstance(report, DriverMissing) and told.first_version is None:
            told.first_version = ""

    def _driver_is(self, version: str) -> None:
        """Report a driver that appears, or another one than at the start of this process."""
        before = self._told.first_version
        self._told.first_version = version
        if before is not None and before != version:
            self._on_report(DriverChanged(before, version))

    def _no_driver(self, line: NoDriver) -> None:
        """Report a kernel driver for which this container has no library, or another version."""
        told = self._told
        if line.error == MISMATCH and told.first_version:
            self._on_report(DriverChanged(told.first_version, ""))
            told.first_version = ""
        kernel_driver = self._kernel_version()
        if self._library is None and kernel_driver and kernel_driver != told.kernel_driver:
            told.kernel_driver = kernel_driver
            self._on_report(DriverChanged(told.first_version or "", kernel_driver))

    def _await_answer(self) -> None:
        """Set the time at which NVML counts as stalled, unless it answers before."""
        if self._stall is not None:
            self._stall.cancel()
        loop = asyncio.get_running_loop()
        self._stall = loop.call_later(self._deadlines.stall_seconds, self._stalled)

    def _stalled(self) -> None:
        self._told.is_stalled = True
        self._told.inventory = self._told.missing = None
        log.warning("nvml_stalled", pid=self._pid, seconds=self._deadlines.stall_seconds)
        self._on_report(Stalled(self._deadlines.stall_seconds))

    def _kernel_version(self) -> str:
        """The loaded kernel module's first line, which names its version; empty without one."""
        try:
            return self._kernel_driver.read_text(encoding="utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError):
            return ""

    def _command(self) -> list[str]:
        pace = self._deadlines
        library = [] if self._library is None else ["--library", str(self._library)]
        return [
            *(sys.executable, "-m", "gpu_device_plugin.nvml.child"),
            *("--parent", str(os.getpid())),
            *("--wait-seconds", str(pace.wait_seconds)),
            *("--probe-seconds", str(pace.probe_seconds)),
            *("--reopen-seconds", str(pace.reopen_seconds)),
            *library,
        ]
