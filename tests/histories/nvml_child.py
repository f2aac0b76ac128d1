"""The agent's NVML child in virtual time.

It says what `nvml.child` says of a driver that is not simulated, line for line; the real one is held to
that form by tests/nvml. So it keeps NVML open, and another child opens it again. It hangs where the
driver hangs, and then only dies when the driver lets it: when every call that it is in has returned.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.histories.driver import PROFILE, SLOW_SECONDS, Driver, SimulatedCard
from tests.histories.loop import PROCESS, in_process
from tests.histories.machine import Machine

_WAIT_SECONDS = 2.0
_PROBE_SECONDS = 5.0
_NO_ANSWER = "NO_ANSWER"
_Xid = tuple[str, int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Opened:
    """What NVML showed when it was opened."""

    shown: tuple[SimulatedCard, ...]
    cards: tuple[SimulatedCard, ...]
    modes: tuple[tuple[bool, int], ...]
    load: int

    @classmethod
    def of(cls, driver: Driver) -> "_Opened":
        cards = tuple(card for card in driver.shown if not card.error)
        modes = tuple(_cut(card) for card in cards)
        return cls(tuple(driver.shown), cards, modes, driver.load)

    def is_stale(self, driver: Driver) -> bool:
        """Whether only another opening shows what is there now."""
        if driver.load != self.load or tuple(driver.shown) != self.shown:
            return True
        modes = zip(self.cards, self.modes, strict=True)
        return any(_cut(card) != was for card, was in modes if not card.error)


def _cut(card: SimulatedCard) -> tuple[bool, int]:
    return card.is_mig, card.instances


class _Stdin:
    """The pipe that the child lives by."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closed = asyncio.Event()

    def close(self) -> None:
        self._closed.set()

    def is_closing(self) -> bool:
        return self._closed.is_set() or self._loop.is_closed()

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than it is open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()


class Child:
    """One child process."""

    def __init__(self, machine: Machine, driver: Driver, protocol: Any) -> None:
        self._machine = machine
        self._driver = driver
        self._protocol = protocol
        self._returncode: int | None = None
        self._ended: list[asyncio.Future[int]] = []
        self._stdin = _Stdin(machine.loop)
        self._questions: dict[str, float] = {}  # UUID of a card -> since when it owes an answer
        self._answers: asyncio.Queue[tuple[SimulatedCard, bool]] = asyncio.Queue()
        self.pid = machine.spawned(self.killed)
        self._task = in_process(None, self._run)
        parent = PROCESS.get()
        if parent is not None:
            parent.on_death += (self._task.cancel, self._stdin.close)

    # -- as `asyncio.SubprocessTransport`

    def get_pid(self) -> int:
        return self.pid

    def get_returncode(self) -> int | None:
        return self._returncode

    def get_pipe_transport(self, number: int) -> "Child | _Stdin | None":
        pipes: dict[int, Child | _Stdin] = {0: self._stdin, 1: self}
        return pipes.get(number)

    def is_closing(self) -> bool:
        return self._returncode is not None or self._machine.loop.is_closed()

    def close(self) -> None:
        """The parent closes its ends."""

    def pause_reading(self) -> None:
        """Lines are few."""

    def resume_reading(self) -> None:
        """Lines are few."""

    async def _wait(self) -> int:
        if self._returncode is None:
            waiting = asyncio.get_running_loop().create_future()
            self._ended.append(waiting)
            await waiting
        return self._returncode or 0

    def killed(self) -> None:
        """SIGKILL: a process inside a driver call that hangs dies when the call returns."""
        self._task.cancel()
        in_process(None, self._die)

    async def _die(self) -> None:
        cards = {card.uuid: card for card in self._driver.cards}
        for uuid, asked_at in tuple(self._questions.items()):
            seconds = asked_at + cards[uuid].call_seconds - self._machine.loop.time()
            await asyncio.sleep(max(0.0, seconds))
        await self._driver.call()
        self._exit(-9)

    def _exit(self, returncode: int) -> None:
        if self._returncode is None:
            self._returncode = returncode
            self._stdin.close()
            self._protocol.pipe_connection_lost(1, None)
            self._protocol.process_exited()
            for waiting in self._ended:
                if not waiting.done():
                    waiting.set_result(returncode)

    # -- what it does

    def _say(self, **message: object) -> None:
        line = json.dumps(message).encode() + b"\n"
        self._protocol.pipe_data_received(1, line)

    async def _run(self) -> None:
        await asyncio.sleep(0.2)  # the interpreter starts
        while not self._stdin.is_closing():
            self._say(kind="starting")
            await self._driver.call()
            self._driver.opening_seconds = self._driver.init_seconds
            await asyncio.sleep(self._driver.opening_seconds)
            await self._driver.call()
            if self._driver.is_loaded:
                await self._watch()
            if not self._driver.is_loaded:
                self._say(kind="no_driver", error="DRIVER_NOT_LOADED")
                await self._stdin.pause(_WAIT_SECONDS)
        self._exit(0)

    async def _watch(self) -> None:
        """Report until the driver is gone, or the parent wants no more."""
        driver = self._driver
        xids: asyncio.Queue[_Xid] = asyncio.Queue()
        driver._listeners.append(xids)
        rounds = _Rounds(_Opened.of(driver), driver, self._say, self._questions)
        try:
            while not self._stdin.is_closing() and driver.is_loaded:
                is_wanted = self._told(xids)
                await rounds.go(is_wanted=is_wanted)
                if rounds.is_shown and rounds.are_answered:
                    self._say(kind="beat", reopen=rounds.reopen)
                await self._event(xids)
        finally:
            rounds.end()
            driver._listeners.remove(xids)

    def _told(self, xids: "asyncio.Queue[_Xid]") -> bool:
        is_any = not xids.empty()
        while not xids.empty():
            uuid, code, instances = xids.get_nowait()
            self._say(kind="xid", uuid=uuid, code=code, instances=instances)
        return is_any

    async def _event(self, xids: "asyncio.Queue[_Xid]") -> None:
        """Wait for the next one, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                xids.put_nowait(await xids.get())


class _Rounds:
    """Asks one card after the other, each in a thread of its own; a card that is silent holds up no other one."""

    def __init__(
        self, opened: _Opened, driver: Driver, say: Callable[..., None], questions: dict[str, float]
    ) -> None:
        self.is_shown, self.are_answered, self.reopen = False, True, ""
        self._opened, self._driver, self._say, self._since = opened, driver, say, questions
        # Cards that have told what they are: whether late, and the error that NVML gave instead.
        self._known = {card.uuid: (False, card.error) for card in opened.shown if card.error}
        self._asked: list[str] = []  # in the order of their last questions
        self._answered_at: dict[str, float] = {}
        self._named: set[str] = set()  # silent cards, since they were asked
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = -1e9

    async def go(self, *, is_wanted: bool) -> None:
        """One round, if it is time for one."""
        now = asyncio.get_running_loop().time()
        is_quiet = self.is_shown and self.are_answered and not is_wanted
        if now - self._began < (_PROBE_SECONDS if is_quiet else _WAIT_SECONDS):
            return
        self._began = now
        for card in self._opened.cards:
            if card.uuid not in self._since:
                await self._ask(card)
        self._tell_silent()
        if self._driver.answers:
            failing = any(card.error or not card.is_there for card in self._opened.cards)
            is_unreadable = any(error for _, error in self._known.values())
            self.reopen = "failing" if failing or is_unreadable else ""
            if self._opened.is_stale(self._driver):
                self.reopen = "changed"

    def end(self) -> None:
        """NVML is closed."""
        for task in self._tasks:
            task.cancel()
        self._since.clear()

    async def _ask(self, card: SimulatedCard) -> None:
        """Name it, ask it, and wait a while for its answer."""
        loop = asyncio.get_running_loop()
        self._since[card.uuid] = loop.time()
        self._asked = [uuid for uuid in self._asked if uuid != card.uuid] + [card.uuid]
        self._say(kind="asking", index=self._opened.shown.index(card))
        task = loop.create_task(self._answer(card))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task}, timeout=_WAIT_SECONDS)
        is_alone = len(self._opened.cards) == 1
        self.are_answered = self._driver.answers if is_alone else self._asked[-1] not in self._since

    async def _answer(self, card: SimulatedCard) -> None:
        await self._driver.ask(card)
        now = self._answered_at[card.uuid] = asyncio.get_running_loop().time()
        self._named.discard(card.uuid)
        is_late = now - self._since.pop(card.uuid) >= SLOW_SECONDS
        if card.uuid not in self._known:
            self._known[card.uuid] = is_late, card.error
            self._tell_inventory()
        elif self.is_shown:
            self._say(kind="probes", cards=[self._probe(card, is_late=is_late)])

    def _is_silent(self, card: SimulatedCard) -> bool:
        """Whether it has owed an answer for long, although one that was asked later has given it."""
        since = self._since.get(card.uuid)
        if since is None or asyncio.get_running_loop().time() - since < SLOW_SECONDS:
            return False
        if len(self._opened.cards) == 1:  # a card alone has no witness but the driver itself
            return self._driver.answers
        return any(at > since for uuid, at in self._answered_at.items() if uuid != card.uuid)

    def _tell_silent(self) -> None:
        silent = [card for card in self._opened.cards if self._is_silent(card)]
        for card in silent:
            if card.uuid in self._known and card.uuid not in self._named:
                self._named.add(card.uuid)
                probe = {"uuid": card.uuid, "error": _NO_ANSWER}
                self._say(kind="probes", cards=[probe])
        told = self._known.keys() | {card.uuid for card in silent}
        if not self.is_shown and told >= {card.uuid for card in self._opened.cards}:
            self.is_shown = True
            self._tell_inventory()

    def _tell_inventory(self) -> None:
        if self.is_shown or len(self._known) == len(self._opened.shown):
            self.is_shown = True
            self._say(**_inventory(self._driver, self._opened.shown, self._known))
        else:
            self._say(kind="beat")

    def _probe(self, card: SimulatedCard, *, is_late: bool) -> dict[str, object]:
        error = card.error or ("" if card.is_there else "GPU_IS_LOST")
        error = error or (_NO_ANSWER if is_late else "")
        told: dict[str, object] = {
            "recovery_action": card.action,
            "limits": dict(self._driver.limits(card.uuid)),
        }
        if error:
            told = {"error": error}
        return {"uuid": card.uuid, **told}


def _inventory(
    driver: Driver, cards: tuple[SimulatedCard, ...], known: Mapping[str, tuple[bool, str]]
) -> dict[str, object]:
    shown = [
        {
            "uuid": card.uuid,
            "index": index,
            "minor": index,
            "model": "Tesla-V100-SXM2-16GB",
            "memory_mib": card.memory_mib,
            "is_mig": card.is_mig,
            "is_silent": known[card.uuid][0],
            "hardware": {
                "is_mig": card.is_mig,
                "is_mig_capable": True,
                "instances": [
                    _instance(uuid, place) for place, uuid in enumerate(card.instance_uuids)
                ],
            },
        }
        for index, card in enumerate(cards)
        if card.uuid in known and not known[card.uuid][1]
    ]
    unreadable = [
        {"index": i, "error": known[c.uuid][1]}
        if c.uuid in known
        else {"index": i, "error": _NO_ANSWER, "uuid": c.uuid}
        for i, c in enumerate(cards)
        if c.uuid not in known or known[c.uuid][1]
    ]
    return {
        "kind": "inventory",
        "driver_version": "535.104.05",
        "cuda_version": "12.2",
        "driver_load": str(driver.load),
        "cards": shown,
        "unreadable": unreadable,
        "links": {},
    }


def _instance(uuid: str, place: int) -> dict[str, object]:
    return {
        "uuid": uuid,
        "index": place,
        "gpu_instance": place + 7,
        "compute_instance": 0,
        "profile": PROFILE,
        "memory_mib": 4864,
        "gpu_slices": 1,
        "compute_slices": 1,
        "multiprocessors": 14,
    }


def spawner(machine: Machine, driver: Driver) -> Callable[..., Any]:
    """As `loop.subprocess_exec`."""

    async def spawn(protocol_factory: Callable[[], Any], *_: Any, **__: Any) -> tuple[Any, Any]:
        protocol = protocol_factory()
        child = Child(machine, driver, protocol)
        protocol.connection_made(child)
        return child, protocol

    return spawn
