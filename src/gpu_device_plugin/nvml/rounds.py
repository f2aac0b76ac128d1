"""Rounds over the cards of an opened driver: one is asked after the other, and what they answer is told.

A call on one card may take as long as the driver likes: NVIDIA's waits 45 s for a card's
processor that does not answer. Such a card is told to be silent, and the round goes on without it.
So the card is named before it is asked; where the driver lets no card answer after that, the agent
knows by the name which one the next child leaves for last.
"""

from __future__ import annotations

import time

import pynvml

from gpu_device_plugin.nvml.open_questions import Questions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpu_device_plugin.nvml.driver import Driver

SILENT = "NO_ANSWER"  # in place of NVML's error: `nvml_reports.NO_ANSWER`
_EVENTS_PER_WAIT = 256


class Pace:
    """The child's intervals, and what else its arguments say. No dataclass, because importing that costs 1 MiB."""

    wait_seconds = 1.0  # longest wait for an event or a probe, and so between two signs of life
    probe_seconds = 5.0  # between two rounds
    silent_seconds = 5.0  # for all calls of a card in a round, until it counts as silent
    reopen_seconds = 10.0  # between two looks at whether the simulated node was changed
    slices = ""  # directory of the slices, where gpu-limit-hook leaves marks
    last = -1  # index of the card that is asked last


class Rounds:
    """Asks, and tells, as long as `step` is called."""

    def __init__(self, driver: Driver, pace: Pace, tell: Callable[..., None]) -> None:
        self._driver, self._pace, self._tell = driver, pace, tell
        self._order = sorted(range(driver.count), key=lambda index: index == pace.last)
        self._witnesses = set[int | None](self._order)
        self._questions = Questions(pace.silent_seconds, self._witnesses)
        self._find_witness()
        self._to_ask: list[int | None] = []
        self._began = -pace.probe_seconds
        self._is_wanted = self._is_shown = False
        self._named: int | None = None
        # Silent cards that were named: again and again they would be signs of life of a driver that hangs.
        self._told: set[int | None] = set()
        self.has_changed = False
        """Whether driver or cards differ from what was told."""
        self._failing: set[int] = set()  # cards whose last answer was an error

    @property
    def is_failing(self) -> bool:
        """Whether a card answers with an error: opened again, the driver may have it back."""
        return bool(self._failing or self._driver.unreadable)

    def step(self) -> bool:
        """Ask the next card, or wait for what happens; whether a round is over."""
        now = time.monotonic()
        if not self._to_ask and now - self._began >= self._pause():
            self._began, self._is_wanted = now, False
            self._to_ask = [None, *self._order]
        if self._to_ask:
            self._ask(self._to_ask.pop(0))
        wait_seconds = 0.0 if self._to_ask else self._pace.wait_seconds
        if self._is_shown:
            self._events(wait_seconds)
        else:
            self._take(wait_seconds)
        while self._take(0):
            pass
        self._tell_silent()
        return self._is_shown and not self._to_ask

    @property
    def are_answered(self) -> bool:
        """Whether the card that was asked last has answered: if not, nothing is heard of this child."""
        return self._questions.are_answered

    @property
    def is_waiting(self) -> bool:
        """Whether an answer of a card is awaited."""
        return any(index is not None for index in self._questions.open)

    def drain(self) -> None:
        """Tell the XIDs that are there, before the driver is closed."""
        self._events(0)

    def _pause(self) -> float:
        """Seconds between rounds; fewer after an event, but not one for each of many."""
        pace = self._pace
        is_quiet = self._is_shown and self.are_answered and not self._is_wanted
        return pace.probe_seconds if is_quiet else min(pace.wait_seconds, pace.probe_seconds)

    def _ask(self, index: int | None) -> None:
        """Ask, unless an earlier question is open, and wait a while for the answer."""
        driver, seconds = self._driver, self._pace.wait_seconds
        if index in self._questions.open or index in driver.unreadable:
            return
        if index is None:
            self._questions.ask(None, driver.has_changed)
        elif index in driver.cards:
            self._questions.ask(index, driver.probe, index, self._pace.slices)
        else:  # which may wake it
            seconds = seconds if self.is_waiting else self._pace.silent_seconds
            self._questions.ask(index, driver.enumerate, index)
            if index == self._pace.last and driver.cards:
                self._questions.suspect(index)
        name = next(iter(self._questions.open))
        if name != self._named:
            self._named = name
            self._tell(kind="asking", index=name)
        end = time.monotonic() + seconds
        while index in self._questions.open and time.monotonic() < end:
            self._take(end - time.monotonic())

    def _take(self, seconds: float) -> bool:
        """Take the next answer; whether one came in time."""
        found = self._questions.answer(seconds)
        if found is None:
            return False
        index, value, is_late = found
        self._told.discard(index)
        if index is None:
            self.has_changed = self.has_changed or value
        elif value is None:
            self._take_card(index, is_late=is_late)
        else:
            self._take_probe(index, value, is_late=is_late)
        return True

    def _find_witness(self) -> None:
        """A card alone, or beside cards that are not asked again, has the driver itself.

        That often answers where its cards do not.
        """
        if len(self._order) - len(self._driver.unreadable) < 2:
            self._witnesses.clear()
            self._witnesses.add(None)

    def _take_card(self, index: int, *, is_late: bool) -> None:
        self._find_witness()
        if index in self._driver.cards:
            self._driver.cards[index]["is_silent"] = is_late
        if self._is_shown:
            self._tell_inventory()
        else:
            self._tell(kind="beat")

    def _take_probe(self, index: int, probe: dict[str, Any], *, is_late: bool) -> None:
        self.has_changed = probe.pop("has_changed", False) or self.has_changed
        self._failing.discard(index)
        if "error" in probe:
            self._failing.add(index)
        elif is_late:
            probe = {"uuid": probe["uuid"], "error": SILENT}
        else:
            self._driver.cards[index].pop("is_silent", None)
        if self._is_shown:
            self._tell(kind="probes", cards=[probe])

    def _tell_silent(self) -> None:
        """Name the cards that are silent; with these the first inventory is complete."""
        driver, open_ = self._driver, self._questions.open
        silent = {index for index in open_ if self._questions.is_silent(index)}
        if not self._is_shown:
            self._is_shown = {*self._order} <= {*driver.cards, *driver.unreadable, *silent}
            if self._is_shown:
                self._tell_inventory()
                self._began = -self._pace.probe_seconds
        for index in silent - self._told if self._is_shown else ():
            self._told.add(index)
            if index in driver.cards:
                probe = {"uuid": driver.uuids[index], "error": SILENT}
                self._tell(kind="probes", cards=[probe])

    def _tell_inventory(self) -> None:
        told = self._driver.inventory()
        known = {*self._driver.cards, *self._driver.unreadable}
        silent = [
            {"index": index, "error": SILENT, "uuid": self._driver.uuids.get(index, "")}
            for index in sorted({*self._order} - known)
        ]
        self._tell(**{**told, "unreadable": [*self._driver.unreadable.values(), *silent]})

    def _events(self, wait_seconds: float) -> None:
        """Wait for an XID and tell all there are; the cards are asked soon after one."""
        if not self._driver.has_events:
            self._take(wait_seconds)
            return
        told = 0
        try:
            while told < _EVENTS_PER_WAIT:
                xid = self._driver.next_xid(0 if told else int(wait_seconds * 1000))
                if xid is None:
                    return
                self._tell(kind="xid", uuid=xid[0], code=xid[1], instances=xid[2])
                told, self._is_wanted = told + 1, True
        except pynvml.NVMLError:
            # A lost card makes the wait for all fail at once: ask which one it is, do not spin.
            self._is_wanted = True
            self._take(wait_seconds)
