"""The values of health: rules for XIDs, faults of cards, the health of a node, its changes.

`health` says how they follow from NVML's reports. Seconds are CLOCK_BOOTTIME, which never jumps,
continues during suspend, and stays comparable over a restart of the agent;
a reboot starts it again, hence the boot id.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

UNANSWERED = "NVMLUnanswered"
"""The reason of remembered cards until NVML has shown its cards for the first time."""
TAKEN_OUT = "TakenOut"
"""The reason of cards that an operator takes out, with nothing wrong that an agent knows of."""


class XidAction(StrEnum):
    """What an XID does to its card."""

    IGNORE = "ignore"
    REPORT = "report"
    FAULT = "fault"


class Recovery(StrEnum):
    """What ends a fault: clean probes, a reset, or an inventory without its cause."""

    PROBE = "probe"
    RESET = "reset"
    INVENTORY = "inventory"


@dataclass(frozen=True, slots=True)
class XidRule:
    """A row of the table of XIDs; code 0 is for all that it does not name. `recovery` goes with `fault` only."""

    code: int
    name: str
    action: XidAction
    recovery: Recovery = Recovery.RESET


@dataclass(frozen=True, slots=True)
class XidChoice:
    """Some XIDs, or all; `malformed` is what was given and names none."""

    codes: frozenset[int] = frozenset()
    is_all: bool = False
    malformed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.is_all or bool(self.codes)

    def has(self, code: int) -> bool:
        return self.is_all or code in self.codes


NO_XID = XidChoice()


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The operator's rules.

    Attributes:
        default: The rule for every other XID.
        recovery_seconds: How long probes must be clean.
        takes_mig: UUIDs of the cards in MIG mode that serve, with their instances.
        left_mig: UUIDs of the cards that have left MIG mode while pods hold instances of them.
        taken_out: UUIDs of the cards that an operator takes out.
        disabled: XIDs that do nothing, whatever the table says.
        enabled: XIDs that take their card out, also where they are disabled.
    """

    xids: Mapping[int, XidRule]
    default: XidRule
    recovery_seconds: float
    takes_mig: Collection[str] = frozenset()
    left_mig: Collection[str] = frozenset()
    taken_out: Collection[str] = frozenset()
    disabled: XidChoice = NO_XID
    enabled: XidChoice = NO_XID

    def rule(self, code: int) -> XidRule:
        """The rule for an XID: by the table, unless the operator enabled or disabled its check."""
        rule = self.xids.get(code, self.default)
        if self.enabled.has(code):
            return replace(rule, action=XidAction.FAULT)
        return replace(rule, action=XidAction.IGNORE) if self.disabled.has(code) else rule


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a card is unhealthy.

    Attributes:
        reason: One CamelCase word.
        is_action_asked: NVML has asked for a recovery action since.
        is_probed: The card has answered a probe since, so it is known what NVML asks for.
        instance: UUID of the MIG instance that is out alone; "" for the whole card.
    """

    reason: str
    text: str
    recovery: Recovery
    since_seconds: float
    last_seconds: float
    is_action_asked: bool = False
    is_probed: bool = False
    instance: str = ""


@dataclass(frozen=True, slots=True)
class CardHealth:
    """One card's faults.

    Attributes:
        faults: Open faults, oldest first.
        clean_since_seconds: Since when every probe was clean; None before the first.
        recovery_action: NVML's recovery action in the last probe (0: none); None if the driver
            does not report it, or there was no probe since the agent started.
    """

    uuid: str
    faults: tuple[Fault, ...] = ()
    clean_since_seconds: float | None = None
    is_shown: bool = True
    recovery_action: int | None = None

    @property
    def own_faults(self) -> tuple[Fault, ...]:
        """Those of the whole card."""
        return tuple(fault for fault in self.faults if not fault.instance)


@dataclass(frozen=True, slots=True)
class Outage:
    """NVML as a whole does not answer."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a node's cards.

    Attributes:
        driver: Version and load of the driver, empty before the first answer.
        outage: Why no card at all can be given away.
        cards: Every card seen since the boot, by UUID.
        has_inventory: NVML has shown its cards since the agent started. Before that no card is
            healthy, because what an earlier run stored may no longer be true.
    """

    boot_id: str
    driver: str = ""
    outage: Outage | None = None
    cards: tuple[CardHealth, ...] = ()
    has_inventory: bool = False

    @property
    def outage_reason(self) -> str:
        """Why NVML as a whole does not answer, in one word; empty while it does."""
        return self.outage.reason if self.outage is not None else ""

    def card(self, uuid: str) -> CardHealth | None:
        return next((card for card in self.cards if card.uuid == uuid), None)

    def reason(self, uuid: str) -> str:
        """The reason why the card is unhealthy, empty if it is healthy."""
        card = self.card(uuid)
        if self.outage is not None:
            return self.outage.reason
        if not self.has_inventory:
            return UNANSWERED
        if card is None:
            return "Absent"
        return card.own_faults[0].reason if card.own_faults else ""

    @property
    def instances_out(self) -> dict[str, Fault]:
        """UUID -> fault of each MIG instance that has one."""
        return {f.instance: f for card in self.cards for f in card.faults if f.instance}


class ChangeKind(StrEnum):
    """Kinds of changes."""

    FAULT = "fault"
    RECOVERED = "recovered"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Change:
    """Something worth an Event, with its cure, and a metric; without `uuid` of NVML as a whole, or of an unknown card."""

    kind: ChangeKind
    uuid: str | None
    reason: str
    text: str
    cure: str = ""
