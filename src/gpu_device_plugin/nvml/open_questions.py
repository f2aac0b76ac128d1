"""Questions to the driver, each in a thread of its own: one without an answer holds up no other."""

from __future__ import annotations

import time
from _thread import start_new_thread
from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any


class Questions:
    """At most one open question to each card, by its index, and to the driver as a whole (None).

    A card is silent when its question has been open for `silent_seconds`, although a card that was
    asked later answered a while ago: where none answers, it is the driver, which wakes its callers
    one by one. `witnesses` are whose answers tell. An answer after `silent_seconds` is late, whatever
    others do: two slow cards have no witness.
    """

    def __init__(self, silent_seconds: float, witnesses: Collection[int | None]) -> None:
        self._silent_seconds = silent_seconds
        self._witnesses = witnesses
        self._answers: SimpleQueue[tuple[int | None, Any, float]] = SimpleQueue()
        self.open: dict[int | None, float] = {}
        """Since when each has been open; the oldest first."""
        self._passed: dict[
            int | None, float
        ] = {}  # since when one that was asked later is answered
        self._last: int | None = None

    def ask(self, index: int | None, question: Callable[..., Any], *arguments: object) -> None:
        self.open[index] = time.monotonic()
        self._last = index if index in self._witnesses else self._last
        start_new_thread(self._run, (index, question, arguments))

    def suspect(self, index: int) -> None:
        """Others have answered before this one is asked, which kept them from it in another process."""
        self._passed[index] = time.monotonic()

    def answer(self, seconds: float) -> tuple[int | None, Any, bool] | None:
        """Whose answer came in time, what it is, and whether it is late; an error is raised."""
        try:
            index, value, at = self._answers.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        asked = self.open.pop(index)
        self._passed.pop(index, None)
        for other, since in self.open.items() if index in self._witnesses else ():
            if since < asked:
                self._passed.setdefault(other, time.monotonic())
        if isinstance(value, Exception):
            raise value
        return index, value, at - asked >= self._silent_seconds

    def is_silent(self, index: int | None) -> bool:
        if index not in self._passed:
            return False
        now, least = time.monotonic(), self._silent_seconds
        return now - self.open[index] >= least and now - self._passed[index] >= least / 5

    @property
    def are_answered(self) -> bool:
        """Whether the card that was asked last has answered."""
        return self._last not in self._witnesses or self._last not in self.open

    def _run(
        self, index: int | None, question: Callable[..., Any], arguments: tuple[object, ...]
    ) -> None:
        try:
            value = question(*arguments)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            value = error
        self._answers.put((index, value, time.monotonic()))
