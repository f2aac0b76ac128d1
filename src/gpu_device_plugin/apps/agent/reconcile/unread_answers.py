"""Answers of which no reconcile pass has read yet who holds what they gave."""

import asyncio
from collections.abc import Callable

NOTED_SECONDS = 1.0
"""So long after an answer the kubelet has noted it down, and a reconcile pass can read it."""
BURST_SECONDS = 5.0
"""So long at most a pass waits for the end of a burst of answers, because it keeps calls waiting."""


class UnreadAnswers:
    """One pass follows a burst of answers.

    Args:
        request_pass: Asks for a reconcile pass.
    """

    def __init__(self, request_pass: Callable[[], None]) -> None:
        self._request_pass = request_pass
        self._latest: float | None = None
        self._following: asyncio.TimerHandle | None = None
        self._burst_end = 0.0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._latest is not None

    def note(self) -> None:
        """A container gets units of which only a later pass will find out who holds them."""
        loop = asyncio.get_running_loop()
        now = self._latest = loop.time()
        if self._following is None or self._following.when() <= now:
            self._burst_end = now + BURST_SECONDS
        else:
            self._following.cancel()
        due = min(now + NOTED_SECONDS, self._burst_end)
        self._following = loop.call_at(due, self._request_pass)

    def were_read(self, since_seconds: float) -> None:
        """A pass that began then, on the loop's clock, has read what the kubelet had noted down."""
        if self._latest is not None and since_seconds - self._latest >= NOTED_SECONDS:
            self._latest = None
