"""What pods hold, as the node's agent says in annotations of the node, and for people of the pod.

Pods' own annotations are their tenants' to write, the node's are not: others count by the node's.
It names devices by UUID, each once: NVML's indexes change when a card or the driver does.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Generic, TypeGuard, TypeVar

from gpu_device_plugin.domain.cards.card import MAX_CARDS, Card, CardIndex
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.grant import (
    NOBODY,
    Enforcers,
    Grant,
    UnitsAndPercent,
    usual_enforcers,
)
from gpu_device_plugin.domain.grants.ledger import sum_holds
from gpu_device_plugin.domain.grants.node_annotations import (
    LONGEST_UUID,
    MOST_ON_A_NODE,
    compact,
    is_amount,
    json_object,
)
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer
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
    return {
        int(index): tuple(str(uuid) for uuid in uuids)
        for index, uuids in json_object(text, MOST_ON_A_POD).items()
        if index.isascii() and index.isdecimal() and len(index) <= 3 and isinstance(uuids, list)
    }


HOLDINGS_ANNOTATION = "gpu-device-plugin/holdings"
HOLDINGS_VERSION = 1
_MOST_DEVICES = 7 * MAX_CARDS
"""Instances of a node whose every card is cut into as many as a card can be."""
_Named = TypeVar("_Named", str, CardIndex)
"""How cards are named: an agent has UUIDs, who reads what it says the indexes that they have now."""
_ENFORCERS = (NOBODY, *(enforcer.value for enforcer in MemoryEnforcer))
_MOST_SHARED = 16
"""Most cards and devices of a pod that is taken to hold as others do."""


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
        entry = f"{json.dumps(uid)}:{compact(_plain(holding, place))}"
        if len(entry) + 1 <= left:
            entries.append(entry)
            left -= len(entry) + 1
    return f"{head}{','.join(entries)}}}}}" if entries else None


def _plain(holding: Holding[str], place: Mapping[str, int]) -> dict[str, object]:
    plain: dict[str, object] = {}
    if holding.by_card:
        plain["slices"] = {str(place[uuid]): n for uuid, n in sorted(holding.by_card.items())}
    if holding.devices:
        plain["devices"] = [place[uuid] for uuid in holding.devices]
    if holding.enforcers:
        plain["enforcers"] = holding.enforcers
    flags = {"exclusive": holding.is_exclusive, "claims": holding.is_by_claims}
    return plain | {key: True for key, is_set in flags.items() if is_set}


def _usual(shares: Collection[UnitsAndPercent]) -> tuple[Enforcers, ...]:
    """Who enforces slices where nothing else is written."""
    return (usual_enforcers(*(share.percent for share in shares)),) if shares else ()


def parse_holdings(text: str, cards: Iterable[Card]) -> Mapping[str, Holding[CardIndex]]:
    """What each pod holds of `cards`, by uid; nothing where `text` is none that an agent writes."""
    plain = json_object(text, MOST_ON_A_NODE)
    named, pods = plain.get("cards"), plain.get("pods")
    if not isinstance(pods, dict) or not _are_uuids(named):
        return {}
    index = {card.uuid: card.index for card in cards}
    by_place = {str(place): index.get(uuid) for place, uuid in enumerate(named)}
    read = {uid: _read(entry, named, by_place) for uid, entry in pods.items()}
    return {uid: holding for uid, holding in read.items() if holding is not None}


def _are_uuids(plain: object) -> TypeGuard[list[str]]:
    return (
        isinstance(plain, list)
        and len(plain) <= MAX_CARDS + _MOST_DEVICES
        and all(isinstance(each, str) and len(each) <= LONGEST_UUID for each in plain)
    )


def _read(
    entry: object, named: Sequence[str], by_place: Mapping[str, CardIndex | None]
) -> Holding[CardIndex] | None:
    if not isinstance(entry, dict):
        return None
    slices, devices = entry.get("slices", {}), entry.get("devices", [])
    by = entry.get("enforcers", [])
    if not isinstance(slices, dict) or not isinstance(devices, list) or not _are_enforcers(by):
        return None
    if len(slices) > MAX_CARDS or len(devices) > _MOST_DEVICES:
        return None
    are_named = slices.keys() <= by_place.keys() and all(
        type(each) is int and 0 <= each < len(named) for each in devices
    )
    if not are_named or not all(map(_is_share, slices.values())):
        return None
    shares = [
        (index, UnitsAndPercent(*share))
        for place, share in slices.items()
        if (index := by_place[place]) is not None
    ]
    flags = frozenset(key for key in ("exclusive", "claims") if entry.get(key) is True)
    # A large one is the pod's own: what is kept for all outlives the annotation.
    made = _one_copy if len(shares) + len(devices) <= _MOST_SHARED else _holding
    whole = tuple(named[each] for each in devices)
    return made(tuple(shares), whole, flags, tuple(Enforcers(*each) for each in by))


def _are_enforcers(plain: object) -> bool:
    """Pairs, of memory and compute: no more than there are names of both."""
    return (
        isinstance(plain, list)
        and len(plain) <= len(_ENFORCERS) ** 2
        and all(isinstance(each, list) and len(each) == 2 for each in plain)
        and all(name in _ENFORCERS for each in plain for name in each)
    )


def _is_share(plain: object) -> bool:
    return isinstance(plain, list) and len(plain) == 2 and all(map(is_amount, plain))


def _holding(
    shares: tuple[tuple[CardIndex, UnitsAndPercent], ...],
    devices: tuple[str, ...],
    flags: frozenset[str],
    enforcers: tuple[Enforcers, ...],
) -> Holding[CardIndex]:
    return Holding(dict(shares), devices, "exclusive" in flags, "claims" in flags, enforcers)


_one_copy = lru_cache(maxsize=4096)(_holding)
"""One for all that are equal: tens of thousands of pods hold alike."""
