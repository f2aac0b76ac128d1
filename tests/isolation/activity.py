"""A slice's activity page as its neighbours read it: the frozen layout of src/isolation/books/activity.h."""

import struct
from pathlib import Path

BYTES = 4096
MAGIC = 0x3254434153555047  # "GPUSACT2", little endian
OPEN, SHORTS, LONGS = 64, 1000, 504
ONE = 4096  # one process for a whole bucket
_OPEN_AT, _SHORTS_AT = 64, 64 + 16 * OPEN
FOR_EVER = 1 << 62


def page(processes: int, version: int, quiet_until_ns: int = 0) -> bytes:
    """A page that says of so many processes that they are always on the card.

    Args:
        processes: How many, at most 64.
        version: 0 as a library wrote it that knew of no versions.
        quiet_until_ns: Until when it asks the others to begin nothing.
    """
    head = struct.pack("<QQQI20xQ8x", MAGIC, 0, 0, version, quiet_until_ns)
    there = struct.pack("<QQ", 1, FOR_EVER) * processes
    return (head + there).ljust(BYTES, b"\0")


def read(path: Path) -> tuple[int, int, float]:
    """Magic, version, and the card time in milliseconds that the long buckets tell of."""
    content = path.read_bytes()
    magic, _, _, version = struct.unpack_from("<QQQI", content)
    buckets = struct.unpack_from(f"<{LONGS}H", content, _SHORTS_AT + 2 * SHORTS)
    return magic, version, sum(buckets) / ONE * 4.096
