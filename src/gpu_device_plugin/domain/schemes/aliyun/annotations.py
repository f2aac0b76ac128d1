"""A pod's annotations: the slice that it was given, and the cards that a scheduler wishes for it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

from gpu_device_plugin.domain.annotations import compact
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.held_devices import DEVICES_ANNOTATION, devices_annotation
from gpu_device_plugin.domain.pods import ContainerKind
from gpu_device_plugin.domain.schemes.aliyun.claim_names import parse_claim_name
from gpu_device_plugin.domain.schemes.aliyun.fraction import fraction_of, units_per_card
from gpu_device_plugin.domain.schemes.aliyun.units import Resource

ALLOCATION = "scheduler.framework.gpushare.allocation"
ASSIGNED = "scheduler.framework.gpushare.assigned"
ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
CORE_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
"""As ALLOCATION, for `spec.initContainers`, sidecars among them: no tool but ours reads or writes it."""
V1_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
V1_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
V1_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
V1_POD, V1_DEVICE = "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_DEV"
FIRST_GENERATION = (V1_INDEX, V1_ASSIGNED, V1_ASSUME_TIME, V1_POD, V1_DEVICE)

Wish: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]


def pod_annotations(
    grants: Sequence[Grant], cards: Sequence[Card], assume_time_ns: int
) -> dict[str, str]:
    """What a pod's app containers were given, in the form of R-540.

    Always in its second generation; for older tools also in the first, if one card was given.

    Args:
        grants: The pod's grants; those of init and sidecar containers are told in a key of ours.
        cards: The node's cards; grants name them by UUID, annotations by NVML index.
        assume_time_ns: Wall clock.

    Returns:
        Annotations to set; empty while no app container has units, or while a card is away.
    """
    placed = sorted(filter(None, map(_placed, grants)), key=itemgetter(1))
    apps = [(index, grant) for is_app, index, grant in placed if is_app]
    by_uuid = {card.uuid: card for card in cards}
    used = {uuid for _, grant in apps for uuid in grant.devices}
    if not apps or not used <= by_uuid.keys():
        return {}
    inits = [(i, g) for is_app, i, g in placed if not is_app and by_uuid.keys() >= set(g.devices)]
    values = {
        ALLOCATION: _units(apps, by_uuid),
        ASSIGNED: "true",
        ASSUME_TIME: str(assume_time_ns),
    }
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
    whole = {g.index: g.devices for g in grants if g.holder.claim and _placed(g) is None}
    return {DEVICES_ANNOTATION: devices_annotation(whole)} if whole else {}


def _placed(grant: Grant) -> tuple[bool, int, Grant] | None:
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
        V1_POD: str(sum(each.mem_units for each in fractions)),
        V1_DEVICE: str(card.capacity(fractions[0].unit)),
        V1_ASSIGNED: "true",
        V1_ASSUME_TIME: str(assume_time_ns),
    }


def wish_of(annotations: Mapping[str, str], app_containers: int) -> Wish:
    """The cards that a scheduler wishes for a pod: container index -> NVML indexes.

    A wish is advice: one that was fulfilled ("assigned" is "true") or cannot be read is ignored.

    Args:
        annotations: The pod's annotations.
        app_containers: How many app containers it has; v1 says one card for all of them.
    """
    if annotations.get(ASSIGNED) == "false":
        return _second_generation(annotations.get(ALLOCATION, ""))
    index = annotations.get(V1_INDEX, "")
    if annotations.get(V1_ASSIGNED) == "false" and _is_index(index):
        return tuple((container, (int(index),)) for container in range(app_containers))
    return ()


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def init_wish_of(annotations: Mapping[str, str]) -> Wish:
    """The cards that our controller wishes for init containers and sidecars, as `wish_of`."""
    if annotations.get(ASSIGNED) != "false":
        return ()
    return _second_generation(annotations.get(INIT_ALLOCATION, ""))


def _second_generation(text: str) -> Wish:
    try:
        plain: object = json.loads(text)
        if not isinstance(plain, dict):
            return ()
        return tuple(
            (int(container), tuple(sorted(int(card) for card in cards)))
            for container, cards in plain.items()
            if isinstance(cards, dict)
        )
    except (ValueError, RecursionError):  # deep nesting is nonsense too, and anybody can write it
        return ()
