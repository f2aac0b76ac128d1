"""The inventory: from NVML's reports to the cards that may be given away.

Unit ids and the kubelet's checkpoint contain a card's number, so a UUID keeps its number for as
long as this node has a state directory; NVML's index may change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore, Signal
from gpu_device_plugin.disk.state_file import CardsRecord, Memory, cards_of, cards_record, health_of
from gpu_device_plugin.domain.cards.card import Card, CardNumber
from gpu_device_plugin.domain.cards.counted_cards import CountedCards
from gpu_device_plugin.domain.cards.health import (
    follow_rules,
    observe,
    recover,
    recovery_obstacle,
    restore_health,
    unshareable,
)
from gpu_device_plugin.domain.cards.health_values import Change, ChangeKind, Health, HealthRules
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.named_cards import named_cards
from gpu_device_plugin.domain.cards.nvml_reports import (
    NO_LIMIT,
    CardReport,
    CgroupMemory,
    DriverChanged,
    DriverMissing,
    Inventory,
    NvmlReport,
    Probe,
    Stalled,
)
from gpu_device_plugin.domain.grants.card_numbers import assign_numbers
from gpu_device_plugin.domain.node.labels import DriverVersions
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import RequestError, clip


@dataclass(eq=False)
class CardInventory:
    """Keeps the node's cards and their health; remembers numbers and faults over restarts."""

    node_store: NodeStore
    recorder: EventRecorder
    memory: Memory[CardsRecord]
    rules: HealthRules
    boot_id: str
    boot_seconds: Callable[[], float]
    wall_seconds: Callable[[], float]
    held_numbers: Callable[[], Collection[CardNumber] | None]
    schemes: Schemes
    held_devices: Callable[[], Collection[str] | None]
    """UUIDs of cards and MIG instances; None where it is not known."""
    system_memory: MiB
    """What cards without memory of their own are divided into."""

    def __post_init__(self) -> None:
        self.driver_changed = Signal[DriverChanged]()
        self._numbers: dict[str, CardNumber] = {}
        self._instances: dict[str, str] = {}  # those that pods may hold -> their card
        self._remembered: list[Card] = []
        self._health = Health(self.boot_id)
        self._inventory: Inventory | None = None
        self._used: dict[str, int | None] = {}
        self._taken_out: Sequence[str] = ()  # entries of the operator's list, as it was read last
        self._nameless: list[str] = []  # those of them that name no card, as an Event told
        self._without_xids: set[str] = set()
        self.memory_limits: dict[str, Mapping[str, CgroupMemory]] = {}
        """Card -> `Probe.limits`, by its last probe."""
        self.driver_version = ""
        self.cuda_version = ""
        self.has_inventory = False
        self.missing = "NVML has not answered yet"

    async def load(self, now_seconds: float, known: Mapping[str, CardNumber]) -> str | None:
        """Load what the last run stored; returns why that was not possible, or None.

        `known` numbers, of grants and the kubelet's checkpoint, win over the file: running
        containers hold units by them.
        """
        record, bad = await self.memory.load(now_seconds)
        self._remembered = cards_of(record)
        if record.health is not None:
            self._health = restore_health(health_of(record.health), self._health.boot_id)
        self._instances, self._taken_out = record.instances, record.taken_out
        taken = frozenset(known.values())
        others = {uuid: CardNumber(n) for uuid, n in record.numbers.items() if n not in taken}
        self._numbers = {**others, **known}
        return bad

    def observe(self, report: NvmlReport) -> None:
        cards = self.node_store.read().cards
        match report:
            case DriverChanged():
                self.driver_changed.emit(report)
                return
            case Inventory():
                report = self._inventory = report.with_system_memory(self.system_memory)
                self.rules = self._rules(report)
                cards = self._enumerate(report)
            case DriverMissing():
                self.missing = report.reason
            case Probe():
                self._used[report.uuid] = report.used_bytes
                self.memory_limits[report.uuid] = report.limits
            case Stalled():
                self._used.clear()
            case _:
                pass
        health, changes = observe(self._health, report, self.boot_seconds(), self.rules)
        # Most of the time nothing changes, for instance with a clean probe of a healthy card.
        if health != self._health or isinstance(report, Inventory):
            self._health = health
            self._publish(cards)
        for change in changes:
            self.recorder.card_changed(change)

    def used_bytes(self, uuid: str) -> int | None:
        """Memory of a card that is in use, by its last probe; None if that did not say."""
        return self._used.get(uuid)

    def used_by_driver(self, slice_id: str) -> Mapping[str, int]:
        """UUID -> bytes of a slice whose memory the driver limits there, as it counts them."""
        limits = {uuid: by.get(slice_id, (NO_LIMIT, 0)) for uuid, by in self.memory_limits.items()}
        return {uuid: used for uuid, (hard, used) in limits.items() if hard < NO_LIMIT}

    def take_out(self, entries: tuple[str, ...]) -> None:
        """An operator takes out the cards that these entries name, and no others."""
        self._taken_out = entries
        self.follow_rules()

    def follow_rules(self) -> None:
        """Take or leave cards where configuration, holders or an operator have changed that."""
        latest = self._inventory
        if latest is not None and (rules := self._rules(latest)) != self.rules:
            self.rules = rules
            self._health, changes = follow_rules(self._health, latest, self.boot_seconds(), rules)
            self._publish(self._enumerate(latest))
            for change in changes:
                self.recorder.card_changed(change)

    def _find_taken_out(self, inventory: Inventory) -> frozenset[str]:
        """UUIDs of the cards that the operator's list names; of entries without a card an Event tells."""
        gone = dict.fromkeys((*self._numbers, *(slot.uuid for slot in inventory.unreadable)), -1)
        indexes = gone | {card.uuid: card.index for card in inventory.cards}
        by_entry = {entry: named_cards(entry, indexes) for entry in self._taken_out}
        nameless = [entry for entry, cards in by_entry.items() if not cards]
        if nameless and nameless != self._nameless:
            text = (
                f"the ConfigMap unhealthy-gpu-{self.node_store.read().node} of kube-system names no "
                f"card of this node by {', '.join(map(clip, nameless[:8]))}; it takes indexes, ranges "
                "such as 0-3, UUIDs of cards, and all"
            )
            self.recorder.node_note("UnknownCard", text)
        self._nameless = nameless
        return frozenset[str]().union(*by_entry.values())

    def _rules(self, inventory: Inventory) -> HealthRules:
        """With the cards that are in MIG mode, or have left it: each changes sides when no pod holds any of it.

        And with those that an operator takes out.
        """
        devices = self.held_devices()
        held = self._instances.keys() if devices is None else devices
        shown = {i.uuid: c.uuid for c in inventory.cards for i in c.hardware.instances}
        self._instances = {**{i: c for i, c in self._instances.items() if i in held}, **shown}
        mode, cut = self.node_store.read().mode, [card for card in inventory.cards if card.is_mig]
        former = {self._instances[each] for each in held if each in self._instances}
        return replace(
            self.rules,
            takes_mig=frozenset(r.uuid for r in cut if self.schemes.nvidia.takes_mig(r, mode)),
            left_mig=frozenset(former - {report.uuid for report in cut}),
            taken_out=self._find_taken_out(inventory),
        )

    @property
    def driver_load(self) -> tuple[object, ...]:
        """Differs after each load of the driver, and with other cards."""
        latest = self._inventory
        if latest is None:
            return ()
        return latest.driver_version, latest.driver_load, frozenset(c.uuid for c in latest.cards)

    @property
    def every_card(self) -> Sequence[Card] | None:
        """Every card that NVML shows, those left out too; None while unknown."""
        if self._inventory is None:
            return None
        return tuple(report.as_card(CardNumber(0)) for report in self._inventory.cards)

    @property
    def opened(self) -> Sequence[Card]:
        """The offered cards that NVML opens; a silent one has no name in a new CDI specification."""
        closed = {card.uuid for card in self._health.cards if not card.is_shown}
        return [c for c in self.node_store.read().cards if c.is_shown and c.uuid not in closed]

    @property
    def versions(self) -> DriverVersions:
        """The versions of driver and CUDA; empty while unknown."""
        return DriverVersions(self.driver_version, self.cuda_version)

    def recover(self, uuid: str) -> bool:
        """Clear a card's faults for the operator; whether it is known. RequestError: NVML objects."""
        if self._health.card(uuid) is None:
            return False
        against = recovery_obstacle(self._health, uuid)
        if against:
            raise RequestError(f"card {uuid} stays out: {against}", reason="StillFaulty")
        self._health, changes = recover(self._health, uuid)
        for change in changes:
            self.recorder.card_changed(change)
        self.republish()
        return True

    def serve_remembered(self) -> None:
        """Show the cards of the last run, all of them unhealthy, because NVML does not answer.

        So the kubelet keeps the node's capacity, containers can start again with their grants,
        and no new pod comes.
        """
        self._publish(tuple(self._remembered))

    def _enumerate(self, inventory: Inventory) -> tuple[Card, ...]:
        self.driver_version = inventory.driver_version
        self.cuda_version = inventory.cuda_version
        counted = CountedCards(inventory, self._remembered)
        known = self.node_store.read().cards
        if not (known or self.has_inventory):
            known = tuple(counted.at_start(self._numbers))
        faults = [(unshareable(card, 0, self.rules), card) for card in inventory.cards]
        served = [report for fault, report in faults if fault is None]
        why = next((f": {fault.text}" for fault, _ in faults if fault is not None), "")
        for report in inventory.cards:
            self._note_left_out(report, known)
            self._note_xids(report)
        for slot in inventory.unreadable:
            if slot.uuid and all(card.uuid != slot.uuid for card in known):
                text = f"card {slot.index} ({slot.uuid}) is left out: NVML says {slot.error}"
                self.recorder.node_note("CardSkipped", text)
        self.has_inventory = True
        self.missing = "" if served else f"the driver shows no card that can be shared{why}"
        cards = [
            report.as_card(self._numbers[report.uuid])
            for report in self._assign_numbers(served, known)
        ]
        gone = counted.kept(known, {report.uuid for report in served})
        return tuple(sorted([*cards, *gone], key=lambda card: card.index))

    def _note_left_out(self, report: CardReport, known: Iterable[Card]) -> None:
        """Report a card that was never offered; for others their health does."""
        fault = unshareable(report, 0, self.rules)
        if fault is not None and all(card.uuid != report.uuid for card in known):
            reason = "MigCardSkipped" if report.is_mig else "CardSkipped"
            name = f"card {report.index} ({report.uuid})"
            self.recorder.node_note(reason, f"{name} is left out: {fault.text}")

    def _note_xids(self, report: CardReport) -> None:
        """Say once of a card that nobody hears of its XIDs."""
        if not report.gives_xids and report.uuid not in self._without_xids:
            self._without_xids.add(report.uuid)
            text = "NVML gives no XIDs of it (WSL2, some virtual machines): only probes find its faults"
            self.recorder.card_changed(Change(ChangeKind.NOTICE, report.uuid, "XidsNotGiven", text))

    def _assign_numbers(
        self, served: Sequence[CardReport], known: Iterable[Card]
    ) -> list[CardReport]:
        """Those that have a number now; with 36 cards, gone ones included, all may be taken."""
        present = [report.uuid for report in served]
        if not self._numbers.keys() >= set(present):
            uuids = [*present, *(card.uuid for card in known)]
            self._numbers = assign_numbers(self._numbers, uuids, self.held_numbers())
        for report in served:
            if report.uuid not in self._numbers:
                text = f"card {report.index} ({report.uuid}) is left out: no card number is free"
                self.recorder.node_note("CardSkipped", text)
        return [report for report in served if report.uuid in self._numbers]

    def republish(self) -> None:
        self._publish(self.node_store.read().cards)

    def _publish(self, cards: tuple[Card, ...]) -> None:
        """Publish cards and their health together, so that no card seems healthy in between."""
        at_boot, faulty = self.wall_seconds() - self.boot_seconds(), self._health.cards
        oldest = {c.uuid: c.own_faults[0] for c in faulty if c.own_faults}
        oldest |= self._health.instances_out
        since = {uuid: round(at_boot + fault.since_seconds) for uuid, fault in oldest.items()}
        reasons = self._unhealthy(cards)
        self.node_store.update(cards=cards, unhealthy=reasons, unhealthy_since=since)
        record = cards_record(self._numbers, cards, self._health, self._instances, self._taken_out)
        self.memory.save(record)

    def _unhealthy(self, cards: Iterable[Card]) -> dict[str, str]:
        parts = {uuid: fault.reason for uuid, fault in self._health.instances_out.items()}
        return {**parts, **{c.uuid: r for c in cards if (r := self._health.reason(c.uuid))}}
