"""The child lives no longer than its parent, however the parent ends.

Three nets, since each has a hole: the kernel's parent-death signal (not if the parent died
before it was asked for; it also fires when the *thread* that started us ends, so `source`
starts us from the event loop's), the parent's pid (after the first is set, closes its hole;
told by argument, since in a container the agent itself may be pid 1), and the end of stdin
(works across everything, but only between two calls).
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
        parent: Pid of the process that started us; 0 when a person did.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent
        if parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def holds(self) -> bool:
        """Whether the parent is still there."""
        return self.pause(0)

    def pause(self, seconds: float) -> bool:
        """Waits, at most until the parent is gone; whether it is still there."""
        if not self._parent:
            select.select([], [], [], seconds)
            return True
        if os.getppid() != self._parent:
            return False
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return not readable or bool(os.read(sys.stdin.fileno(), 1))
