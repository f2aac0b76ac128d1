"""The promise: a region is read as src/isolation/books/region.h lays it out, and never believed further.

The container writes it, so it may hold anything; whatever it holds, reading it ends with figures
or with nothing.
"""

import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.told import ROOT, compiler

from gpu_device_plugin.disk import region, slice_files
from gpu_device_plugin.disk.region import CardUsage, read_region, tell_revision

SIZE = 1 << 20
UUID = "GPU-0a1b2c3d-0000-0000-0000-000000000000"
LAYOUT_PROGRAM = """
#include "books/region.h"
#include <stdio.h>
#define SAY(name, number) printf(#name " %llu\\n", (unsigned long long)(number))
int main(void)
{
	SAY(MAGIC, REGION_MAGIC);
	SAY(LAYOUT, REGION_LAYOUT);
	SAY(READY, REGION_READY);
	SAY(SLOTS, REGION_SLOTS);
	SAY(CARDS, LIMITS_CARDS);
	SAY(CARDS_OFFSET, offsetof(struct region, cards));
	SAY(CARD_BYTES, sizeof(struct region_card));
	SAY(UUID_BYTES, sizeof(((struct region_card *)0)->uuid));
	SAY(REFUSED_OFFSET, offsetof(struct region_card, refused_total));
	SAY(BUSY_OFFSET, offsetof(struct region_card, busy_ns));
	SAY(USED_OFFSET, offsetof(struct region_card, used_bytes));
	SAY(PAGES_OFFSET, offsetof(struct region, activity));
	SAY(PAGE_BYTES, REGION_ACTIVITY_BYTES);
	SAY(TURNS_OFFSET, offsetof(struct region, turns));
	SAY(TURNS_BYTES, sizeof(struct region_turns));
	SAY(OVERHEAD_OFFSET, offsetof(struct region_card, overhead_bytes));
	SAY(REGION_BYTES, REGION_BYTES);
	SAY(REVISION_OFFSET, offsetof(struct region, limits_revision));
	SAY(ACTIVITY_BYTES, REGION_ACTIVITY_BYTES);
	SAY(header.layout, offsetof(struct region, layout));
	SAY(header.state, offsetof(struct region, state));
	SAY(header.slot_count, offsetof(struct region, slot_count));
	SAY(header.card_count, offsetof(struct region, card_count));
	SAY(header.slots_seen, offsetof(struct region, slots_seen));
	return 0;
}
"""
HEADER = {"layout": 8, "state": 12, "slot_count": 20, "card_count": 24, "slots_seen": 28}


def test_the_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    """Compiled from src/isolation: anyone who changes the layout there is told here."""
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT_PROGRAM)
    words = ["-std=c11", "-D_GNU_SOURCE", f"-I{ROOT / 'src' / 'isolation'}", str(source)]
    subprocess.run([*compiler(), *words, "-o", str(tmp_path / "layout")], check=True)
    told = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True)

    numbers = {name: int(number) for name, number in map(str.split, told.stdout.splitlines())}

    ours = {name: getattr(region, name) for name in numbers if hasattr(region, name)}
    ours |= {name: getattr(slice_files, name) for name in ("REGION_BYTES", "ACTIVITY_BYTES")}
    ours |= {f"header.{name}": offset for name, offset in HEADER.items()}
    assert ours == numbers


def laid_out(slots_seen: int = 2, **header: int) -> bytearray:
    """A region with one card: two slots in use, and a third that was never used."""
    content = bytearray(SIZE)
    struct.pack_into("<Q", content, 0, region.MAGIC)
    values = {
        "layout": region.LAYOUT,
        "state": region.READY,
        "slot_count": region.SLOTS,
        "card_count": 1,
        "slots_seen": slots_seen,
        **header,
    }
    for name, value in values.items():
        struct.pack_into("<I", content, HEADER[name], value)
    card = region.CARDS_OFFSET
    content[card : card + len(UUID)] = UUID.encode()
    struct.pack_into("<Q", content, card + region.REFUSED_OFFSET, 7)
    struct.pack_into("<Q", content, card + region.BUSY_OFFSET, 5_000_000)
    struct.pack_into("<3Q", content, card + region.USED_OFFSET, 100, 20, 9999)
    struct.pack_into("<3Q", content, card + region.OVERHEAD_OFFSET, 3, 4, 9999)
    return content


def read(tmp_path: Path, content: bytes | bytearray) -> Mapping[str, CardUsage]:
    path = tmp_path / "region"
    path.write_bytes(content)
    return read_region(path)


def test_use_is_what_all_slots_hold(tmp_path: Path) -> None:
    """Asked for and overhead; slots that were never used are left out."""
    assert read(tmp_path, laid_out()) == {UUID: CardUsage(127, 5_000_000, 7)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(SIZE),
        bytes(laid_out()[:20]),
        bytes(laid_out()[: region.CARDS_OFFSET + 100]),
        bytes(laid_out(layout=2)),
        bytes(laid_out(state=1)),
        bytes(laid_out(slot_count=128)),
        bytes(laid_out(card_count=33)),
        b"\xff" * SIZE,
    ],
    ids=[
        "empty",
        "not laid out",
        "cut in the header",
        "cut in a card",
        "another layout",
        "half laid out",
        "other slots",
        "too many cards",
        "scribbled over",
    ],
)
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    """No error: the agent goes on."""
    assert read(tmp_path, content) == {}


@pytest.mark.parametrize(
    ("content", "is_told", "is_written"),
    [
        (laid_out(), True, True),
        (bytes(SIZE), True, False),
        (laid_out(state=1), False, False),
        (laid_out(layout=2), True, False),
        (b"", False, False),
        (b"\xff" * SIZE, False, False),
    ],
    ids=["ready", "virgin", "half laid out", "another layout", "cut short", "scribbled over"],
)
def test_a_revision_is_told_where_processes_are(
    tmp_path: Path, content: bytes, *, is_told: bool, is_written: bool
) -> None:
    """One word, and nothing else of the region; where nobody has laid it out, everybody will read the file."""
    path = tmp_path / "region"
    path.write_bytes(content)
    assert tell_revision(path, 7) is is_told

    after = bytearray(content)
    if is_written:
        after[52:56] = struct.pack("<I", 7)
    assert path.read_bytes() == bytes(after)


def test_what_is_no_file_is_told_nothing(tmp_path: Path) -> None:
    """A link could lead anywhere."""
    (tmp_path / "other").write_bytes(laid_out())
    (tmp_path / "region").symlink_to(tmp_path / "other")

    assert not tell_revision(tmp_path / "region", 7)
    assert (tmp_path / "other").read_bytes() == bytes(laid_out())
    assert tell_revision(tmp_path / "absent", 7)


def test_a_scribbled_count_of_slots_is_bounded(tmp_path: Path) -> None:
    """All columns are read, and no byte beyond them."""
    assert read(tmp_path, laid_out(slots_seen=2**32 - 1))[UUID].memory_bytes == 127 + 2 * 9999


def test_a_uuid_that_is_none_says_nothing(tmp_path: Path) -> None:
    """Bytes that are no text."""
    content = laid_out()
    content[region.CARDS_OFFSET : region.CARDS_OFFSET + 4] = b"\xff\xfe\xfd\xfc"

    assert read(tmp_path, content) == {}


def test_what_is_no_file_says_nothing(tmp_path: Path) -> None:
    """Not there; a directory, which a runtime makes of a missing mount source; a link; a pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "real").write_bytes(laid_out())
    (tmp_path / "link").symlink_to(tmp_path / "real")

    for name in ("missing", ".", "pipe", "link"):
        assert read_region(tmp_path / name) == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, region.CARDS_OFFSET + 2 * region.CARD_BYTES), st.binary())),
    st.integers(0, SIZE),
)
def test_whatever_a_container_writes_reading_ends(
    tmp_path: Path, scribbles: list[tuple[int, bytes]], size: int
) -> None:
    """Figures are whole numbers that fit what 512 words can hold; never an exception."""
    content = laid_out()
    for offset, text in scribbles:
        content[offset : offset + len(text)] = text

    for uuid, usage in read(tmp_path, content[:size]).items():
        assert len(uuid) <= region.UUID_BYTES
        assert 0 <= usage.memory_bytes < 512 * 2**64
