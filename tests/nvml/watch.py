"""A running source, and what it reported."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpu_device_plugin.domain.cards.nvml_reports import NvmlReport
from gpu_device_plugin.nvml.child_process import Kill
from gpu_device_plugin.nvml.child_process import kill as kill_process
from gpu_device_plugin.nvml.nvml_source import Deadlines, KernelModule, NvmlSource

Report = TypeVar("Report")

# A child that answers, however slow this machine is; tests of stalls have their own.
PATIENT = Deadlines(
    answer_seconds=30, stall_seconds=60, wait_seconds=0.1, probe_seconds=0.2, reopen_seconds=0.3
)
# Still time enough to start Python and to compile pynvml, and to answer beside other work.
HURRIED = Deadlines(
    answer_seconds=2,
    start_seconds=60,
    stall_seconds=8,
    backoff_seconds=0.5,
    wait_seconds=0.1,
    probe_seconds=0.2,
    reopen_seconds=60,
)


class Watch:
    """Runs a source and keeps its reports."""

    def __init__(
        self,
        library: Path | None,
        deadlines: Deadlines,
        *,
        kill: Kill = kill_process,
        kernel: KernelModule = KernelModule(Path("/nonexistent"), Path("/nonexistent")),  # noqa: B008 frozen
    ) -> None:
        self.reports: list[NvmlReport] = []
        self._kinds: list[type[NvmlReport]] = []
        self.source = NvmlSource(library, self._keep, deadlines=deadlines, kill=kill, kernel=kernel)
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self.source.run())

    async def stop(self) -> None:
        """Ends the source and its child."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def seen(
        self, kind: type[Report], check: Callable[[Report], bool] = lambda _: True
    ) -> Report:
        """The first report of this kind that passes; waits for it, and drops what came before."""
        async with asyncio.timeout(100):
            while True:
                for place, report in enumerate(self.reports):
                    if isinstance(report, kind) and check(report):
                        del self.reports[: place + 1]
                        return report
                self._news.clear()
                await self._news.wait()

    def ever(self, kind: type[NvmlReport]) -> bool:
        """Whether anything of this kind was reported since the start."""
        return kind in self._kinds

    def _keep(self, report: NvmlReport) -> None:
        self.reports.append(report)
        self._kinds.append(type(report))
        self._news.set()


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
