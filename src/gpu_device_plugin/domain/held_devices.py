"""Whole cards and instances that a pod asks for or holds: names that agents and tools share."""

import json
from collections.abc import Iterable, Mapping

TOPOLOGY_GPU = "aliyun.com/gpu"
"""A whole card in mode topology."""
DEVICES_ANNOTATION = "gpu-device-plugin/devices"
"""On a pod: container index -> UUIDs of its cards and instances."""


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
