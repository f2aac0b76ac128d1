"""Small state that is kept over a restart: the files `cards`, `node` and `claims`.

The rules of the format are those of `grants`. Of health these are left out: since when probes are
clean, because there are no probes while the agent is away and the next run counts from zero;
when a fault was last seen, so that a card which repeats an XID a thousand times does not cause as
many writes; and faults that every inventory reports again.
"""

import asyncio
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import (
    Any,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from gpu_device_plugin.disk.disk_thread import Writer, report
from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.health_values import CardHealth, Fault, Health, Outage, Recovery

VERSION = 1
Plain: TypeAlias = dict[str, Any]
_Record = TypeVar("_Record", bound=msgspec.Struct)


class LoadedRecord(NamedTuple, Generic[_Record]):
    """The stored values, and why some or all of them are lost, or None."""

    record: _Record
    lost: str | None


class MemoryFile(Generic[_Record]):
    """One sealed JSON object, `<state-dir>/<kind>`; every key has a default."""

    def __init__(self, directory: Path, kind: str, record: type[_Record], boot_id: str) -> None:
        self._path = directory / kind
        self._file = SealedFile(self._path, kind, VERSION)
        self._record = record
        self._boot_id = boot_id
        self._read: Plain = {}
        self._last: bytes | None = None

    def load(self, now_seconds: float) -> LoadedRecord[_Record]:
        """What is stored.

        A damaged file is set aside; then the write before it counts, if that is whole. For a key
        that this release cannot read the default is used, and the others count.
        """
        found = self._file.load(now_seconds)
        bad = [f"{found.bad}; set aside as {found.aside.name}"] if found.aside else []
        if found.sealed is not None:
            try:
                self._read = msgspec.json.decode(found.sealed.payload, type=dict[str, Any])
            except msgspec.DecodeError as error:
                self._file.set_aside(now_seconds)
                bad.append(f"{self._path}: {error}; set aside")
        values = {}
        for field in msgspec.structs.fields(self._record):
            if field.encode_name in self._read:
                try:
                    values[field.name] = msgspec.convert(self._read[field.encode_name], field.type)
                except msgspec.ValidationError as error:
                    bad.append(f"{self._path}: {field.encode_name} is ignored: {error}")
        return LoadedRecord(self._record(**values), "; ".join(bad) or None)

    def save(self, content: _Record) -> None:
        """Store `content`, if it has changed."""
        payload = msgspec.json.encode(plain_of(content, self._read), order="sorted")
        if payload != self._last or not self._file.is_there():
            self._file.write([payload], self._boot_id)
            self._last = payload


class Memory(Generic[_Record]):
    """A memory file that the writer thread writes: saving waits for nothing."""

    def __init__(self, file: MemoryFile[_Record], writer: Writer) -> None:
        self._file = file
        self._writer = writer
        self._lock = threading.Lock()  # never held during a write
        self._in_line: list[_Record] = []

    async def load(self, now_seconds: float) -> LoadedRecord[_Record]:
        return await self._writer.run(partial(self._file.load, now_seconds))

    def save(self, content: _Record) -> None:
        """Store `content` soon; of several in the queue only the last. Errors are logged."""
        with self._lock:
            is_first = not self._in_line
            self._in_line.append(content)
        if is_first:
            done = asyncio.get_running_loop().run_in_executor(self._writer, self._save_last)
            done.add_done_callback(report)

    def _save_last(self) -> None:
        with self._lock:
            in_line, self._in_line = self._in_line, []
        self._file.save(in_line[-1])


class CardRecord(msgspec.Struct, frozen=True):
    """One card; see `domain.cards.card.Card`."""

    uuid: str
    number: int
    index: int
    minor: int
    model: str
    memory_mib: int


class FaultRecord(msgspec.Struct, frozen=True):
    """One fault; see `domain.cards.health_values.Fault`."""

    reason: str
    text: str
    recovery: Recovery
    since_seconds: float
    is_action_asked: bool = False
    instance: str = ""


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
    """The file `cards`: UUID -> number, the cards last seen, their health, MIG instance -> card.

    And the entries of the operator's list of cards that are out.
    """

    numbers: dict[str, int] = {}
    cards: list[CardRecord] = []
    health: HealthRecord | None = None
    instances: dict[str, str] = {}
    taken_out: list[str] = []


class NodeRecord(msgspec.Struct, frozen=True):
    """The file `node`: mode and unit last served, and what they came from."""

    mode: str = ""
    unit: str = ""
    labels: dict[str, str] | None = None
    is_from_label: bool = False  # whether the mode came from a label
    wished: str = ""  # mode of the settings at that time
    foreign: str = ""  # another plugin that serves these cards, or ""
    others: list[str] = []  # resources by which another plugin shares these cards
    registered: list[str] = []  # resources that were ever registered here
    mps_root: str = ""  # directory of the MPS daemon that was configured last, or ""
    mig_profile: str | None = None
    allocation_api: str = ""
    runtime: str = ""  # the container runtime, as the API server told it


def cards_record(
    numbers: Mapping[str, int],
    cards: Iterable[Card],
    health: Health,
    instances: Mapping[str, str],
    taken_out: Iterable[str] = (),
) -> CardsRecord:
    """The file of these cards."""
    outage = None if health.outage is None else _record(OutageRecord, health.outage)
    sick = [
        CardHealthRecord(card.uuid, _fault_records(card), card.is_shown) for card in health.cards
    ]
    return CardsRecord(
        dict(numbers),
        [_record(CardRecord, card) for card in cards],
        HealthRecord(health.boot_id, health.driver, outage, sick),
        dict(instances),
        list(taken_out),
    )


def cards_of(record: CardsRecord) -> list[Card]:
    """The cards last seen."""
    return [Card(**msgspec.structs.asdict(card)) for card in record.cards]


def health_of(record: HealthRecord) -> Health:
    """The stored health."""
    outage = None if record.outage is None else Outage(record.outage.reason, record.outage.text)
    cards = (
        CardHealth(card.uuid, tuple(map(_fault, card.faults)), is_shown=card.is_shown)
        for card in sorted(record.cards, key=lambda card: card.uuid)
    )
    return Health(record.boot_id, driver=record.driver, outage=outage, cards=tuple(cards))


def _fault_records(card: CardHealth) -> list[FaultRecord]:
    kept = (fault for fault in card.faults if fault.recovery is not Recovery.INVENTORY)
    return [_record(FaultRecord, fault) for fault in kept]


def _record(kind: type[_Record], value: object) -> _Record:
    """The record of a value that has all of its fields."""
    return kind(*(getattr(value, name) for name in kind.__struct_fields__))


def _fault(record: FaultRecord) -> Fault:
    return Fault(**msgspec.structs.asdict(record), last_seconds=record.since_seconds)


def plain_of(
    record: msgspec.Struct, before: object = None, beside: Mapping[str, object] | None = None
) -> Plain:
    """A record as plain JSON values, with keys of `before` that this release does not know.

    `before` is the record as it was read; records of a list are matched by their first field.
    `beside` are further keys.
    """
    plain: Plain = {**msgspec.to_builtins(record), **(beside or {})}
    return _with_unknown(plain, before, type(record))


def _with_unknown(plain: Plain, before: object, kind: type[msgspec.Struct]) -> Plain:
    if not isinstance(before, dict):
        return plain
    known = frozenset(kind.__struct_encode_fields__)
    kept = {key: value for key, value in before.items() if key not in known}
    for name, (inner, is_list) in _inner(kind).items():
        if not is_list and isinstance(plain.get(name), dict):
            plain[name] = _with_unknown(plain[name], before.get(name), inner)
        elif is_list:
            key = inner.__struct_encode_fields__[0]
            old = {e[key]: e for e in before.get(name) or () if isinstance(e, dict) and key in e}
            plain[name] = [_with_unknown(e, old.get(e[key]), inner) for e in plain[name]]
    return {**kept, **plain}


@lru_cache
def _inner(kind: type[msgspec.Struct]) -> dict[str, tuple[type[msgspec.Struct], bool]]:
    """The fields of `kind` that hold records: which kind, and whether a list of them."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for option in (hint, *get_args(hint)):
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                found[name] = option, get_origin(hint) is list
    return found
