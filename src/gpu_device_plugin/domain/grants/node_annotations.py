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
from typing import TypeGuard

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

MOST_ON_A_NODE = 64 * 1024
"""Characters of an annotation of a node: 900 pods, or as many cards as a node can have, each cut into
seven instances. All annotations of an object have 256 KiB together."""
MOST_AMOUNT = 1 << 30
"""More MiB than any card has; a number beyond it is a mistake, and no metric could show it."""
LONGEST_UUID = 96
"""Characters of a UUID or a model's name, as NVML's buffers have it (NVML_DEVICE_UUID_V2_BUFFER_SIZE)."""
_MOST_INDEXES = 1 << 12

CARDS_ANNOTATION = "gpu-device-plugin/cards"
CARDS_VERSION = 2
UNINSTALL_ANNOTATION = "gpu-device-plugin/uninstall"
"""Marks a node for the agents of one installation. Its value is the uid of their DaemonSet, so
that the mark of an earlier installation has no effect on a later one."""
TAINT_ANNOTATION = "gpu-device-plugin/startup-taint-removed"
"""Its value is the key of the taint; one that somebody sets later stays."""
WITHDRAWN_ANNOTATION = "gpu-device-plugin/withdrawn"
WITHDRAWN_VERSION = 1


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
    ordered = sorted(cards, key=lambda card: card.index)
    entries = [
        _card(card, healthy, terms, replicas)
        | _by_claims(card.uuid, by_claims, terms)
        | ({"memory_by": memory_by[card.uuid]} if card.uuid in memory_by else {})
        | ({"fault": faults[card.uuid]} if card.uuid in faults else {})
        for card in ordered
    ]
    is_plain = not any({"instances", "replicas"} & entry.keys() for entry in entries)
    return compact(
        {
            "version": 1 if is_plain else CARDS_VERSION,
            "mode": terms.mode,
            "unit_mib": terms.unit.mib,
            "cards": entries,
            **({"older_configuration": older_configuration} if older_configuration else {}),
        }
    )


def _card(
    card: Card, healthy: Mapping[str, bool], terms: NodeTerms, replicas: Mapping[str, int]
) -> dict[str, object]:
    is_cut, is_healthy = card.hardware.is_mig, healthy.get(card.uuid, False)
    entry: dict[str, object] = {
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "memory_mib": card.memory_mib,
        "units": 0 if is_cut else card.capacity(terms.unit),
        "healthy": is_healthy and (is_whole(terms.mode) or not is_cut),
    }
    if is_cut:
        entry["instances"] = [
            {
                "uuid": each.uuid,
                "index": each.index,
                "profile": each.profile,
                "memory_mib": each.memory_mib,
                "healthy": healthy.get(each.uuid, is_healthy),
                **_replicas(each.uuid, replicas),
            }
            for each in card.hardware.instances
        ]
    return entry | _replicas(card.uuid, replicas)


def _by_claims(
    uuid: str, by_claims: Mapping[str, DeviceUse] | None, terms: NodeTerms
) -> dict[str, object]:
    if by_claims is None:
        return {}
    use = by_claims.get(uuid, DeviceUse())
    units = terms.unit.count(use.memory_mib)
    told = {"pods": len(use.pods), "units": units, "percent": use.core_percent}
    return {"allocation_api": AllocationApi.DRA.value} | ({"claimed": told} if use.pods else {})


def _replicas(uuid: str, replicas: Mapping[str, int]) -> dict[str, object]:
    return {"replicas": replicas[uuid]} if replicas.get(uuid, 1) > 1 else {}


@dataclass(frozen=True, slots=True)
class Claimed:
    """What prepared claims hold of a card."""

    index: CardIndex
    pods: int
    units: Units
    percent: int


def _parse_claimed(entry: Mapping[str, object]) -> Claimed:
    index, plain = entry["index"], entry["claimed"]
    told = plain if isinstance(plain, dict) else {}
    pods, units, percent = (told.get(key) for key in ("pods", "units", "percent"))
    if is_amount(index) and is_amount(pods) and is_amount(units) and is_amount(percent):
        return Claimed(CardIndex(index), pods, Units(units), percent)
    raise StateError(f"annotation of cards has {plain!r:.64} as what claims hold of card {index}")


def is_amount(plain: object) -> TypeGuard[int]:
    """Whether JSON says how much; a switch is a number too in Python, and no amount."""
    return type(plain) is int and 0 <= plain <= MOST_AMOUNT


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
    plain = _offer_object(annotation)
    mode = parse_mode(str(plain.get("mode", "")))
    unit = next((u for u in MemoryUnit if u.mib == plain.get("unit_mib")), None)
    if mode is None or unit is None:
        raise StateError("annotation of cards names no known mode and unit")
    cards, healthy = [], set()
    entries = _entries(plain)
    for entry in entries:
        card, is_healthy = _parse_card(entry)
        cards.append(card)
        healthy |= {card.index} if is_healthy else set()
    _check_once(cards)
    return NodeOffer(
        name=name,
        mode=mode,
        unit=unit,
        cards=tuple(sorted(cards, key=lambda card: card.index)),
        healthy=_one_set(tuple(sorted(healthy))),
        policy=parse_policy(labels.get(PLACEMENT_LABEL, "")),
        max_pods=parse_max_pods(labels.get(MAX_PODS_LABEL, "")),
        allocation_api=_allocation_api(entries),
        claimed=tuple(_parse_claimed(entry) for entry in entries if "claimed" in entry),
        devices=_published_devices(entries),
        memory_by=_texts(cards, entries, "memory_by"),
        faults=_texts(cards, entries, "fault"),
        older_configuration=_shown(plain.get("older_configuration")),
    )


def _allocation_api(cards: Iterable[Mapping[str, object]]) -> AllocationApi:
    told = {entry.get("allocation_api") for entry in cards}
    return AllocationApi.DRA if AllocationApi.DRA in told else AllocationApi.DEVICE_PLUGIN


def _texts(
    cards: Iterable[Card], entries: Iterable[Mapping[str, object]], key: str
) -> Mapping[CardIndex, str]:
    return {
        card.index: text
        for card, entry in zip(cards, entries, strict=True)
        if isinstance(text := entry.get(key), str) and _is_short(text)
    }


def _published_devices(cards: object) -> Mapping[str, PublishedDevice]:
    found: dict[str, PublishedDevice] = {}
    for card in _objects(cards):
        index, replicas = CardIndex(_count(card.get("index"))), _count(card.get("replicas"))
        if replicas > 1:
            found[str(card.get("uuid"))] = PublishedDevice(index, replicas=replicas)
        for each in _objects(card.get("instances")):
            profile = str(each.get("profile", ""))
            found[str(each.get("uuid"))] = PublishedDevice(
                index, profile, max(1, _count(each.get("replicas")))
            )
    return found


def _objects(plain: object) -> list[dict[str, object]]:
    return [each for each in plain if isinstance(each, dict)] if isinstance(plain, list) else []


def _count(plain: object) -> int:
    return plain if is_amount(plain) else 0


_one_set: Callable[[tuple[CardIndex, ...]], frozenset[CardIndex]] = lru_cache(maxsize=1024)(
    frozenset
)
"""One set for all nodes of a kind: thousands of them have the same."""


def _offer_object(text: str) -> Mapping[str, object]:
    if len(text) > MOST_ON_A_NODE:
        raise StateError(
            f"annotation of cards has {len(text)} characters, at most {MOST_ON_A_NODE} are read"
        )
    try:
        plain: object = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"annotation of cards is no JSON: {error}") from error
    if not isinstance(plain, dict):
        raise StateError(f"annotation of cards is {type(plain).__name__}, wanted an object")
    return plain


def _entries(plain: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """The entries of the cards, as few as a node can have."""
    entries = plain.get("cards")
    if not isinstance(entries, list):
        raise StateError("annotation of cards has no list of cards")
    if len(entries) > MAX_CARDS:
        raise StateError(
            f"annotation of cards has {len(entries)} cards, an agent numbers at most {MAX_CARDS}"
        )
    return entries


def _parse_card(entry: object) -> tuple[Card, bool]:
    if isinstance(entry, dict):
        index, uuid, memory = entry.get("index"), entry.get("uuid"), entry.get("memory_mib")
        model = entry.get("model", "")
        if (
            (isinstance(uuid, str) and uuid and _is_short(uuid))
            and (isinstance(model, str) and _is_short(model))
            and (is_amount(index) and index < _MOST_INDEXES)
            and is_amount(memory)
        ):
            return Card(
                uuid, CardNumber(index), CardIndex(index), -1, sys.intern(model), MiB(memory)
            ), entry.get("healthy") is True
    raise StateError(f"annotation of cards has {entry!r:.200}, which is no card")


def _shown(plain: object) -> str:
    """A text for people, as far as it is one that an agent writes."""
    return plain if isinstance(plain, str) and len(plain) <= 1024 and plain.isprintable() else ""


def _is_short(text: str) -> bool:
    return len(text) <= LONGEST_UUID and text.isprintable()


def _check_once(cards: Iterable[Card]) -> None:
    """No index and no UUID twice: what is held would count on both cards, or on the wrong one."""
    for name in ("index", "uuid"):
        seen = Counter(getattr(card, name) for card in cards)
        if twice := [value for value, times in seen.items() if times > 1]:
            raise StateError(f"annotation of cards has {name} {twice[0]!r} twice")


def withdrawn_annotation(mark: str, kept: Sequence[str]) -> str:
    """An agent's answer to the mark, as compact JSON.

    `kept` are pods whose files stay, because they are running.
    """
    return compact({"version": WITHDRAWN_VERSION, "mark": mark, "kept": sorted(kept)})


def kept_pods(text: str, mark: str) -> tuple[str, ...] | None:
    """The pods whose files stay, or None where `text` is no answer to this mark.

    >>> kept_pods(withdrawn_annotation("u1", ["default/p"]), "u1")
    ('default/p',)
    >>> kept_pods(withdrawn_annotation("u1", []), "u2") is None
    True
    """
    plain = json_object(text)
    kept = plain.get("kept")
    if plain.get("mark") != mark or not isinstance(kept, list):
        return None
    return tuple(str(pod) for pod in kept)


def counted_unit_mib(text: str) -> MiB | None:
    """The memory unit of a node, by its annotation of cards; None if that does not say.

    >>> counted_unit_mib('{"version":1,"unit_mib":1024}')
    1024
    """
    found = json_object(text).get("unit_mib")
    return MiB(found) if isinstance(found, int) else None


def served_mode(text: str) -> str:
    """The mode of a node, by its annotation of cards; empty if that does not say."""
    return str(json_object(text).get("mode", ""))


def holds_by_claims(text: str) -> bool:
    """Whether pods hold cards of a node by claims, by its annotation of cards."""
    cards = json_object(text).get("cards")
    return isinstance(cards, list) and any(
        "claimed" in card for card in cards if isinstance(card, dict)
    )


def parse_json(text: str) -> object:
    """What a JSON text says; ValueError where it is none, or has half of a character, which nobody can write."""
    plain: object = json.loads(text)
    if "\\u" in text:
        json.dumps(plain, ensure_ascii=False).encode()
    return plain


def json_object(text: str, most_characters: int = sys.maxsize) -> Mapping[str, object]:
    """What a JSON object says; empty where it is none, or longer."""
    try:
        plain: object = parse_json(text) if len(text) <= most_characters else None
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def compact(plain: object) -> str:
    """JSON without spaces."""
    return json.dumps(plain, separators=(",", ":"))
