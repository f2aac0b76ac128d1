"""Records of the files `cards`, `node` and `claims`; the rules are those of `grant_records`.

Of health these are left out: since when probes are clean, because there are no probes while the
agent is away and the next run counts from zero (`domain.health.restored`); when a fault was last
seen, so that a card which repeats an XID a thousand times does not cause as many writes; and
faults that every inventory reports again.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.health_values import CardHealth, Fault, Health, Outage, Recovery


class CardRecord(msgspec.Struct, frozen=True):
    """One card; see `domain.device.Card`."""

    uuid: str
    number: int
    index: int
    minor: int
    model: str
    memory_mib: int


class FaultRecord(msgspec.Struct, frozen=True):
    """One fault; see `domain.faults.Fault`."""

    reason: str
    text: str
    recovery: Recovery
    since_seconds: float
    is_action_asked: bool = False


class CardHealthRecord(msgspec.Struct, frozen=True):
    """The faults of one card."""

    uuid: str
    faults: list[FaultRecord] = []
    is_shown: bool = True


class OutageRecord(msgspec.Struct, frozen=True):
    """NVML as a whole is away."""

    reason: str
    text: str


class HealthRecord(msgspec.Struct, frozen=True):
    """Health of the node."""

    boot_id: str = ""
    driver: str = ""
    outage: OutageRecord | None = None
    cards: list[CardHealthRecord] = []


class CardsRecord(msgspec.Struct, frozen=True):
    """The file `cards`: UUID -> number, the cards last seen, and their health."""

    numbers: dict[str, int] = {}
    cards: list[CardRecord] = []
    health: HealthRecord | None = None


class NodeRecord(msgspec.Struct, frozen=True):
    """The file `node`: mode and unit last served, and what they came from.

    Attributes:
        mode: Node mode, or "".
        unit: Memory unit, or "".
        labels: The node's labels that the agent reads.
        is_from_label: Whether the mode came from a label.
        wished: Mode of the settings at that time.
        foreign: Another plugin that serves these cards, or "".
        registered: Resources that were ever registered here.
        mps_root: Directory of the MPS daemon that was configured last, or "".
        mig_profile: The MIG profile in force, or "" for none; None if it was never stored.
        door: The door last served, or "".
    """

    mode: str = ""
    unit: str = ""
    labels: dict[str, str] | None = None
    is_from_label: bool = False
    wished: str = ""
    foreign: str = ""
    registered: list[str] = []
    mps_root: str = ""
    mig_profile: str | None = None
    door: str = ""


class ClaimsRecord(msgspec.Struct, frozen=True):
    """The file `claims`: what was offered for claims and has not gone back to the device plugin.

    Attributes:
        withheld: UUIDs of the cards.
        is_offered: Whether the API server may have a ResourceSlice of ours.
    """

    withheld: list[str] = []
    is_offered: bool = False


def cards_record(numbers: Mapping[str, int], cards: Iterable[Card], health: Health) -> CardsRecord:
    """The file of these cards."""
    names = CardRecord.__struct_fields__
    outage = health.outage
    return CardsRecord(
        dict(numbers),
        [CardRecord(*(getattr(card, name) for name in names)) for card in cards],
        HealthRecord(
            health.boot_id,
            health.driver,
            None if outage is None else OutageRecord(outage.reason, outage.text),
            [
                CardHealthRecord(card.uuid, _fault_records(card), card.is_shown)
                for card in health.cards
            ],
        ),
    )


def cards_of(record: CardsRecord) -> list[Card]:
    """The cards last seen."""
    return [Card(**msgspec.structs.asdict(card)) for card in record.cards]


def health_of(record: HealthRecord) -> Health:
    """The stored health."""
    outage = record.outage
    cards = (
        CardHealth(card.uuid, tuple(map(_fault, card.faults)), is_shown=card.is_shown)
        for card in record.cards
    )
    return Health(
        boot_id=record.boot_id,
        driver=record.driver,
        outage=None if outage is None else Outage(outage.reason, outage.text),
        cards=tuple(sorted(cards, key=lambda card: card.uuid)),
    )


def _fault_records(card: CardHealth) -> list[FaultRecord]:
    names = FaultRecord.__struct_fields__
    kept = (fault for fault in card.faults if fault.recovery is not Recovery.INVENTORY)
    return [FaultRecord(*(getattr(fault, name) for name in names)) for fault in kept]


def _fault(record: FaultRecord) -> Fault:
    return Fault(**msgspec.structs.asdict(record), last_seconds=record.since_seconds)
