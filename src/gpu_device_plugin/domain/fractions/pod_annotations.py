"""A pod's annotations, written and read: the slice that it was given, and the cards that a scheduler wishes for it.

Amounts only: unit ids are the node's own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Annotated, NamedTuple

import msgspec

from gpu_device_plugin.domain.cards.card import Card, CardIndex
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.demands import (
    amounts_of,
    parse_claim_name,
    wants_whole_card,
)
from gpu_device_plugin.domain.fractions.fraction import fraction_of, request_of, units_per_card
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import ContainerDemand, Demand, Grant, UnitsAndPercent
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    MOST_ON_A_POD,
    Holding,
    devices_annotation,
)
from gpu_device_plugin.domain.grants.init_containers import (
    NOTHING,
    ContainerSums,
    Shares,
    demands_ahead,
    one_copy,
)
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer, compact, decoded
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    PodRef,
    PodRequest,
    WishedCards,
)

ALLOCATION = "scheduler.framework.gpushare.allocation"
ASSIGNED = "scheduler.framework.gpushare.assigned"
ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
CORE_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
"""As ALLOCATION, for `spec.initContainers`, sidecars among them: no other tool reads or writes it."""
RESIZE = "gpu-device-plugin/resize"
"""What its tenant asks a running pod's containers to have from now on: see `resize`."""
RESIZED = "gpu-device-plugin/resized"
"""What the agent answers."""
MOST_ASKED, MOST_ANSWERED = 2048, 8192
"""Characters of these two: nothing longer is read. Any answer without texts and times fits."""
GROWTH = "gpu-device-plugin/resize-growth"
"""On a namespace: what slices of its pods may have beyond their requests on each node, `mem:8,core:100`."""
V1_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
V1_UNITS = "ALIYUN_COM_GPU_MEM_POD"
V1_CAPACITY = "ALIYUN_COM_GPU_MEM_DEV"
V1_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
V1_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
SECOND_GENERATION = (ALLOCATION, ASSIGNED, ASSUME_TIME, CORE_ALLOCATION, INIT_ALLOCATION)
FIRST_GENERATION = (V1_INDEX, V1_UNITS, V1_CAPACITY, V1_ASSIGNED, V1_ASSUME_TIME)
HELD_KEYS = (*SECOND_GENERATION, *FIRST_GENERATION, DEVICES_ANNOTATION, RESIZED)
"""All keys that say what a pod holds. The chart's policies have the same ones."""


_INDEX = msgspec.Meta(ge=0, lt=10**9)
_Amounts = dict[Annotated[int, _INDEX], dict[Annotated[CardIndex, _INDEX], int]]
"""Container index -> card index -> units or percent."""


@dataclass(frozen=True, slots=True)
class PodHold:
    """What one pod holds of a node's cards, or is about to.

    Attributes:
        by_container: Index in `spec.containers` -> card index -> share.
        extra: Card index -> what init containers and sidecars hold beside that; by the agent's
            word everything.
        inits: The init containers and sidecars alone: index in `spec.initContainers` -> card index -> share.
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
            for card, share in shares.items():
                found[card] = found.get(card, NOTHING).plus(share)
        return found

    @classmethod
    def by_sums(
        cls, pod: PodRequest, sums: ContainerSums, unplaced: tuple[Demand, ...] = ()
    ) -> "PodHold":
        """What a pod holds by what its containers have taken."""
        return cls(
            pod.ref,
            one_copy(sums.apps),
            one_copy({0: sums.extra()})[0],
            unplaced,
            inits=one_copy(sums.inits),
            is_exclusive=wants_whole_card(pod),
            is_by_claims=pod.allocation_api is AllocationApi.DRA,
        )


def pod_annotations(
    grants: Sequence[Grant], cards: Sequence[Card], assume_time_ns: int
) -> dict[str, str]:
    """What a pod's app containers were given, in the form of R-540.

    Always in its second generation; for older tools also in the first, if one card was given.

    Grants of init and sidecar containers have a key of their own. Grants name cards by UUID,
    annotations by NVML index.

    Returns:
        Annotations to set; empty while no app container has units, or while a card is away.
    """
    placed = sorted(filter(None, map(_place_of, grants)), key=itemgetter(1))
    apps = [(index, grant) for is_app, index, grant in placed if is_app]
    by_uuid = {card.uuid: card for card in cards}
    used = {uuid for _, grant in apps for uuid in grant.devices}
    if not apps or not used <= by_uuid.keys():
        return {}
    inits = [(i, g) for is_app, i, g in placed if not is_app and by_uuid.keys() >= set(g.devices)]
    values = {
        ALLOCATION: _allocation(apps, by_uuid),
        ASSIGNED: "true",
        ASSUME_TIME: str(assume_time_ns),
    }
    percents = ((i, g, request_of(g).percent) for i, g in apps)
    core = {i: dict.fromkeys(_on(g, by_uuid), percent) for i, g, percent in percents if percent}
    if inits:
        values[INIT_ALLOCATION] = _allocation(inits, by_uuid)
    if core:
        values[CORE_ALLOCATION] = compact(core)
    if len(used) == 1:
        values |= _first_generation([g for _, g in apps], by_uuid[used.pop()], assume_time_ns)
    return values


def whole_cards(grants: Iterable[Grant]) -> dict[str, str]:
    """The cards of a claim that was made for no slice: with all of them, or by hand."""
    whole = [g.devices for g in grants if g.holder.claim and _place_of(g) is None]
    return {DEVICES_ANNOTATION: devices_annotation({0: chain(*whole)})} if whole else {}


def _place_of(grant: Grant) -> tuple[bool, int, Grant] | None:
    """Whether an app container has it, and at which position; None where it has no container's units."""
    if not grant.holder.claim:
        is_app = grant.holder.kind is ContainerKind.APP
        return (is_app, grant.holder.index, grant) if grant.ids(Resource.MEM) else None
    shape = parse_claim_name(grant.holder.claim_name)
    return (shape.is_app, shape.index, grant) if shape else None


def _allocation(grants: Iterable[tuple[int, Grant]], by_uuid: Mapping[str, Card]) -> str:
    return compact({i: dict.fromkeys(_on(g, by_uuid), units_per_card(g)) for i, g in grants})


def _on(grant: Grant, by_uuid: Mapping[str, Card]) -> Sequence[CardIndex]:
    return [by_uuid[uuid].index for uuid in grant.devices]


def _first_generation(apps: Sequence[Grant], card: Card, assume_time_ns: int) -> dict[str, str]:
    fractions = [fraction_of(grant) for grant in apps]
    return {
        V1_INDEX: str(card.index),
        V1_UNITS: str(sum(each.mem_units for each in fractions)),
        V1_CAPACITY: str(card.capacity(fractions[0].unit)),
        V1_ASSIGNED: "true",
        V1_ASSUME_TIME: str(assume_time_ns),
    }


def wish_annotations(
    hold: PodHold, now_ns: int, before: Collection[str] = (), offer: NodeOffer | None = None
) -> dict[str, str]:
    """The wish for a pod that is about to be bound (R-540): version 2, and 1 where it can say it.

    Neither names sidecars and init containers: they have an annotation of their own.

    `before` are keys that the pod has already, for instance as the copy of another: a binding removes
    none, so those of which the wish says nothing are emptied. `offer` is of the pod's node, which tells
    how many units the card has.
    """
    values = {
        **{key: "{}" for key in (CORE_ALLOCATION, INIT_ALLOCATION) if key in before},
        # Of several cards version 1 cannot speak; an index that is none says nothing.
        **({V1_INDEX: "-1"} if V1_INDEX in before else {}),
        ALLOCATION: _compact({c: _units(s) for c, s in hold.by_container.items()}),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
    }
    by_card = hold.by_card()
    if any(share.percent for share in by_card.values()):
        percents = {
            c: {card: n for card, (_, n) in s.items()} for c, s in hold.by_container.items()
        }
        values[CORE_ALLOCATION] = _compact(percents)
    if hold.inits:
        values[INIT_ALLOCATION] = _compact({c: _units(s) for c, s in hold.inits.items()})
    if len(by_card) == len(hold.by_container) == 1:
        ((index, (units, _)),) = next(iter(hold.by_container.values())).items()
        values |= {V1_INDEX: str(index), V1_UNITS: str(units), V1_ASSIGNED: "false"}
        values[V1_ASSUME_TIME] = str(now_ns)
        if offer:
            sizes = {card.index: card.capacity(offer.unit) for card in offer.cards}
            values |= {V1_CAPACITY: str(sizes.get(index, 0))}
    return values


def _units(shares: Shares) -> Mapping[CardIndex, Units]:
    return {card: share.units for card, share in shares.items()}


def _compact(by_container: Mapping[int, Mapping[CardIndex, int]]) -> str:
    return compact(dict(sorted(by_container.items())))


class BelievedHolds(NamedTuple):
    """Container name -> card index -> memory units; and whether all that annotations say agrees with the spec."""

    by_container: Mapping[str, Mapping[CardIndex, int]]
    is_all: bool


def believed_holds(pod: PodRequest, annotations: Mapping[str, str]) -> BelievedHolds:
    """On which cards annotations say that a pod's containers are, where they agree with its spec.

    A pod's annotations are its tenant's to write. They count for a container where they name as many
    cards as the pod asks for, and on each its units and, if they say it, its percent. The spec
    tells everything else.
    """
    apps, inits, core = (
        decoded(annotations[key], _Amounts, MOST_ON_A_POD) if key in annotations else {}
        for key in (ALLOCATION, INIT_ALLOCATION, CORE_ALLOCATION)
    )
    if apps is None or inits is None or core is None:
        return BelievedHolds({}, is_all=False)
    believed: dict[str, Mapping[CardIndex, int]] = {}
    for container in pod.containers:
        is_app = container.kind is ContainerKind.APP
        named = (apps if is_app else inits).get(container.index, {})
        percents = core.get(container.index, {}) if is_app else {}
        if named and _agrees(container, card_count(pod), named, percents):
            believed[container.name] = named
    return BelievedHolds(believed, is_all=len(believed) == len(apps) + len(inits))


def _agrees(
    container: ContainerRequest,
    cards: int,
    named: Mapping[CardIndex, int],
    percents: Mapping[CardIndex, int],
) -> bool:
    units, percent = amounts_of(container)
    return (
        len(named) == cards
        and all(each * cards == units > 0 for each in named.values())
        and (not percents or percents == dict.fromkeys(named, percent))
    )


def card_count(pod: PodRequest) -> int:
    """On how many cards its label asks each container to be; 1 where that is no number.

    No node gives compute of several cards. A tenant writes labels when it likes: else the percent
    that a pod asks once would count on each of them.
    """
    if any(container.amount(Resource.CORE) for container in pod.containers):
        return 1
    text = pod.card_count_label or "1"
    return max(1, int(text)) if _is_index(text) and len(text) < 4 else 1


def hold_of(
    pod: PodRequest,
    annotations: Mapping[str, str],
    told: Holding[CardIndex] | None = None,
    believed: BelievedHolds | None = None,
) -> PodHold:
    """What a pod that is bound to a node holds there, or will; `believed` where that was asked already.

    What the node's agent says (`told`) comes first. Else annotations count for a container where
    they agree with the spec. A sidecar or init container that they do not name is taken to be on
    the cards of the first app container. What has no card then stays unplaced; not so of a pod with
    claims, whose names anybody may write.
    """
    if told is not None:
        return told_hold(pod.ref, told)
    asking = [container for container in pod.containers if container.asks]
    parts, _ = believed or believed_holds(pod, annotations)
    apps = [c for c in asking if c.kind is ContainerKind.APP]
    first = next((parts[c.name] for c in apps if c.name in parts), {})
    sums, unplaced = ContainerSums(), []
    for container in asking:
        units, percent = amounts_of(container)
        cards = parts.get(container.name, {})
        if not cards and first and container.kind is not ContainerKind.APP:
            cards = dict.fromkeys(first, -(-units // len(first)))
        if cards:
            sums.add(
                container, {card: UnitsAndPercent(Units(n), percent) for card, n in cards.items()}
            )
        else:
            unplaced.append(container)
    is_counted = pod.allocation_api is AllocationApi.DEVICE_PLUGIN
    return PodHold.by_sums(pod, sums, _demands_without_card(pod, unplaced) if is_counted else ())


def told_hold(pod: PodRef, told: Holding[CardIndex]) -> PodHold:
    """What a pod holds by the word of its node's agent, which names cards and no containers."""
    return PodHold(
        pod, extra=told.by_card, is_exclusive=told.is_exclusive, is_by_claims=told.is_by_claims
    )


def _demands_without_card(
    pod: PodRequest, unplaced: Sequence[ContainerRequest]
) -> tuple[Demand, ...]:
    """The demands of containers without a card, those together that reuse an init container's units."""
    cards = card_count(pod)
    needs = [
        ContainerDemand(each, Demand(units, percent, cards if units % cards == 0 else 1))
        for each in unplaced
        for units, percent in (amounts_of(each),)
    ]
    return tuple(filter(None, demands_ahead(needs)))


def with_wish(pod: PodRequest, annotations: Mapping[str, str]) -> PodRequest:
    """The pod with the cards that a scheduler wishes for it.

    A wish is advice: one that was fulfilled ("assigned" is "true"), cannot be read or does not agree
    with the pod spec is ignored.
    """
    if annotations.get(ASSIGNED) == "false":
        cards, _ = believed_holds(pod, annotations)
        return replace(
            pod,
            wish=_wish(cards, (c for c in pod.containers if c.kind is ContainerKind.APP)),
            init_wish=_wish(cards, (c for c in pod.containers if c.kind is not ContainerKind.APP)),
        )
    index, units = annotations.get(V1_INDEX, ""), str(pod.app_amount(Resource.MEM))
    is_wish = annotations.get(V1_ASSIGNED) == "false" and annotations.get(V1_UNITS, units) == units
    if not is_wish or not _is_index(index) or card_count(pod) != 1:
        return pod
    # One card for all of its app containers.
    apps = (c.index for c in pod.containers if c.kind is ContainerKind.APP)
    return replace(pod, wish=tuple((container, (CardIndex(int(index)),)) for container in apps))


def _wish(
    cards: Mapping[str, Mapping[CardIndex, int]], containers: Iterable[ContainerRequest]
) -> WishedCards:
    return tuple((c.index, tuple(sorted(cards[c.name]))) for c in containers if c.name in cards)


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
