"""The device list that a resource offers now, in bytes, and the streams that send every change of it.

A protobuf message is the concatenation of its fields, so the list of a node is the
concatenation of its cards' lists. Each card is encoded once and cached; a health change
replaces the bytes of one card instead of building thousands of objects.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby

from gpu_device_plugin.domain.node.state import DeviceGroup

HEALTHY = b"Healthy"
UNHEALTHY = b"Unhealthy"

_LIST_DEVICES_TAG = b"\x0a"  # ListAndWatchResponse.devices = 1, length-delimited
_DEVICE_ID_TAG = b"\x0a"  # Device.ID = 1
_DEVICE_HEALTH_TAG = b"\x12"  # Device.health = 2
_DEVICE_TOPOLOGY_TAG = b"\x1a"  # Device.topology = 3
_TOPOLOGY_NODE_TAG = b"\x0a"  # TopologyInfo.nodes = 1
_NUMA_ID_TAG = b"\x08"  # NUMANode.ID = 1, a varint


def encode_list(groups: Iterable[DeviceGroup]) -> bytes:
    """The ListAndWatchResponse that offers these units, in the given order."""
    return b"".join(_encode_group(group) for group in groups)


# 36 cards x 3 resources x 2 healths, and a few sizes of cards that were replaced.
@lru_cache(maxsize=256)
def _encode_group(group: DeviceGroup) -> bytes:
    health = HEALTHY if group.is_healthy else UNHEALTHY
    tail = _DEVICE_HEALTH_TAG + bytes([len(health)]) + health + _topology(group.numa_node)
    chunks = []
    # Devices differ only in their ids, and their framing only in the length of the id.
    for length, texts in groupby(group.ids, len):
        head = _DEVICE_ID_TAG + _varint(length)
        head = _LIST_DEVICES_TAG + _varint(len(head) + length + len(tail)) + head
        ids = [text.encode() for text in texts]
        chunks.append(head + (tail + head).join(ids) + tail)
    return b"".join(chunks)


def _topology(numa_node: int | None) -> bytes:
    if numa_node is None:
        return b""
    # Node 0 is the default of its field, which protobuf leaves out.
    node = _NUMA_ID_TAG + _varint(numa_node) if numa_node else b""
    info = _TOPOLOGY_NODE_TAG + _varint(len(node)) + node
    return _DEVICE_TOPOLOGY_TAG + _varint(len(info)) + info


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class DeviceList:
    """One resource's list; every open ListAndWatch stream waits on it."""

    def __init__(self) -> None:
        self.message = b""
        self.is_offered = False  # False until the first `publish`, and after `withdraw`
        self.changed = asyncio.Event()
        """Set by the next change, when another one takes its place; read it with `message`."""

    def publish(self, groups: Sequence[DeviceGroup]) -> bool:
        """Offer `groups` and wake the streams; False if nothing differs."""
        message = encode_list(groups)
        if self.is_offered and message == self.message:
            return False
        self.message = message
        self.is_offered = True
        self.wake()
        return True

    def withdraw(self) -> None:
        self.is_offered = False
        self.wake()

    def wake(self) -> None:
        """Make every stream check this list again, and whether it should still be open."""
        self.changed.set()
        self.changed = asyncio.Event()
