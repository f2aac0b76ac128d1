"""The NVML child: the process that calls the driver. Writes JSON lines, reads no input.

    python -m gpu_device_plugin.nvml.child [--library PATH]

Any call may block for ever inside the driver; `nvml_source` in the agent watches the time. So this
process takes no commands and has no state that must be kept. Each card is asked in a thread of its
own (`rounds`), while this one reads XIDs. Every line but `asking` is a sign of life;
`starting` announces that the next one may take long, because nvmlInit wakes each card, which
takes seconds per card without the persistence daemon. It imports as little as possible, because
it runs beside every agent on every node: not even typing, pathlib (0.7 MiB each) and argparse (0.5 MiB).

NVML counts its cards when it is opened, and a card that was lost stays lost for a process that
has it open. Closing it would leave the other cards unwatched for as long as opening takes. So
the child keeps it open and says in each `beat` why another child should take over (`reopen`).
Only the simulated driver is opened again here, when its node was changed: it opens at once.

The child lives no longer than its parent, however the parent ends.

Three ways, because each alone has a gap:

- The kernel's parent-death signal. It does not come if the parent died before it was set. It
  also comes when the *thread* that started the child ends, so `nvml_source` uses the event loop's.
- The parent's pid, compared after the signal is set, closes that gap. It is an argument, because
  in a container the agent itself may be pid 1.
- The end of stdin always works, but is noticed only between two calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from getopt import getopt

from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml import driver as nvml
from gpu_device_plugin.nvml.rounds import Pace, Rounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

_PR_SET_PDEATHSIG = 1


class Lifeline:
    """The tie to the parent process: its pid, or 0 if a person started this one."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        if parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def holds(self) -> bool:
        return self.pause(0)

    def pause(self, seconds: float) -> bool:
        """Wait, at most until the parent is gone; returns whether it is still there."""
        if not self._parent:
            select.select([], [], [], seconds)
            return True
        if os.getppid() != self._parent:
            return False
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return not readable or bool(os.read(sys.stdin.fileno(), 1))


class Child:
    """Watches NVML and reports, until its parent ends."""

    def __init__(
        self, library: str | None, kernel_module: str, lifeline: Lifeline, pace: Pace, out: TextIO
    ) -> None:
        self._library = library
        self._kernel_module = kernel_module
        self._lifeline = lifeline
        self._pace = pace
        self._out = out

    def run(self) -> None:
        """Watch NVML until the parent is gone; without a driver, try again from time to time."""
        is_slow = True
        while self._lifeline.holds():
            # The simulated driver opens at once: one that hangs then is found out as at any time.
            if is_slow:
                self._tell(kind="starting")
            around = nvml.surroundings(self._kernel_module)
            try:
                with nvml.open_driver(self._library, self._kernel_module) as driver:
                    is_slow = self._watch(driver, around)
            except NvmlError as error:
                is_slow = True
                self._tell(kind="no_driver", error=str(error))
                self._lifeline.pause(self._pace.wait_seconds)

    def _watch(self, driver: nvml.Driver, around: tuple[object, ...]) -> bool:
        """Report until the simulated driver has to be opened again; whether a card will be slow then."""
        looked_at = time.monotonic()
        rounds = Rounds(driver, self._pace, self._tell)
        while self._lifeline.holds():
            if not rounds.step():
                continue
            reopen = "failing" if rounds.is_failing else ""
            if rounds.has_changed or nvml.surroundings(self._kernel_module) != around:
                reopen = "changed"
            # Not while a card is silent: a new opening would wait for it before its XIDs are heard.
            is_due = time.monotonic() - looked_at >= self._pace.reopen_seconds
            is_due = is_due and not rounds.is_waiting
            looked_at = time.monotonic() if is_due else looked_at
            if driver.is_simulated and (reopen == "changed" or (is_due and driver.is_other_node())):
                rounds.drain()
                break
            if rounds.are_answered:
                self._tell(kind="beat", reopen=reopen)
        return rounds.is_waiting

    def _tell(self, **message: object) -> None:
        self._out.write(json.dumps(message, separators=(",", ":")) + "\n")
        self._out.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the child; returns its exit status."""
    paces = ("wait-seconds", "probe-seconds", "silent-seconds", "reopen-seconds")
    others = ("library", "kernel-module", "parent", "slices", "last")
    names = [f"{name}=" for name in (*others, *paces)]
    given, _ = getopt(sys.argv[1:] if arguments is None else list(arguments), "", names)
    chosen, pace = dict(given), Pace()
    for name in paces:
        if f"--{name}" in chosen:
            setattr(pace, name.replace("-", "_"), float(chosen[f"--{name}"]))
    pace.slices, pace.last = chosen.get("--slices", ""), int(chosen.get("--last", -1))
    parent = int(chosen.get("--parent", 0))  # pid to live no longer than
    module = chosen.get("--kernel-module", "/sys/module/nvidia")
    lifeline = Lifeline(parent)
    if parent:
        # Ctrl-C on a terminal reaches the whole group; it is the parent's to answer.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _return_free_memory()
    try:
        Child(chosen.get("--library"), module, lifeline, pace, sys.stdout).run()
    except BrokenPipeError:
        # Nobody reads any more; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _return_free_memory() -> None:
    """Return the memory that compiling pynvml took if its bytecode is not cached: 11 of 28 MiB."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        return


if __name__ == "__main__":
    sys.exit(main())
