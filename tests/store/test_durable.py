"""What was sealed is read back as it was, or it is said that it was not."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.errors import StateError, StorageError
from gpu_device_plugin.store import durable
from gpu_device_plugin.store.durable import Sealed, read_sealed, seal, write_durably

SIZES = (0, 1, 3000, 4096, 100_000, 5000, 0, 20)


def put(path: Path, payload: bytes) -> None:
    write_durably(path, seal("grants", 1, "boot", [payload]))


def test_each_write_takes_the_place_of_the_one_before_however_long_both_are(tmp_path: Path) -> None:
    """The second file is used again and again; nothing of what it held comes back."""
    path = tmp_path / "grants"
    for number, size in enumerate(SIZES):
        payload = bytes([number + 1]) * size
        put(path, payload)

        assert read_sealed(path, "grants", 1) == Sealed(payload, "boot")
        assert path.stat().st_size % 4096 == 0


def test_a_file_system_that_cannot_swap_names_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems, or a C library without renameat2."""
    monkeypatch.setattr(durable, "_LIBC", object())
    path = tmp_path / "grants"
    for payload in (b"one", b"two"):
        put(path, payload)

        assert read_sealed(path, "grants", 1) == Sealed(payload, "boot")


def test_a_write_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not take it is an error, and no loss."""
    path = tmp_path / "grants"
    put(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(StorageError, match="No space left"):
        put(path, b"new")

    assert read_sealed(path, "grants", 1) == Sealed(b"old", "boot")


@given(payload=st.binary(max_size=300), cut=st.integers(1, 5000))
def test_a_truncated_file_is_recognised_even_where_only_zeros_are_missing(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, cut: int
) -> None:
    """Whatever took them may have taken more."""
    path = tmp_path_factory.mktemp("cut") / "grants"
    put(path, payload)
    path.write_bytes(path.read_bytes()[:-cut])

    with pytest.raises(StateError):
        read_sealed(path, "grants", 1)


@given(payload=st.binary(min_size=1, max_size=200), place=st.integers(0, 4095))
def test_a_flipped_bit_is_recognised_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, place: int
) -> None:
    """In the header, in the payload, and in the zeros behind it."""
    path = tmp_path_factory.mktemp("flip") / "grants"
    put(path, payload)
    content = bytearray(path.read_bytes())
    boot_id_at = content.index(b" boot\n") + 1
    if boot_id_at <= place < boot_id_at + 4:
        return  # another boot id is a reboot: the worst that comes of it are files made again
    content[place] ^= 1
    path.write_bytes(content)

    with pytest.raises(StateError):
        read_sealed(path, "grants", 1)
