"""Long work in turns: everything else in the loop goes on in between."""

import asyncio
import time
from collections.abc import Iterable

TURN_SECONDS = 0.01


class Turns:
    """Called between two steps; the Lease, the watches and /healthz go on, however many there are."""

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    async def give(self) -> None:
        """Let the others run if this work has had the loop for long enough."""
        if time.monotonic() - self._began >= self._seconds:
            await asyncio.sleep(0)
            self._began = time.monotonic()

    async def finish(self, steps: Iterable[None]) -> None:
        """Take all steps."""
        for _ in steps:
            await self.give()
