"""Whether the API server answers, and whose turn it is to try while it does not."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How often a node may try again.

    Attributes:
        away_seconds: Least time between two requests of the whole node while the API is away;
            up to half as much again is added by chance, so that nodes do not come in step.
        first_seconds: First pause of a loop whose own request was refused.
        watch_lag_seconds: Time for the watch to show a write before it is compared again.
        silence_seconds: Least time without event or bookmark until a watch is opened again; up to
            half as much again is added by chance. API servers send a bookmark every minute.
    """

    away_seconds: float = 1.0
    first_seconds: float = 1.0
    longest_seconds: float = 5.0
    watch_lag_seconds: float = 5.0
    silence_seconds: float = 120.0

    def pause(self, failures: int, longest_seconds: float | None = None) -> float:
        """Seconds to wait after the given number of failures in a row, with jitter."""
        longest = self.longest_seconds if longest_seconds is None else longest_seconds
        grown = self.first_seconds * 2.0 ** min(failures - 1, 16)
        return min(grown, longest) * random.uniform(0.75, 1.0)  # noqa: S311 jitter


class ApiAvailability:
    """One node's view of the API server's health, shared by everything that calls it.

    While it is away, callers queue for turns that lie at least `away_seconds` apart; the
    first answer lets all of them go at once. So a node never sends more than one request
    a second into an outage, and is back within seconds after it.
    """

    def __init__(self, pace: RetryPace) -> None:
        self.pace = pace
        self.trouble = ""  # what the last failed request met; empty while the server answers
        self._listeners: list[Callable[[], None]] = []
        self._back = asyncio.Event()
        self._back.set()
        self._next_turn = 0.0
        self._away_since = 0.0

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def is_away(self) -> bool:
        """Whether the last request of a background loop went unanswered."""
        return not self._back.is_set()

    def answered(self) -> None:
        if self.is_away:
            seconds = asyncio.get_running_loop().time() - self._away_since
            _log.info("the API server answers again", away_seconds=round(seconds, 1))
            self.trouble = ""
            self._back.set()
            self._changed()

    def failed(self, text: str) -> None:
        """A request got no answer, or one that asks to stay away."""
        self.trouble = text
        if not self.is_away:
            now = asyncio.get_running_loop().time()
            _log.warning("the API server cannot be reached", error=text)
            self._back.clear()
            self._away_since = now
            self._next_turn = now + self._spacing()
            self._changed()

    async def turn(self) -> None:
        if not self.is_away:
            return
        turn = max(self._next_turn, asyncio.get_running_loop().time())
        self._next_turn = turn + self._spacing()
        try:
            async with asyncio.timeout_at(turn):
                await self._back.wait()
        except TimeoutError:
            return

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    def _spacing(self) -> float:
        return self.pace.away_seconds * random.uniform(1.0, 1.5)  # noqa: S311 jitter
