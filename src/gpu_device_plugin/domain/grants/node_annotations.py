"""A node's annotations, written and read: its cards, and how far uninstalling has come.

What pods hold there is in `holdings_annotation`, a pod's own annotations in `fractions/pod_annotations`.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, TypeVar

import msgspec

from gpu_device_plugin.domain.cards.card import MAX_CARDS, Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.grants.ledger import DeviceUse
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import (
    MAX_PODS_LABEL,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
    is_whole,
    parse_max_pods,
    parse_mode,
    parse_policy,
)
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import StateError

_Form = TypeVar("_Form")
_Number = TypeVar("_Number", bound=int)
MOST_ON_A_NODE = 64 * 1024
"""Characters of an annotation of a node: 900 pods, or as many cards as a node can have, each cut into
seven instances. All annotations of an object have 256 KiB together."""
MOST_AMOUNT = 1 << 30
"""More MiB than any card has; a number beyond it is a mistake, and no metric could show it."""
LONGEST_UUID = 96
"""Characters of a UUID or a model's name, as NVML's buffers have it (NVML_DEVICE_UUID_V2_BUFFER_SIZE)."""
Amount = Annotated[_Number, msgspec.Meta(ge=0, le=MOST_AMOUNT)]
Name = Annotated[str, msgspec.Meta(max_length=LONGEST_UUID, pattern=r"^[ -~]*\Z")]
"""As NVML gives them."""
_Index = Annotated[CardIndex, msgspec.Meta(ge=0, lt=1 << 12)]

CARDS_ANNOTATION = "gpu-device-plugin/cards"
CARDS_VERSION = 2
UNINSTALL_ANNOTATION = "gpu-device-plugin/uninstall"
"""Marks a node for the agents of one installation. Its value is the uid of their DaemonSet, so
that the mark of an earlier installation has no effect on a later one."""
TAINT_ANNOTATION = "gpu-device-plugin/startup-taint-removed"
"""Its value is the key of the taint; one that somebody sets later stays."""
WITHDRAWN_ANNOTATION = "gpu-device-plugin/withdrawn"
WITHDRAWN_VERSION = 1


class _ClaimedEntry(msgspec.Struct, frozen=True):
    pods: Amount[int]
    units: Amount[Units]
    percent: Amount[int]


class _InstanceEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    uuid: Name
    index: int = -1
    profile: str = ""
    memory_mib: int = -1
    healthy: bool | None = None
    replicas: Amount[int] = 1


class _CardEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A card, as written and read. What has no default is always there; `units` is for other readers."""

    index: _Index
    uuid: Annotated[Name, msgspec.Meta(min_length=1)]
    model: Name = ""
    memory_mib: Amount[MiB]
    units: int = -1
    healthy: bool
    instances: tuple[_InstanceEntry, ...] | None = None
    replicas: Amount[int] = 1
    allocation_api: AllocationApi | None = None
    claimed: _ClaimedEntry | None = None
    memory_by: object = None
    fault: object = None


class _HeldByClaims(msgspec.Struct, frozen=True):
    cards: tuple[dict[str, msgspec.Raw], ...] = ()


class _Served(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is read of it without the cards."""

    version: int = 0
    mode: str = ""
    unit_mib: MiB | None = None


class _CardsEntry(_Served, frozen=True, kw_only=True):
    cards: Annotated[tuple[_CardEntry, ...], msgspec.Meta(max_length=MAX_CARDS)] | None = None
    older_configuration: object = ""


class _Withdrawn(msgspec.Struct, frozen=True):
    version: int
    mark: str
    kept: tuple[str, ...]


def fault_reason(fault: str) -> str:
    """The reason of a card's `fault`, which goes on with since when; empty for none.

    >>> fault_reason("XID79 since 2026-11-24T02:51:07Z")
    'XID79'
    """
    return fault.partition(" ")[0]


def cards_annotation(  # noqa: PLR0913, PLR0917 - each mapping is by UUID
    cards: Sequence[Card],
    healthy: Mapping[str, bool],
    terms: NodeTerms,
    replicas: Mapping[str, int] = MappingProxyType({}),
    by_claims: Mapping[str, DeviceUse] | None = None,
    memory_by: Mapping[str, str] = MappingProxyType({}),
    faults: Mapping[str, str] = MappingProxyType({}),
    older_configuration: str = "",
) -> str:
    """The node's cards for schedulers, tools and people, as compact JSON.

    Version 2 where a card is cut or replicated, and else version 1, whose readers need not know the
    other: beside fractions, a card in MIG mode has no units and is not healthy for them.

    `healthy` and `replicas` are by UUID, of cards and instances; `by_claims` says what prepared claims
    hold of the cards, None where they are not given by claims. `memory_by` says who holds new slices
    to their memory, where that is not the usual one, `faults` why cards are unhealthy, and
    `older_configuration` why NVIDIA's is not the one that is asked for.
    """
    entries = [
        msgspec.structs.replace(
            _entry(card, healthy, terms, replicas),
            allocation_api=None if by_claims is None else AllocationApi.DRA,
            claimed=_claimed((by_claims or {}).get(card.uuid), terms.unit),
            memory_by=memory_by.get(card.uuid),
            fault=faults.get(card.uuid),
        )
        for card in sorted(cards, key=lambda card: card.index)
    ]
    is_plain = all(each.instances is None and each.replicas == 1 for each in entries)
    return compact(
        _CardsEntry(
            version=1 if is_plain else CARDS_VERSION,
            mode=terms.mode,
            unit_mib=terms.unit.mib,
            cards=tuple(entries),
            older_configuration=older_configuration,
        )
    )


def _entry(
    card: Card, healthy: Mapping[str, bool], terms: NodeTerms, replicas: Mapping[str, int]
) -> _CardEntry:
    is_cut, is_healthy = card.hardware.is_mig, healthy.get(card.uuid, False)
    return _CardEntry(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        memory_mib=card.memory_mib,
        units=0 if is_cut else card.capacity(terms.unit),
        healthy=is_healthy and (is_whole(terms.mode) or not is_cut),
        instances=_instances(card, healthy, replicas),
        replicas=replicas.get(card.uuid, 1),
    )


def _instances(
    card: Card, healthy: Mapping[str, bool], replicas: Mapping[str, int]
) -> tuple[_InstanceEntry, ...] | None:
    if not card.hardware.is_mig:
        return None
    is_healthy = healthy.get(card.uuid, False)
    return tuple(
        _InstanceEntry(
            uuid=each.uuid,
            index=each.index,
            profile=each.profile,
            memory_mib=each.memory_mib,
            healthy=healthy.get(each.uuid, is_healthy),
            replicas=replicas.get(each.uuid, 1),
        )
        for each in card.hardware.instances
    )


def _claimed(use: DeviceUse | None, unit: MemoryUnit) -> _ClaimedEntry | None:
    if use is None or not use.pods:
        return None
    return _ClaimedEntry(len(use.pods), unit.count(use.memory_mib), use.core_percent)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What prepared claims hold of a card."""

    index: CardIndex
    pods: int
    units: Units
    percent: int


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """An instance, or a card with replicas, by the annotation of cards."""

    card: CardIndex
    profile: str = ""
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node offers, by its annotation of cards and its labels.

    Attributes:
        cards: Its cards, by NVML index; `number` is the index too.
        healthy: Indexes of the cards that may serve.
        allocation_api: By what its cards are given, and by nothing else.
        claimed: What claims hold of them, as the agent tells it.
        devices: Instances and cards with replicas, by UUID.
        memory_by: Who holds new slices of a card to their memory, where that is not the usual one.
        faults: Why cards are unhealthy, and since when.
        older_configuration: Why its configuration is not the one that is asked for, and of when it is.
    """

    name: str
    mode: NodeMode
    unit: MemoryUnit
    cards: tuple[Card, ...]
    healthy: frozenset[CardIndex]
    policy: PlacementPolicy | None = None
    max_pods: int | None = None
    allocation_api: AllocationApi = AllocationApi.DEVICE_PLUGIN
    claimed: tuple[Claimed, ...] = ()
    devices: Mapping[str, PublishedDevice] = field(default_factory=dict, hash=False)
    memory_by: Mapping[CardIndex, str] = field(default_factory=dict, hash=False)
    faults: Mapping[CardIndex, str] = field(default_factory=dict, hash=False)
    older_configuration: str = ""

    @property
    def terms(self) -> NodeTerms:
        return NodeTerms(self.name, self.mode, self.unit, self.max_pods)

    @property
    def is_by_claims(self) -> bool:
        """Whether its cards are given by claims."""
        return self.allocation_api is AllocationApi.DRA


def parse_offer(name: str, annotation: str, labels: Mapping[str, str]) -> NodeOffer:
    """What a node offers; `annotation` is the value of `gpu-device-plugin/cards`.

    StateError: The annotation is none that an agent writes; the text names the key, and not the node.
    """
    told = _parse_cards(annotation)
    mode = parse_mode(told.mode)
    unit = next((unit for unit in MemoryUnit if unit.mib == told.unit_mib), None)
    if mode is None or unit is None:
        raise StateError("annotation of cards names no known mode and unit")
    if told.cards is None:
        raise StateError("annotation of cards has no list of cards")
    entries = sorted(told.cards, key=lambda entry: entry.index)
    _check_once(entries)
    by_claims = any(entry.allocation_api is AllocationApi.DRA for entry in entries)
    return NodeOffer(
        name=name,
        mode=mode,
        unit=unit,
        cards=tuple(map(_card, entries)),
        healthy=_one_set(tuple(entry.index for entry in entries if entry.healthy)),
        policy=parse_policy(labels.get(PLACEMENT_LABEL, "")),
        max_pods=parse_max_pods(labels.get(MAX_PODS_LABEL, "")),
        allocation_api=AllocationApi.DRA if by_claims else AllocationApi.DEVICE_PLUGIN,
        claimed=tuple(
            Claimed(entry.index, *msgspec.structs.astuple(entry.claimed))
            for entry in entries
            if entry.claimed
        ),
        devices=_published_devices(entries),
        memory_by={entry.index: text for entry in entries if (text := _short(entry.memory_by))},
        faults={entry.index: text for entry in entries if (text := _short(entry.fault))},
        older_configuration=_shown(told.older_configuration),
    )


def _published_devices(entries: Iterable[_CardEntry]) -> Mapping[str, PublishedDevice]:
    found: dict[str, PublishedDevice] = {}
    for entry in entries:
        if entry.replicas > 1:
            found[entry.uuid] = PublishedDevice(entry.index, replicas=entry.replicas)
        for each in entry.instances or ():
            found[each.uuid] = PublishedDevice(entry.index, each.profile, max(1, each.replicas))
    return found


_one_set: Callable[[tuple[CardIndex, ...]], frozenset[CardIndex]] = lru_cache(maxsize=1024)(
    frozenset
)
"""One set for all nodes of a kind: thousands of them have the same."""


def _parse_cards(text: str) -> _CardsEntry:
    if len(text) > MOST_ON_A_NODE:
        raise StateError(
            f"annotation of cards has {len(text)} characters, at most {MOST_ON_A_NODE} are read"
        )
    try:
        return msgspec.json.decode(text, type=_CardsEntry)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StateError(f"annotation of cards has what no agent writes: {error}") from error


def _card(entry: _CardEntry) -> Card:
    number, memory = CardNumber(entry.index), entry.memory_mib
    return Card(entry.uuid, number, entry.index, -1, sys.intern(entry.model), memory)


def _shown(plain: object) -> str:
    """A text for people, as far as it is one that an agent writes."""
    return plain if isinstance(plain, str) and len(plain) <= 1024 and plain.isprintable() else ""


def _short(plain: object) -> str:
    return (
        plain
        if isinstance(plain, str) and len(plain) <= LONGEST_UUID and plain.isprintable()
        else ""
    )


def _check_once(cards: Sequence[_CardEntry]) -> None:
    """No index and no UUID twice: what is held would count on both cards, or on the wrong one."""
    for name in ("index", "uuid"):
        seen = Counter(getattr(card, name) for card in cards)
        if twice := [value for value, times in seen.items() if times > 1]:
            raise StateError(f"annotation of cards has {name} {twice[0]!r} twice")


def withdrawn_annotation(mark: str, kept: Sequence[str]) -> str:
    """An agent's answer to the mark, as compact JSON.

    `kept` are pods whose files stay, because they are running.
    """
    return compact(_Withdrawn(WITHDRAWN_VERSION, mark, tuple(sorted(kept))))


def kept_pods(text: str, mark: str) -> tuple[str, ...] | None:
    """The pods whose files stay, or None where `text` is no answer to this mark.

    >>> kept_pods(withdrawn_annotation("u1", ["default/p"]), "u1")
    ('default/p',)
    >>> kept_pods(withdrawn_annotation("u1", []), "u2") is None
    True
    """
    told = decoded(text, _Withdrawn)
    return told.kept if told and told.mark == mark else None


def counted_unit_mib(text: str) -> MiB | None:
    """The memory unit of a node, by its annotation of cards; None if that does not say.

    >>> counted_unit_mib('{"version":1,"unit_mib":1024}')
    1024
    """
    return told.unit_mib if (told := decoded(text, _Served)) else None


def served_mode(text: str) -> str:
    """The mode of a node, by its annotation of cards; empty if that does not say."""
    return told.mode if (told := decoded(text, _Served)) else ""


def holds_by_claims(text: str) -> bool:
    """Whether pods hold cards of a node by claims, by its annotation of cards."""
    told = decoded(text, _HeldByClaims)
    return told is not None and any("claimed" in card for card in told.cards)


def decoded(text: str, kind: type[_Form], most_characters: int = sys.maxsize) -> _Form | None:
    """What a JSON text of this form says; None where it has another one, or is longer."""
    try:
        return msgspec.json.decode(text, type=kind) if len(text) <= most_characters else None
    except (ValueError, RecursionError):  # deep nesting is nonsense too, and anybody can write it
        return None


def compact(plain: object) -> str:
    """JSON without spaces."""
    return json.dumps(msgspec.to_builtins(plain, str_keys=True), separators=(",", ":"))
