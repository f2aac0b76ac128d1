"""A pod's annotations: the slice that it was given, and the cards that a scheduler wishes for it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from gpu_device_plugin.domain.cards.card import Card, CardIndex
from gpu_device_plugin.domain.fractions.claim_names import parse_claim_name
from gpu_device_plugin.domain.fractions.fraction import fraction_of, units_per_card
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.annotations import compact
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.holdings import (
    DEVICES_ANNOTATION,
    MOST_ON_A_POD,
    devices_annotation,
)
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    PodRequest,
    WishedCards,
)

ALLOCATION = "scheduler.framework.gpushare.allocation"
ASSIGNED = "scheduler.framework.gpushare.assigned"
ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
CORE_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
"""As ALLOCATION, for `spec.initContainers`, sidecars among them: no tool but ours reads or writes it."""
V1_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
V1_UNITS = "ALIYUN_COM_GPU_MEM_POD"
V1_CAPACITY = "ALIYUN_COM_GPU_MEM_DEV"
V1_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
V1_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
SECOND_GENERATION = (ALLOCATION, ASSIGNED, ASSUME_TIME, CORE_ALLOCATION, INIT_ALLOCATION)
FIRST_GENERATION = (V1_INDEX, V1_UNITS, V1_CAPACITY, V1_ASSIGNED, V1_ASSUME_TIME)
HELD_KEYS = (*SECOND_GENERATION, *FIRST_GENERATION, DEVICES_ANNOTATION)
"""All keys that say what a pod holds. The chart's policies have the same ones."""


def pod_annotations(
    grants: Sequence[Grant], cards: Sequence[Card], assume_time_ns: int
) -> dict[str, str]:
    """What a pod's app containers were given, in the form of R-540.

    Always in its second generation; for older tools also in the first, if one card was given.

    Grants of init and sidecar containers are told in a key of ours. Grants name cards by UUID,
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
    values = {ALLOCATION: _units(apps, by_uuid), ASSIGNED: "true", ASSUME_TIME: str(assume_time_ns)}
    core = {
        str(index): dict.fromkeys(_on(g, by_uuid), g.core_percent)
        for index, g in apps
        if g.core_percent
    }
    if inits:
        values[INIT_ALLOCATION] = _units(inits, by_uuid)
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
        is_app = grant.kind is ContainerKind.APP
        return (is_app, grant.index, grant) if grant.ids(Resource.MEM) else None
    shape = parse_claim_name(grant.holder.claim_name)
    return (shape.is_app, shape.index, grant) if shape else None


def _units(grants: Iterable[tuple[int, Grant]], by_uuid: Mapping[str, Card]) -> str:
    return compact({str(i): dict.fromkeys(_on(g, by_uuid), units_per_card(g)) for i, g in grants})


def _on(grant: Grant, by_uuid: Mapping[str, Card]) -> Sequence[str]:
    return [str(by_uuid[uuid].index) for uuid in grant.devices]


def _first_generation(apps: Sequence[Grant], card: Card, assume_time_ns: int) -> dict[str, str]:
    fractions = [fraction_of(grant) for grant in apps]
    return {
        V1_INDEX: str(card.index),
        V1_UNITS: str(sum(each.mem_units for each in fractions)),
        V1_CAPACITY: str(card.capacity(fractions[0].unit)),
        V1_ASSIGNED: "true",
        V1_ASSUME_TIME: str(assume_time_ns),
    }


def believed_holds(
    pod: PodRequest, annotations: Mapping[str, str]
) -> tuple[Mapping[str, Mapping[CardIndex, int]], bool]:
    """On which cards annotations say that a pod's containers are, where they agree with its spec.

    A pod's annotations are its tenant's to write. They count for a container where they name as many
    cards as the pod asks for, and on each its units and, if they say it, its percent. The spec
    tells everything else.

    Returns:
        Container name -> card index -> memory units; and whether everything that they say agrees.
    """
    apps, inits, core = (
        _amounts(annotations.get(key, "{}"))
        for key in (ALLOCATION, INIT_ALLOCATION, CORE_ALLOCATION)
    )
    if apps is None or inits is None or core is None:
        return {}, False
    found: dict[str, Mapping[CardIndex, int]] = {}
    for container in pod.containers:
        is_app = container.kind is ContainerKind.APP
        told = (apps if is_app else inits).get(container.index, {})
        percents = core.get(container.index, {}) if is_app else {}
        if told and _agrees(container, card_count(pod), told, percents):
            found[container.name] = told
    return found, len(found) == len(apps) + len(inits)


def _agrees(
    container: ContainerRequest,
    cards: int,
    told: Mapping[CardIndex, int],
    percents: Mapping[CardIndex, int],
) -> bool:
    units, percent = container.amount(Resource.MEM), container.amount(Resource.CORE)
    return (
        len(told) == cards
        and all(each * cards == units > 0 for each in told.values())
        and (not percents or percents == dict.fromkeys(told, percent))
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


def _amounts(text: str) -> Mapping[int, Mapping[CardIndex, int]] | None:
    """Container index -> card index -> amount; None where `text` is none that we write."""
    if len(text) > MOST_ON_A_POD:
        return None
    try:
        plain: object = json.loads(text)
    except (ValueError, RecursionError):  # deep nesting is nonsense too, and anybody can write it
        return None
    if not isinstance(plain, dict):
        return None
    found = {
        int(container): {
            CardIndex(int(card)): amount for card, amount in cards.items() if _is_index(card)
        }
        for container, cards in plain.items()
        if _is_index(container) and isinstance(cards, dict)
    }
    parts = [cards for cards in plain.values() if isinstance(cards, dict)]
    amounts = [amount for cards in found.values() for amount in cards.values()]
    is_whole = len(found) == len(plain) and len(amounts) == sum(map(len, parts))
    return found if is_whole and all(type(amount) is int for amount in amounts) else None
