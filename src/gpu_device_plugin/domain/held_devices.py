"""Whole cards and instances that a pod asks for or holds: names that agents and tools share."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TOPOLOGY_GPU = "aliyun.com/gpu"
"""A whole card in mode topology."""
DEVICES_ANNOTATION = "gpu-device-plugin/devices"
"""On a pod: container index -> UUIDs of its cards and instances."""
_MOST_CHARACTERS = 16 * 1024
"""300 UUIDs, more than a node has. Nothing longer is read: a pod's tenant may write it."""


def devices_annotation(by_index: Mapping[int, Iterable[str]]) -> str:
    """The annotation's value, as compact JSON."""
    plain = {str(index): sorted(uuids) for index, uuids in by_index.items()}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def held_devices(text: str) -> Mapping[int, tuple[str, ...]]:
    """Container index -> UUIDs; empty where `text` is none that an agent writes.

    >>> held_devices(devices_annotation({0: ["GPU-b", "GPU-a"]}))
    {0: ('GPU-a', 'GPU-b')}
    >>> held_devices("[1]")
    {}
    """
    if len(text) > _MOST_CHARACTERS:
        return {}
    try:
        plain: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(plain, dict):
        return {}
    return {
        int(index): tuple(str(uuid) for uuid in uuids)
        for index, uuids in plain.items()
        if index.isascii() and index.isdecimal() and len(index) <= 3 and isinstance(uuids, list)
    }


@dataclass(frozen=True, slots=True)
class Told:
    """What the node's annotation of cards (version 2) says of a device that is not given in parts.

    Attributes:
        card: NVML's index of its card.
        profile: Of a MIG instance; empty for a card.
        replicas: How many of it are offered.
    """

    card: int
    profile: str = ""
    replicas: int = 1


def told_devices(cards: object) -> Mapping[str, Told]:
    """UUID -> what is told; cards with one replica and no instances are left out.

    Args:
        cards: The annotation's list of cards, as JSON has it.

    >>> told_devices([{"index": 0, "uuid": "a", "replicas": 4}])
    {'a': Told(card=0, profile='', replicas=4)}
    """
    found: dict[str, Told] = {}
    for card in _objects(cards):
        index, replicas = _count(card.get("index")), _count(card.get("replicas"))
        if replicas > 1:
            found[str(card.get("uuid"))] = Told(index, replicas=replicas)
        for each in _objects(card.get("instances")):
            profile = str(each.get("profile", ""))
            found[str(each.get("uuid"))] = Told(
                index, profile, max(1, _count(each.get("replicas")))
            )
    return found


def _objects(plain: object) -> list[dict[str, object]]:
    return [each for each in plain if isinstance(each, dict)] if isinstance(plain, list) else []


def _count(plain: object) -> int:
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else 0
