"""NVIDIA's driver with its cards, and the agent's NVML child in virtual time.

The child says what `nvml.child` says of a driver that is not simulated, line for line; the real
one is held to that form by tests/nvml. So it keeps NVML open, and another child opens it again. It
hangs where the driver hangs, and then only dies when the driver lets it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.histories.loop import PROCESS, in_process
from tests.histories.machine import Machine

_WAIT_SECONDS = 2.0
_PROBE_SECONDS = 5.0


@dataclass(slots=True)
class SimulatedCard:
    """One card.

    Attributes:
        uuid: Its identity.
        memory_mib: Its memory.
        is_there: On the bus.
        error: What NVML says when asked for it, or "".
        is_mig: In MIG mode.
        action: NVML's recovery action; 0 is none.
    """

    uuid: str
    memory_mib: int = 16160
    is_there: bool = True
    error: str = ""
    is_mig: bool = False
    action: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether slices of it may be given out, as far as NVML can tell."""
        return self.is_there and not (self.error or self.is_mig or self.action)


@dataclass(slots=True)
class Driver:
    """The driver.

    Attributes:
        cards: In the order of NVML's index.
        is_hanging: Every call into it blocks.
        is_loaded: The kernel module is there.
        init_seconds: How long opening NVML takes.
        load: Counts loads of the module.
        limits: UUID -> by slice, hard limit and use of its cgroup.
    """

    cards: list[SimulatedCard]
    is_hanging: bool = False
    is_loaded: bool = True
    init_seconds: float = 0.3
    load: int = 1
    limits: Callable[[str], Mapping[str, list[int]]] = lambda _: {}
    _listeners: list["asyncio.Queue[tuple[str, int]]"] = field(default_factory=list)

    @property
    def shown(self) -> list[SimulatedCard]:
        """The cards on the bus."""
        return [card for card in self.cards if card.is_there]

    @property
    def answers(self) -> bool:
        """Whether NVML can be asked at all."""
        return self.is_loaded and not self.is_hanging

    def report(self, uuid: str, code: int) -> None:
        """An XID; who does not listen now never hears of it."""
        for queue in self._listeners:
            queue.put_nowait((uuid, code))

    def reset(self) -> None:
        """What a reboot, or a reload of the module, does to cards."""
        self.load += 1
        for card in self.cards:
            card.error, card.action = "", 0

    async def call(self) -> None:
        """Any call into it."""
        while self.is_hanging:
            await asyncio.sleep(0.25)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What NVML showed when it was opened."""

    shown: tuple[SimulatedCard, ...]
    cards: tuple[SimulatedCard, ...]
    modes: tuple[bool, ...]
    load: int

    @classmethod
    def of(cls, driver: Driver) -> "_Opened":
        cards = tuple(card for card in driver.shown if not card.error)
        modes = tuple(card.is_mig for card in cards)
        return cls(tuple(driver.shown), cards, modes, driver.load)

    def is_stale(self, driver: Driver) -> bool:
        """Whether only another opening shows what is there now."""
        if driver.load != self.load or tuple(driver.shown) != self.shown:
            return True
        modes = zip(self.cards, self.modes, strict=True)
        return any(card.is_mig != was for card, was in modes if not card.error)


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
            await asyncio.sleep(self._driver.init_seconds)
            await self._driver.call()
            if self._driver.is_loaded:
                await self._watch()
            if not self._driver.is_loaded:
                self._say(kind="no_driver", error="DRIVER_NOT_LOADED")
                await self._stdin.pause(_WAIT_SECONDS)
        self._exit(0)

    async def _watch(self) -> None:
        """Report until the driver is gone, or the parent wants no more."""
        driver, loop = self._driver, asyncio.get_running_loop()
        xids: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        driver._listeners.append(xids)
        opened = _Opened.of(driver)
        self._say(**_inventory(driver, opened.shown))
        probed_at, is_wanted, reopen = -1e9, False, ""
        try:
            while not self._stdin.is_closing():
                await driver.call()
                if loop.time() - probed_at >= (_WAIT_SECONDS if is_wanted else _PROBE_SECONDS):
                    if not driver.is_loaded:
                        return
                    probed_at = loop.time()
                    reopen = "failing" if self._probe(opened) else ""
                    if opened.is_stale(driver):
                        reopen = "changed"
                is_wanted = await self._events(xids)
                await driver.call()
                self._say(kind="beat", reopen=reopen)
        finally:
            driver._listeners.remove(xids)

    def _probe(self, opened: "_Opened") -> bool:
        probes: list[dict[str, object]] = []
        for card in opened.cards:
            error = card.error or ("" if card.is_there else "GPU_IS_LOST")
            probe: dict[str, object] = {"uuid": card.uuid}
            told = {"recovery_action": card.action, "limits": dict(self._driver.limits(card.uuid))}
            probe |= {"error": error} if error else told
            probes.append(probe)
        self._say(kind="probes", cards=probes)
        is_unreadable = len(opened.cards) < len(opened.shown)
        return is_unreadable or any("error" in probe for probe in probes)

    async def _events(self, xids: "asyncio.Queue[tuple[str, int]]") -> bool:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                uuid, code = await xids.get()
        except TimeoutError:
            return False
        self._say(kind="xid", uuid=uuid, code=code)
        return True


def _inventory(driver: Driver, cards: tuple[SimulatedCard, ...]) -> dict[str, object]:
    shown = [
        {
            "uuid": card.uuid,
            "index": index,
            "minor": index,
            "model": "Tesla-V100-SXM2-16GB",
            "memory_mib": card.memory_mib,
            "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
            "is_mig": card.is_mig,
            "hardware": {"is_mig": card.is_mig},
        }
        for index, card in enumerate(cards)
        if not card.error
    ]
    unreadable = [{"index": i, "error": c.error} for i, c in enumerate(cards) if c.error]
    return {
        "kind": "inventory",
        "driver_version": "535.104.05",
        "cuda_version": "12.2",
        "driver_load": str(driver.load),
        "cards": shown,
        "unreadable": unreadable,
        "links": {},
    }


def spawner(machine: Machine, driver: Driver) -> Callable[..., Any]:
    """As `loop.subprocess_exec`."""

    async def spawn(protocol_factory: Callable[[], Any], *_: Any, **__: Any) -> tuple[Any, Any]:
        protocol = protocol_factory()
        child = Child(machine, driver, protocol)
        protocol.connection_made(child)
        return child, protocol

    return spawn
