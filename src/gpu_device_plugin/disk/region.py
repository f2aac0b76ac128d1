"""The use of a slice, read from its region; the layout is that of src/isolation/books/region.h.

The container writes the region, so its content is not trusted: a region that is not laid out, cut
short or damaged says nothing. It is read with pread and never mapped, so that a container which
truncates its file cannot crash the agent.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x4543494C53555047  # "GPUSLICE"
LAYOUT = 1
READY = 2
SLOTS = 256
CARDS = 32
CARDS_OFFSET = 256 + 64 * SLOTS
CARD_BYTES = 240 + 24 * SLOTS
UUID_BYTES = 48
REFUSED_OFFSET = 64  # in a card
BUSY_OFFSET = 104
USED_OFFSET = 240
OVERHEAD_OFFSET = USED_OFFSET + 8 * SLOTS
PAGES_OFFSET = CARDS_OFFSET + CARD_BYTES * CARDS  # activity, where a card's own file is missing
PAGE_BYTES = 4096
TURNS_OFFSET = PAGES_OFFSET + PAGE_BYTES * CARDS  # how the processes take turns
TURNS_BYTES = 16 * SLOTS  # a card
REGION_BYTES = 1 << 20
REVISION_OFFSET = 52  # that of the limits file
_HEADER = struct.Struct("<QIIIIII")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class CardUsage:
    """What the processes of one slice use of one card."""

    memory_bytes: int  # asked for, and taken without a call (contexts, code)
    busy_ns: int  # card time so far; counted only under a compute cap
    refused_total: int  # allocations refused so far because the slice was full


def used_parts(cards: int) -> tuple[tuple[int, int], ...]:
    """What a slice of so many cards, 1 at least, touches of its region: offset and length, in bytes."""
    cards = max(1, min(cards, CARDS))
    return (
        (0, CARDS_OFFSET + CARD_BYTES * cards),
        (PAGES_OFFSET, PAGE_BYTES * cards),
        (TURNS_OFFSET, TURNS_BYTES * cards),
    )


def read_region(path: str | Path) -> Mapping[str, CardUsage]:
    """Use by card UUID; empty if the region says nothing (yet)."""
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError:
        return {}
    try:
        return _read(descriptor)
    except (OSError, struct.error, UnicodeDecodeError):
        return {}
    finally:
        os.close(descriptor)


def tell_revision(path: str | Path, revision: int) -> bool:
    """Tell the processes of a slice of its limits file; False where there may be some who do not know.

    Those that come later read the file, so a region that nobody has laid out needs no word.
    """
    try:
        descriptor = os.open(path, _OPEN_FLAGS | os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        magic, layout, state, *_ = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
        if (magic, layout, state) == (MAGIC, LAYOUT, READY):
            os.pwrite(descriptor, _U32.pack(revision), REVISION_OFFSET)
    except (OSError, struct.error):
        return False
    finally:
        os.close(descriptor)
    return state in {0, READY}


def _read(descriptor: int) -> Mapping[str, CardUsage]:
    header = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
    magic, layout, state, _, slots, cards, slots_seen = header
    if (magic, layout, state, slots) != (MAGIC, LAYOUT, READY, SLOTS) or cards > CARDS:
        return {}
    used = min(slots_seen, SLOTS)
    return dict(_card(descriptor, CARDS_OFFSET + i * CARD_BYTES, used) for i in range(cards))


def _card(descriptor: int, offset: int, slots: int) -> tuple[str, CardUsage]:
    card = os.pread(descriptor, OVERHEAD_OFFSET + 8 * slots, offset)
    column = struct.Struct(f"<{slots}Q")
    return card[:UUID_BYTES].partition(b"\0")[0].decode("ascii"), CardUsage(
        memory_bytes=sum(column.unpack_from(card, USED_OFFSET))
        + sum(column.unpack_from(card, OVERHEAD_OFFSET)),
        busy_ns=_U64.unpack_from(card, BUSY_OFFSET)[0],
        refused_total=_U64.unpack_from(card, REFUSED_OFFSET)[0],
    )
