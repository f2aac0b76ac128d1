"""Annotations, by which parts of the system communicate: a node's cards, a pod's slice."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.pods import ContainerKind
from gpu_device_plugin.domain.requests import NodeTerms
from gpu_device_plugin.domain.units import MemoryUnit, Resource

CARDS_ANNOTATION = "gpu-device-plugin/cards"
CARDS_VERSION = 1
UNINSTALL_ANNOTATION = "gpu-device-plugin/uninstall"
"""Marks a node for the agents of one installation. Its value is the uid of their DaemonSet, so
that the mark of an earlier installation has no effect on a later one."""
WITHDRAWN_ANNOTATION = "gpu-device-plugin/withdrawn"
WITHDRAWN_VERSION = 1
ALLOCATION = "scheduler.framework.gpushare.allocation"
ASSIGNED = "scheduler.framework.gpushare.assigned"
ASSUME_TIME = "scheduler.framework.gpushare.assume-time"
CORE_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
V1_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
V1_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"

Wish: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]


def cards_annotation(cards: Sequence[Card], healthy: Mapping[str, bool], terms: NodeTerms) -> str:
    """The node's cards for schedulers, tools and people, as compact JSON.

    Args:
        cards: The node's cards.
        healthy: UUID -> whether the card may serve.
        terms: The node's mode and unit.
    """
    return _compact(
        {
            "version": CARDS_VERSION,
            "mode": terms.mode,
            "unit_mib": terms.unit.mib,
            "cards": [
                {
                    "index": card.index,
                    "uuid": card.uuid,
                    "model": card.model,
                    "memory_mib": card.memory_mib,
                    "units": card.capacity(terms.unit),
                    "healthy": healthy.get(card.uuid, False),
                }
                for card in sorted(cards, key=lambda card: card.index)
            ],
        }
    )


def withdrawn_annotation(mark: str, kept: Sequence[str]) -> str:
    """An agent's answer to the mark, as compact JSON.

    Args:
        mark: The mark that is answered.
        kept: Pods whose files stay, because they are running.
    """
    return _compact({"version": WITHDRAWN_VERSION, "mark": mark, "kept": sorted(kept)})


def kept_pods(text: str, mark: str) -> tuple[str, ...] | None:
    """The pods whose files stay, or None where `text` is no answer to this mark.

    >>> kept_pods(withdrawn_annotation("u1", ["default/p"]), "u1")
    ('default/p',)
    >>> kept_pods(withdrawn_annotation("u1", []), "u2") is None
    True
    """
    plain = _object(text)
    kept = plain.get("kept")
    if plain.get("mark") != mark or not isinstance(kept, list):
        return None
    return tuple(str(pod) for pod in kept)


def counted_unit_mib(text: str) -> int | None:
    """The memory unit of a node, by its annotation of cards; None if that does not say.

    >>> counted_unit_mib('{"version":1,"unit_mib":1024}')
    1024
    """
    found = _object(text).get("unit_mib")
    return found if isinstance(found, int) else None


def served_mode(text: str) -> str:
    """The mode of a node, by its annotation of cards; empty if that does not say."""
    return str(_object(text).get("mode", ""))


def _object(text: str) -> Mapping[str, object]:
    try:
        plain: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def pod_annotations(
    grants: Sequence[Grant], cards: Sequence[Card], assume_time_ns: int
) -> dict[str, str]:
    """What a pod's app containers were given, in the form of R-540.

    Always in its second generation; for older tools also in the first, if one card was given.

    Args:
        grants: The pod's grants; those of init and sidecar containers are left out.
        cards: The node's cards; grants name them by UUID, annotations by NVML index.
        assume_time_ns: Wall clock.

    Returns:
        Annotations to set; empty while no app container has units, or while a card is away.
    """
    apps = sorted(
        (g for g in grants if g.kind is ContainerKind.APP and g.ids(Resource.MEM)),
        key=lambda g: g.index,
    )
    by_uuid = {card.uuid: card for card in cards}
    used = {uuid for grant in apps for uuid in grant.cards}
    if not apps or not used <= by_uuid.keys():
        return {}
    values = {
        ALLOCATION: _compact(
            {str(g.index): {str(by_uuid[u].index): g.units_per_card for u in g.cards} for g in apps}
        ),
        ASSIGNED: "true",
        ASSUME_TIME: str(assume_time_ns),
    }
    core = {
        str(g.index): {str(by_uuid[u].index): g.core_percent for u in g.cards}
        for g in apps
        if g.core_percent
    }
    if core:
        values[CORE_ALLOCATION] = _compact(core)
    if len(used) == 1:
        values |= _first_generation(apps, by_uuid[used.pop()], assume_time_ns)
    return values


def _first_generation(apps: Sequence[Grant], card: Card, assume_time_ns: int) -> dict[str, str]:
    unit = MemoryUnit.of_mib(apps[0].unit_mib)
    return {
        V1_INDEX: str(card.index),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(grant.mem_units for grant in apps)),
        "ALIYUN_COM_GPU_MEM_DEV": str(card.capacity(unit)),
        V1_ASSIGNED: "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(assume_time_ns),
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
    if annotations.get(V1_ASSIGNED) == "false" and index.isascii() and index.isdecimal():
        return tuple((container, (int(index),)) for container in range(app_containers))
    return ()


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


def _compact(plain: object) -> str:
    return json.dumps(plain, separators=(",", ":"))
