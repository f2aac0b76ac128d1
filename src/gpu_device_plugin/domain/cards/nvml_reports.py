"""Reports of the NVML child: facts about cards and driver.

`health` evaluates them. A card is named by its UUID only, because NVML's index changes when cards
come and go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import UNKNOWN, Card, CardIndex, CardNumber, Hardware
from gpu_device_plugin.domain.cards.memory_unit import MiB

NO_ANSWER = "NO_ANSWER"
"""In place of NVML's error: the card has not answered in time."""


@dataclass(frozen=True, slots=True)
class CardReport:
    """One card as NVML enumerates it now.

    Attributes:
        memory_mib: Rounded down, 0 where NVML cannot tell.
        is_silent: It took longer than a card may to tell this.
        gives_xids: Whether NVML tells its XIDs.
    """

    uuid: str
    index: CardIndex
    minor: int
    model: str
    memory_mib: MiB
    is_mig: bool
    hardware: Hardware = UNKNOWN
    is_silent: bool = False
    gives_xids: bool = True

    def as_card(self, number: CardNumber) -> Card:
        where = number, self.index, self.minor
        return Card(self.uuid, *where, self.model, self.memory_mib, self.hardware)


@dataclass(frozen=True, slots=True)
class UnreadableCard:
    """The index of a card that NVML cannot open; its UUID is mostly unknown ("")."""

    index: CardIndex
    error: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The driver answered, and these are all the cards it shows.

    Attributes:
        driver_version: For instance `535.309.01`.
        cuda_version: For instance `12.2`, empty where the library cannot tell.
        driver_load: Differs after each load of the kernel module, empty where unknown.
    """

    driver_version: str
    cuda_version: str
    driver_load: str
    cards: tuple[CardReport, ...]
    unreadable: tuple[UnreadableCard, ...] = ()

    def with_system_memory(self, memory_mib: MiB) -> "Inventory":
        """With an equal part of this memory for each card that uses the system's."""
        each = MiB(memory_mib // max(1, sum(card.hardware.is_unified for card in self.cards)))
        cards = (replace(c, memory_mib=each) if c.hardware.is_unified else c for c in self.cards)
        return replace(self, cards=tuple(cards))


NO_LIMIT = 2**64 - 1
"""What NVML tells of a cgroup whose memory is not limited."""


class CgroupMemory(NamedTuple):
    """The driver's hard limit of a cgroup (2^64 - 1: none), and what the cgroup uses of the card."""

    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The probe of one card.

    Attributes:
        recovery_action: NVML's `nvmlDeviceGpuRecoveryAction_t` (0: none), None where unsupported.
        used_bytes: Memory of the card that is in use; None where NVML does not tell.
        limits: By slice, of those with a mark of gpu-limit-hook whose cgroup is there.
    """

    uuid: str
    error: str | None = None
    recovery_action: int | None = None
    # Probes that say the same of a card's health are equal.
    used_bytes: int | None = field(default=None, compare=False)
    limits: Mapping[str, CgroupMemory] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Xid:
    """The driver reported an XID; without a UUID the library did not say of which card.

    `instances` are the MIG instances that it named; none for the whole card.
    """

    uuid: str | None
    code: int
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stalled:
    """NVML has not answered for this long; `Answered` follows when it does."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """NVML answers again after `Stalled`."""


@dataclass(frozen=True, slots=True)
class DriverMissing:
    """There is no usable driver. If the kernel module is not loaded, the next inventory is a new load."""

    reason: str
    is_unloaded: bool = False


@dataclass(frozen=True, slots=True)
class DriverChanged:
    """A driver appeared or its version changed: the agent needs a new container.

    `before` is empty where there was none, `after` where the library in this container no longer fits it.
    """

    before: str
    after: str


NvmlReport = Inventory | Probe | Xid | Stalled | Answered | DriverMissing | DriverChanged
