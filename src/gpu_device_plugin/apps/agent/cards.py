"""From what NVML reports to the cards that may be given out.

A card's number stands in unit ids and in the kubelet's checkpoint, so a UUID keeps its
number for as long as this node has a state directory; NVML's index may move.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from gpu_device_plugin.apps.agent.board import Board
from gpu_device_plugin.apps.agent.journal import Journal
from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.faults import Health, HealthRules
from gpu_device_plugin.domain.health import clear, observe, restored
from gpu_device_plugin.domain.reports import (
    CardReport,
    DriverChanged,
    DriverMissing,
    Inventory,
    NvmlReport,
    Use,
)
from gpu_device_plugin.domain.units import MAX_CARDS
from gpu_device_plugin.errors import StorageError
from gpu_device_plugin.store.memory import MemoryFile
from gpu_device_plugin.store.remembered import CardsRecord, cards_of, cards_record, health_of

_log = structlog.get_logger("cards")


class CardWatch:
    """Keeps the board's cards and their health; remembers numbers and faults over restarts."""

    def __init__(
        self,
        board: Board,
        journal: Journal,
        memory: MemoryFile[CardsRecord],
        rules: HealthRules,
        boot_id: str,
    ) -> None:
        self._board = board
        self._journal = journal
        self._memory = memory
        self._rules = rules
        self._numbers: dict[str, int] = {}
        self._remembered: list[Card] = []
        self._health = Health(boot_id)
        self.driver_version = ""
        self.cuda_version = ""
        self.has_inventory = False
        self.missing = "NVML has not answered yet"
        self.on_driver_changed: Callable[[DriverChanged], None] = lambda _: None

    def load(self, now_seconds: float, told: Mapping[str, int]) -> str | None:
        """Remember the last run; the text says why that was not possible, or None.

        Args:
            now_seconds: The wall clock.
            told: UUID -> number, as grants and the kubelet's checkpoint have them. They stand
                over what was remembered: running containers hold units under these numbers.
        """
        found, bad = self._memory.load(now_seconds)
        self._remembered = cards_of(found)
        if found.health is not None:
            self._health = restored(health_of(found.health), self._health.boot_id)
        taken = frozenset(told.values())
        others = {uuid: n for uuid, n in found.numbers.items() if n not in taken}
        self._numbers = {**others, **told}
        return bad

    def observe(self, report: NvmlReport) -> None:
        """Take in one report."""
        match report:
            case Use():
                return
            case DriverChanged():
                self.on_driver_changed(report)
                return
            case Inventory():
                self._enumerate(report)
            case DriverMissing():
                self.missing = report.reason
            case _:
                pass
        health, changes = observe(self._health, report, boottime_seconds(), self._rules)
        for change in changes:
            self._journal.card_changed(change)
        if health == self._health and not isinstance(report, Inventory):
            return  # as most of the time: a clean probe of a card that is well, or mere news of it
        self._health = health
        self.settle()

    def clear(self, uuid: str) -> bool:
        """The operator says that this card is well; whether such a card is known."""
        if self._health.card(uuid) is None:
            return False
        self._health, changes = clear(self._health, uuid)
        for change in changes:
            self._journal.card_changed(change)
        self.settle()
        return True

    def serve_remembered(self) -> None:
        """NVML does not answer: the cards of the last run are shown, none of them healthy."""
        self._board.update(cards=tuple(self._remembered))
        self.settle()

    def _enumerate(self, inventory: Inventory) -> None:
        self.driver_version = inventory.driver_version
        self.cuda_version = inventory.cuda_version
        served = [report for report in inventory.cards if self._can_serve(report)]
        self.has_inventory = True
        self.missing = "" if served else "the driver shows no card that can be shared"
        shown = {report.uuid for report in served}
        cards = [self._card(report) for report in served]
        # A card that went away keeps its place, unhealthy, while the kubelet may still count it.
        known = self._board.read().cards
        kept = [replace(card, index=-1) for card in known if card.uuid not in shown]
        self._board.update(cards=tuple(sorted([*cards, *kept], key=lambda card: card.index)))

    def _can_serve(self, report: CardReport) -> bool:
        if report.is_mig:
            self._journal.node_note(
                "MigCardSkipped",
                f"card {report.index} ({report.uuid}) is cut into MIG instances, which this "
                f"mode cannot share; it is left out",
            )
        return not report.is_mig and report.memory_mib > 0

    def _card(self, report: CardReport) -> Card:
        return Card(
            uuid=report.uuid,
            number=self._number(report.uuid),
            index=report.index,
            minor=report.minor,
            model=report.model,
            memory_mib=report.memory_mib,
        )

    def _number(self, uuid: str) -> int:
        if uuid not in self._numbers:
            taken = set(self._numbers.values())
            free = (number for number in range(MAX_CARDS) if number not in taken)
            self._numbers[uuid] = next(free, -1)
            if self._numbers[uuid] < 0:
                self._numbers[uuid] = self._reuse(uuid)
        return self._numbers[uuid]

    def _reuse(self, uuid: str) -> int:
        """More UUIDs than numbers over the life of the node: one that is not there gives way."""
        present = {card.uuid for card in self._board.read().cards}
        gone = next(known for known in self._numbers if known not in present and known != uuid)
        return self._numbers.pop(gone)

    def settle(self) -> None:
        """Publish health, and remember it."""
        self._board.update(unhealthy=self._unhealthy(self._board.read().cards))
        cards = self._board.read().cards
        try:
            self._memory.save(cards_record(self._numbers, cards, self._health))
        except StorageError as error:
            _log.warning("what is known of cards cannot be remembered", error=str(error))

    def _unhealthy(self, cards: Iterable[Card]) -> dict[str, str]:
        return {card.uuid: r for card in cards if (r := self._health.reason(card.uuid))}


def boottime_seconds() -> float:
    """Seconds since boot: never jumps, means the same after a restart of the agent."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
