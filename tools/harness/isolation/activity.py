"""A slice's activity page as its neighbours read it: the frozen layout of src/isolation/books/activity.h."""

import struct
from pathlib import Path

BYTES = 4096
MAGIC = 0x3254434153555047  # "GPUSACT2", little endian
VERSION = 2  # the first that knows leases
FOR_EVER = 1 << 62
MOST = (1 << 63) - 1


def page(processes: int, version: int) -> bytes:
    """A page of a slice without leases that says of so many processes that they are always at work.

    Args:
        processes: How many, at most 64.
        version: 0 as a library wrote it that knew of no versions, 1 as one that knew no leases.
    """
    head = struct.pack("<QQQI36x", MAGIC, 0, 0, version)
    there = struct.pack("<QQ", 1, FOR_EVER) * processes
    return (head + there).ljust(BYTES, b"\0")


def claim(*, want_until_ns: int = 0, hold_until_ns: int = 0, out_until_ns: int = 0) -> bytes:
    """A page of a slice that takes leases, with times of CLOCK_MONOTONIC; its key is the largest."""
    words = (MAGIC, 0, 0, VERSION, 1, want_until_ns, hold_until_ns, 0, MOST, 1, out_until_ns)
    return struct.pack("<QQQIIQQQqQQ", *words).ljust(BYTES, b"\0")


def read(path: Path) -> tuple[int, int, int]:
    """Magic, version, and whether the slice takes leases."""
    magic, _, _, version, takes = struct.unpack_from("<QQQII", path.read_bytes())
    return magic, version, takes
