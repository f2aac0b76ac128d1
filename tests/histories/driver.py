"""NVIDIA's driver with its cards: what calls into it would find, and how long they would take."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SLOW_SECONDS = 5.0
PROFILE = "1g.5gb"
SMALL_MIB = 979


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
        call_seconds: How long each call takes that needs the card itself.
        instances: Into how many instances it is cut while it is in MIG mode.
        all_instances: UUIDs of those that it can have.
    """

    uuid: str
    memory_mib: int = 16160
    is_there: bool = True
    error: str = ""
    is_mig: bool = False
    action: int = 0
    call_seconds: float = 0.0
    instances: int = 0
    all_instances: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        stem = f"MIG-{self.uuid.removeprefix('GPU-')[:-1]}"
        self.all_instances = tuple(f"{stem}{part}" for part in range(7))

    @property
    def is_slow(self) -> bool:
        """Whether nobody should be sent to it, because its calls take as long as a GSP time-out."""
        return self.call_seconds >= SLOW_SECONDS

    @property
    def instance_uuids(self) -> tuple[str, ...]:
        """Those of its instances."""
        return self.all_instances[: self.instances if self.is_mig else 0]

    @property
    def is_sound(self) -> bool:
        """Whether slices of it may be given out, as far as NVML can tell."""
        return self.is_well and not self.is_mig

    @property
    def is_well(self) -> bool:
        """The same of a card that may be in MIG mode."""
        return self.is_there and not (self.error or self.action or self.is_slow)


@dataclass(slots=True)
class Driver:
    """The driver.

    Attributes:
        cards: In the order of NVML's index.
        is_hanging: Every call into it blocks.
        is_loaded: The kernel module is there.
        init_seconds: How long opening NVML takes.
        opening_seconds: How long the opening takes that began last.
        load: Counts loads of the module.
        limits: UUID -> by slice, hard limit and use of its cgroup.
    """

    cards: list[SimulatedCard]
    is_hanging: bool = False
    is_loaded: bool = True
    init_seconds: float = 0.3
    opening_seconds: float = 0.3
    load: int = 1
    limits: Callable[[str], Mapping[str, list[int]]] = lambda _: {}
    _listeners: list["asyncio.Queue[tuple[str, int, tuple[str, ...]]]"] = field(
        default_factory=list
    )

    @property
    def shown(self) -> list[SimulatedCard]:
        """The cards on the bus."""
        return [card for card in self.cards if card.is_there]

    @property
    def answers(self) -> bool:
        """Whether NVML can be asked at all."""
        return self.is_loaded and not self.is_hanging

    def report(self, uuid: str, code: int, *instances: str) -> None:
        """An XID, of a card or of some of its instances; who does not listen now never hears of it."""
        for queue in self._listeners:
            queue.put_nowait((uuid, code, instances))

    def reset(self) -> None:
        """What a reboot, or a reload of the module, does to cards."""
        self.load += 1
        for card in self.cards:
            card.error, card.action = "", 0

    async def call(self) -> None:
        """Any call into it."""
        while self.is_hanging:
            await asyncio.sleep(0.25)

    async def ask(self, card: SimulatedCard) -> None:
        """A call that needs the card itself."""
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < card.call_seconds:
            await asyncio.sleep(0.25)
        await self.call()
