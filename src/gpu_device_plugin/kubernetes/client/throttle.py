"""How long each kind of call has to wait that the API server throttles: Retry-After, or our own pauses.

It throttles kinds of calls (API priority and fairness, the rate limit of Events, a slow storage). So a
429 says nothing about other calls, and does not mean that the server is away.
"""

import asyncio
from dataclasses import dataclass

from gpu_device_plugin.kubernetes.client.api_availability import RetryPace

# A server may ask for any delay; this is the longest that is honoured.
_LONGEST_SECONDS = 60.0


@dataclass(slots=True)
class _Hold:
    """Until when a kind of call waits (the loop's clock), after so many refusals in a row."""

    until_seconds: float
    refusals: int


class Throttle:
    """Until when each kind of call has to wait."""

    def __init__(self, pace: RetryPace) -> None:
        self._pace = pace
        self._holds: dict[str, _Hold] = {}

    def wait_seconds(self, kind: str) -> float:
        """Seconds until a call of this kind may be sent; 0 for now."""
        hold = self._holds.get(kind)
        return max(0.0, hold.until_seconds - self._now()) if hold else 0.0

    def refused(self, kind: str, retry_after: str) -> float:
        """Note that the server throttles a kind of call; returns for how many seconds.

        A Retry-After of seconds is honoured, up to `_LONGEST_SECONDS`. Without it, or with a date
        (which Kubernetes never sends), our own pauses grow.
        """
        before = self._holds.get(kind)
        refusals = before.refusals + 1 if before else 1
        seconds = self._pace.pause(refusals)
        if retry_after.isdecimal():
            seconds = min(float(retry_after), _LONGEST_SECONDS)
        self._holds[kind] = _Hold(self._now() + seconds, refusals)
        return seconds

    def answered(self, kind: str) -> None:
        self._holds.pop(kind, None)

    async def turn(self, kind: str) -> None:
        while (seconds := self.wait_seconds(kind)) > 0:
            await asyncio.sleep(seconds)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
