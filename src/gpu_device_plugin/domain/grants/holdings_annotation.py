"""What pods hold, as the node's agent says in annotations of the node, and for people of the pod.

Pods' own annotations are their tenants' to write, the node's are not: others count by the node's.
It names devices by UUID, each once: NVML's indexes change when a card or the driver does.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Annotated, Generic, TypeVar

import msgspec

from gpu_device_plugin.domain.cards.card import MAX_CARDS, Card, CardIndex
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.grants.grant import Enforcers, Grant, UnitsAndPercent, usual_enforcers
from gpu_device_plugin.domain.grants.ledger import sum_holds
from gpu_device_plugin.domain.grants.node_annotations import (
    MOST_ON_A_NODE,
    Amount,
    Name,
    compact,
    decoded,
)
from gpu_device_plugin.domain.node.pods import PodRequest

TOPOLOGY_GPU = "aliyun.com/gpu"
"""A whole card in mode topology."""
DEVICES_ANNOTATION = "gpu-device-plugin/devices"
"""On a pod: container index -> UUIDs of its cards and instances."""
MOST_ON_A_POD = 16 * 1024
"""Characters of an annotation of a pod: four times what 64 containers on 8 cards each need, or 300
UUIDs. Nothing longer is read: a pod's tenant may write it."""
MOST_IN_A_WORD = 256
"""Characters of one that is a name or a number."""


def devices_annotation(by_index: Mapping[int, Iterable[str]]) -> str:
    """The annotation's value, as compact JSON."""
    by_key = {str(index): sorted(uuids) for index, uuids in by_index.items()}
    return compact(dict(sorted(by_key.items())))


def held_devices(text: str) -> Mapping[int, tuple[str, ...]]:
    """Container index -> UUIDs; empty where `text` is none that an agent writes.

    >>> held_devices(devices_annotation({0: ["GPU-b", "GPU-a"]}))
    {0: ('GPU-a', 'GPU-b')}
    >>> held_devices("[1]")
    {}
    """
    return decoded(text, dict[_Index, tuple[str, ...]], MOST_ON_A_POD) or {}


HOLDINGS_ANNOTATION = "gpu-device-plugin/holdings"
HOLDINGS_VERSION = 1
_MOST_DEVICES = 7 * MAX_CARDS
"""Instances of a node whose every card is cut into as many as a card can be."""
_Index = Annotated[int, msgspec.Meta(ge=0, lt=1000)]
_Named = TypeVar("_Named", str, CardIndex)
"""How cards are named: an agent has UUIDs, who reads what it says the indexes that they have now."""
_MOST_SHARED = 16
"""Most cards and devices of a pod that is taken to hold as others do."""


class _HoldingEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod holds, as written and read: cards by their place in `_HoldingsEntry.cards`."""

    slices: Annotated[
        dict[Amount[int], tuple[Amount[Units], Amount[int]]], msgspec.Meta(max_length=MAX_CARDS)
    ] = {}
    devices: Annotated[tuple[Amount[int], ...], msgspec.Meta(max_length=_MOST_DEVICES)] = ()
    enforcers: Annotated[tuple[Enforcers, ...], msgspec.Meta(max_length=9)] = ()
    exclusive: bool = False
    claims: bool = False


class _HoldingsEntry(msgspec.Struct, frozen=True):
    cards: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_CARDS + _MOST_DEVICES)]
    pods: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Holding(Generic[_Named]):
    """What one pod holds of a node's devices.

    Attributes:
        by_card: What it holds of each card.
        devices: UUIDs of the cards and instances that it holds whole, or replicas of which.
        is_by_claims: Whether it holds its slices by claims, which the node's cards count.
        enforcers: Who enforces its slices, where those are not the usual ones; several where its
            containers differ.
    """

    by_card: Mapping[_Named, UnitsAndPercent] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    is_exclusive: bool = False
    is_by_claims: bool = False
    enforcers: tuple[Enforcers, ...] = ()

    @property
    def enforcers_text(self) -> str:
        """`memory by driver, compute by library`; empty without a slice."""
        return " or ".join(map(str, self.enforcers or _usual(self.by_card.values())))


def holding_of(
    grants: Sequence[Grant], cards: Iterable[Card], unit: MemoryUnit, devices: Collection[str]
) -> Holding[str]:
    """What a pod holds by its grants.

    Shares of cards that are not among `cards` are left out; `devices` is what the pod holds whole.
    """
    known = {card.uuid for card in cards}
    use = sum_holds(chain.from_iterable(grant.holds for grant in grants))
    by_card = {
        uuid: UnitsAndPercent(unit.count(each.memory_mib), each.core_percent)
        for uuid, each in use.items()
        if uuid in known and (each.memory_mib or each.core_percent)
    }
    enforcers = tuple(sorted({g.enforcers for g in grants if not {*g.devices} <= {*devices}}))
    return Holding(
        by_card,
        tuple(sorted(devices)),
        any(each.is_exclusive for each in use.values()),
        all(grant.holder.claim for grant in grants),
        () if enforcers == _usual(by_card.values()) else enforcers,
    )


def is_complete(grants: Sequence[Grant], spec: PodRequest | None) -> bool:
    """Whether every container that asks has its grant: until then a part is still to come."""
    if any(grant.holder.claim for grant in grants):
        return True
    granted = {grant.container for grant in grants}
    return spec is not None and granted >= {c.name for c in spec.containers if c.asks}


def holdings_annotation(by_uid: Mapping[str, Holding[str]]) -> str | None:
    """The annotation's value by pod uid, as compact JSON; None where nothing is held.

    What is beyond `MOST_ON_A_NODE` is left out: these pods count by their own annotations, where
    these agree with the pod spec.

    >>> holdings_annotation({"u1": Holding({"GPU-a": UnitsAndPercent(2, 30)})})
    '{"version":1,"cards":["GPU-a"],"pods":{"u1":{"slices":{"0":[2,30]}}}}'
    """
    held = {uuid for each in by_uid.values() for uuid in (*each.by_card, *each.devices)}
    place = {uuid: number for number, uuid in enumerate(sorted(held))}
    head = f'{{"version":{HOLDINGS_VERSION},"cards":{compact([*place])},"pods":{{'
    entries, left = [], MOST_ON_A_NODE - len(head) - 2
    for uid, holding in sorted(by_uid.items()):
        entry = f"{json.dumps(uid)}:{compact(_entry(holding, place))}"
        if len(entry) + 1 <= left:
            entries.append(entry)
            left -= len(entry) + 1
    return f"{head}{','.join(entries)}}}}}" if entries else None


def _entry(holding: Holding[str], place: Mapping[str, int]) -> _HoldingEntry:
    return _HoldingEntry(
        {place[uuid]: share for uuid, share in sorted(holding.by_card.items())},
        tuple(place[uuid] for uuid in holding.devices),
        holding.enforcers,
        holding.is_exclusive,
        holding.is_by_claims,
    )


def _usual(shares: Collection[UnitsAndPercent]) -> tuple[Enforcers, ...]:
    """Who enforces slices where nothing else is written."""
    return (usual_enforcers(*(share.percent for share in shares)),) if shares else ()


def parse_holdings(text: str, cards: Iterable[Card]) -> Mapping[str, Holding[CardIndex]]:
    """What each pod holds of `cards`, by uid; nothing where `text` is none that an agent writes."""
    told = decoded(text, _HoldingsEntry, MOST_ON_A_NODE)
    if told is None:
        return {}
    index = {card.uuid: card.index for card in cards}
    by_place = [index.get(uuid) for uuid in told.cards]
    read = {uid: _read(entry, told.cards, by_place) for uid, entry in told.pods.items()}
    return {uid: holding for uid, holding in read.items() if holding is not None}


def _read(
    raw: msgspec.Raw, named: Sequence[str], by_place: Sequence[CardIndex | None]
) -> Holding[CardIndex] | None:
    """One pod alone: an entry that no agent writes takes nothing from the others."""
    try:
        entry = msgspec.json.decode(raw, type=_HoldingEntry)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    if max((*entry.slices, *entry.devices), default=-1) >= len(named):
        return None
    shares = [
        (index, UnitsAndPercent(*share))
        for place, share in entry.slices.items()
        if (index := by_place[place]) is not None
    ]
    # A large one is the pod's own: what is kept for all outlives the annotation.
    made = _one_copy if len(shares) + len(entry.devices) <= _MOST_SHARED else _holding
    return made(
        tuple(shares),
        tuple(named[each] for each in entry.devices),
        entry.enforcers,
        entry.exclusive,
        entry.claims,
    )


def _holding(
    shares: tuple[tuple[CardIndex, UnitsAndPercent], ...],
    devices: tuple[str, ...],
    enforcers: tuple[Enforcers, ...],
    is_exclusive: bool,  # noqa: FBT001 - a cache's key
    is_by_claims: bool,  # noqa: FBT001
) -> Holding[CardIndex]:
    return Holding(dict(shares), devices, is_exclusive, is_by_claims, enforcers)


_one_copy = lru_cache(maxsize=4096)(_holding)
"""One for all that are equal: tens of thousands of pods hold alike."""
