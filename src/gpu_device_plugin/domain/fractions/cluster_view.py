"""What nodes offer and pods hold, by their annotations, and a scheduler's wish as one.

Amounts only: unit ids are the node's own.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeGuard

from gpu_device_plugin.domain.cards.card import MAX_CARDS, Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.container_sums import ContainerSums, Shares, one_copy
from gpu_device_plugin.domain.fractions.mode_resources import resources_of
from gpu_device_plugin.domain.fractions.pod_annotations import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CORE_ALLOCATION,
    INIT_ALLOCATION,
    V1_ASSIGNED,
    V1_ASSUME_TIME,
    V1_CAPACITY,
    V1_INDEX,
    V1_UNITS,
    believed_holds,
    card_count,
)
from gpu_device_plugin.domain.fractions.requests import wants_whole_card
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.holdings import MOST_ON_A_NODE, Holding, UnitsAndPercent
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import (
    MAX_PODS_LABEL,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
    parse_max_pods,
    parse_mode,
    parse_policy,
)
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import StateError

_MOST = 1 << 30
"""More MiB than any card has; a number beyond it is a mistake, and no metric could show it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What prepared claims hold of a card."""

    index: CardIndex
    pods: int
    units: int
    percent: int


def _parse_claimed(entry: Mapping[str, object]) -> Claimed:
    index, plain = entry["index"], entry["claimed"]
    told = plain if isinstance(plain, dict) else {}
    pods, units, percent = (told.get(key) for key in ("pods", "units", "percent"))
    if _is_amount(index) and _is_amount(pods) and _is_amount(units) and _is_amount(percent):
        return Claimed(CardIndex(index), pods, units, percent)
    raise StateError(f"annotation of cards has {plain!r:.64} as what claims hold of card {index}")


def _is_amount(plain: object) -> TypeGuard[int]:
    """A switch is a number too in Python, and no amount."""
    return type(plain) is int and 0 <= plain <= _MOST


_LONGEST_TEXT = 96
"""Of a UUID or a model's name, as NVML's buffers have it (NVML_DEVICE_UUID_V2_BUFFER_SIZE)."""
_MOST_INDEXES = 1 << 12


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node offers, by its annotation of cards and its labels.

    Attributes:
        cards: Its cards, by NVML index; `number` is the index too.
        healthy: Indexes of the cards that may serve.
        by_claims: Indexes of the cards that are given by claims, and by nothing else.
        claimed: What claims hold of these, as the agent tells it.
    """

    name: str
    mode: NodeMode
    unit: MemoryUnit
    cards: tuple[Card, ...]
    healthy: frozenset[CardIndex]
    policy: PlacementPolicy | None = None
    max_pods: int | None = None
    by_claims: frozenset[CardIndex] = frozenset()
    claimed: tuple[Claimed, ...] = ()

    @property
    def terms(self) -> NodeTerms:
        """What a request is checked against."""
        return NodeTerms(self.name, self.mode, self.unit, max_pods=self.max_pods)

    @property
    def has_slices(self) -> bool:
        """Whether its mode gives slices; who holds the cards of another mode no annotation says."""
        return bool(resources_of(self.mode))


@dataclass(frozen=True, slots=True)
class PodHold:
    """What one pod holds of a node's cards, or is about to.

    Attributes:
        by_container: Index in `spec.containers` -> card index -> share.
        extra: Card index -> what init containers and sidecars hold beside that; by the agent's
            word everything.
        inits: Of those alone: index in `spec.initContainers` -> card index -> share.
        unplaced: Demands that have no card yet: the node will choose for each.
        is_by_claims: Whether it has claims: then its annotations are for people, and the node's agent
            says what is held.
    """

    pod: PodRef
    by_container: Mapping[int, Shares] = field(default_factory=dict)
    extra: Shares = field(default_factory=dict)
    unplaced: tuple[Demand, ...] = ()
    inits: Mapping[int, Shares] = field(default_factory=dict)
    is_exclusive: bool = False
    is_by_claims: bool = False

    def by_card(self) -> dict[CardIndex, UnitsAndPercent]:
        """What it holds of each card, over all containers."""
        found: dict[CardIndex, UnitsAndPercent] = {}
        for shares in (*self.by_container.values(), self.extra):
            for card, (units, percent) in shares.items():
                before = found.get(card, (0, 0))
                found[card] = (before[0] + units, before[1] + percent)
        return found


def parse_offer(
    name: str, annotation: str, labels: Mapping[str, str], unhealthy: Iterable[CardIndex] = ()
) -> NodeOffer:
    """What a node offers.

    `annotation` is the value of `gpu-device-plugin/cards`; an operator's ConfigMap takes out the cards
    of the indexes `unhealthy` (R-542).

    Raises:
        StateError: The annotation is none that an agent writes; the text names the key, and not the node.
    """
    plain = _object(annotation, "annotation of cards")
    mode = parse_mode(str(plain.get("mode", "")))
    unit = next((u for u in MemoryUnit if u.mib == plain.get("unit_mib")), None)
    if mode is None or unit is None:
        raise StateError("annotation of cards names no known mode and unit")
    cards, healthy, by_claims = [], set(), set()
    entries = _entries(plain)
    for entry in entries:
        card, is_healthy = _card(entry)
        cards.append(card)
        healthy |= {card.index} if is_healthy and card.index not in unhealthy else set()
        by_claims |= {card.index} if entry.get("door") == AllocationApi.DRA else set()
    _check_once(cards)
    return NodeOffer(
        name=name,
        mode=mode,
        unit=unit,
        cards=tuple(sorted(cards, key=lambda card: card.index)),
        healthy=_one_set(tuple(sorted(healthy))),
        policy=parse_policy(labels.get(PLACEMENT_LABEL, "")),
        max_pods=parse_max_pods(labels.get(MAX_PODS_LABEL, "")),
        by_claims=_one_set(tuple(sorted(by_claims))),
        claimed=tuple(_parse_claimed(entry) for entry in entries if "claimed" in entry),
    )


_one_set: Callable[[tuple[CardIndex, ...]], frozenset[CardIndex]] = lru_cache(maxsize=1024)(
    frozenset
)
"""One set for all nodes of a kind: thousands of them have the same."""


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


def _card(entry: object) -> tuple[Card, bool]:
    if isinstance(entry, dict):
        index, uuid, memory = entry.get("index"), entry.get("uuid"), entry.get("memory_mib")
        model = entry.get("model", "")
        if (
            (isinstance(uuid, str) and uuid and _is_short(uuid))
            and (isinstance(model, str) and _is_short(model))
            and (_is_amount(index) and index < _MOST_INDEXES)
            and _is_amount(memory)
        ):
            return Card(
                uuid, CardNumber(index), CardIndex(index), -1, sys.intern(model), memory
            ), entry.get("healthy") is True
    raise StateError(f"annotation of cards has {entry!r:.200}, which is no card")


def _is_short(text: str) -> bool:
    return len(text) <= _LONGEST_TEXT and text.isprintable()


def _check_once(cards: Iterable[Card]) -> None:
    """No index and no UUID twice: what is held would count on both cards, or on the wrong one."""
    for name in ("index", "uuid"):
        seen = Counter(getattr(card, name) for card in cards)
        if twice := [value for value, times in seen.items() if times > 1]:
            raise StateError(f"annotation of cards has {name} {twice[0]!r} twice")


def hold_of(
    pod: PodRequest, annotations: Mapping[str, str], told: Holding | None = None
) -> PodHold:
    """What a pod that is bound to a node holds there, or will.

    What the node's agent says (`told`) comes first. Else annotations count for a container where
    they agree with the spec. A sidecar or init container that they do not name is taken to be on
    the cards of the first app container. What has no card then stays unplaced; not so of a pod with
    claims, whose names anybody may write.
    """
    if told is not None:
        return told_hold(pod.ref, told)
    asking = [container for container in pod.containers if container.asks]
    parts, _ = believed_holds(pod, annotations)
    apps = [c for c in asking if c.kind is ContainerKind.APP]
    first = next((parts[c.name] for c in apps if c.name in parts), {})
    take, left = ContainerSums(), []
    for container in asking:
        units, percent = container.amount(Resource.MEM), container.amount(Resource.CORE)
        on = parts.get(container.name, {})
        if not on and first and container.kind is not ContainerKind.APP:
            on = dict.fromkeys(first, -(-units // len(first)))
        if on:
            take.add(container, {card: (part, percent) for card, part in on.items()})
        else:
            left.append(container)
    return PodHold(
        pod.ref,
        one_copy(take.apps),
        one_copy({0: take.extra()})[0],
        _demands_without_card(pod, left) if pod.door is AllocationApi.DEVICE_PLUGIN else (),
        inits=one_copy(take.inits),
        is_exclusive=wants_whole_card(pod),
        is_by_claims=pod.door is AllocationApi.DRA,
    )


def told_hold(pod: PodRef, told: Holding) -> PodHold:
    """What a pod holds by the word of its node's agent, which names cards and no containers."""
    return PodHold(
        pod, extra=told.by_card, is_exclusive=told.is_exclusive, is_by_claims=told.is_by_claims
    )


def _demands_without_card(pod: PodRequest, left: Sequence[ContainerRequest]) -> tuple[Demand, ...]:
    """The demands of containers without a card; app containers take over what inits hold."""
    amounts = {
        kind: [(c.amount(Resource.MEM), c.amount(Resource.CORE)) for c in left if c.kind is kind]
        for kind in ContainerKind
    }
    found = [*amounts[ContainerKind.APP], *amounts[ContainerKind.SIDECAR]]
    if inits := amounts[ContainerKind.INIT]:
        apps = amounts[ContainerKind.APP]
        beyond = [
            max(0, max(each[which] for each in inits) - sum(each[which] for each in apps))
            for which in (0, 1)
        ]
        found += [(beyond[0], beyond[1])] if any(beyond) else []
    cards = card_count(pod)
    return tuple(
        Demand(units, percent, cards if units % cards == 0 else 1) for units, percent in found
    )


def _object(text: str, what: str) -> Mapping[str, object]:
    if len(text) > MOST_ON_A_NODE:
        raise StateError(f"{what} has {len(text)} characters, at most {MOST_ON_A_NODE} are read")
    try:
        plain: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{what} is no JSON: {error}") from error
    if not isinstance(plain, dict):
        raise StateError(f"{what} is {type(plain).__name__}, wanted an object")
    return plain


def wish_annotations(
    hold: PodHold, now_ns: int, before: Collection[str] = (), offer: NodeOffer | None = None
) -> dict[str, str]:
    """The wish for a pod that is about to be bound (R-540): version 2, and 1 where it can say it.

    Neither names sidecars and init containers: they have an annotation of ours.

    `before` are keys that the pod has already, for instance as the copy of another: a binding removes
    none, so those of which the wish says nothing are emptied. `offer` is of the pod's node, which tells
    how many units the card has.
    """
    values = {
        **{key: "{}" for key in (CORE_ALLOCATION, INIT_ALLOCATION) if key in before},
        # Of several cards version 1 cannot speak; an index that is none says nothing.
        **({V1_INDEX: "-1"} if V1_INDEX in before else {}),
        ALLOCATION: _amounts(hold.by_container, 0),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
    }
    by_card = hold.by_card()
    if any(percent for _, percent in by_card.values()):
        values[CORE_ALLOCATION] = _amounts(hold.by_container, 1)
    if hold.inits:
        values[INIT_ALLOCATION] = _amounts(hold.inits, 0)
    if len(by_card) == len(hold.by_container) == 1:
        ((index, (units, _)),) = next(iter(hold.by_container.values())).items()
        values |= {V1_INDEX: str(index), V1_UNITS: str(units), V1_ASSIGNED: "false"}
        values[V1_ASSUME_TIME] = str(now_ns)
        if offer:
            sizes = {card.index: card.capacity(offer.unit) for card in offer.cards}
            values |= {V1_CAPACITY: str(sizes.get(index, 0))}
    return values


def _amounts(by_container: Mapping[int, Shares], position: int) -> str:
    plain = {
        str(container): {str(card): share[position] for card, share in shares.items()}
        for container, shares in sorted(by_container.items())
    }
    return json.dumps(plain, separators=(",", ":"))
