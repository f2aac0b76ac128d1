"""The child lives no longer than its parent, however the parent ends.

Three ways, because each alone has a gap:

- The kernel's parent-death signal. It does not come if the parent died before it was set. It
  also comes when the *thread* that started the child ends, so `source` uses the event loop's.
- The parent's pid, compared after the signal is set, closes that gap. It is an argument, because
  in a container the agent itself may be pid 1.
- The end of stdin always works, but is noticed only between two calls.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1


class Lifeline:
    """The tie to the parent process.

    Args:
        parent: Pid of the process that started this one; 0 if a person did.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent
        if parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def holds(self) -> bool:
        """Whether the parent is still there."""
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
