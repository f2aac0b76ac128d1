"""Waiting for a condition, with a deadline and a name for what was waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 3.0
"""Deadlines are for what never happens, not for what is slow: a loaded machine gets this much more."""


class DeadlineError(Exception):
    """What was waited for did not come in time."""


def wait_for(what: str, probe: Callable[[], T], seconds: float = 60.0, every: float = 0.1) -> T:
    """Ask until the answer is true, and return that answer.

    Args:
        what: names the condition in the error.
        probe: asked again and again; its last answer stands in the error.
        seconds: the deadline, on a machine with nothing else to do.
        every: the pause between two questions.

    Raises:
        DeadlineError: the answer was still false at the deadline.
    """
    patience_seconds = seconds * PATIENCE
    deadline = time.monotonic() + patience_seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise DeadlineError(f"{what}: not within {patience_seconds:g} s, last seen: {answer!r}")
        time.sleep(every)
