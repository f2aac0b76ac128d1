"""What was sealed is read back as it was, or it is said that it was not."""

import errno
import os
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.errors import StateError, StorageError

SIZES = (0, 1, 3000, 4096, 100_000, 5000, 0, 20)
BLOCK = 4096


def kept_at(path: Path) -> SealedFile:
    """The file as a process that has just started finds it."""
    kept = SealedFile(path, "grants", 1)
    kept.read()
    return kept


def put(path: Path, *payloads: bytes) -> None:
    kept = kept_at(path)
    for payload in payloads:
        kept.write([payload], "boot")


def read(path: Path) -> bytes | None:
    """The payload, of the right boot."""
    sealed = SealedFile(path, "grants", 1).read()
    assert sealed is None or sealed.boot_id == "boot"
    return sealed.payload if sealed else None


def other(path: Path) -> Path:
    return path.with_name(path.name + ".other")


@pytest.mark.parametrize("is_one_process", [True, False])
def test_each_write_takes_the_place_of_the_one_before_however_long_both_are(
    tmp_path: Path, *, is_one_process: bool
) -> None:
    """Both files are used again and again; nothing of what they held comes back."""
    path = tmp_path / "grants"
    kept = kept_at(path)
    for number, size in enumerate(SIZES):
        payload = bytes([number + 1]) * size
        if not is_one_process:
            kept = kept_at(path)
        kept.write([payload], "boot")

        assert read(path) == payload
        assert path.stat().st_size % BLOCK == 0


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    """A disk that does not take it is an error, and no loss, however often it happens."""
    path = tmp_path / "grants"
    put(path, b"older", b"old")

    is_full = True

    def flush(descriptor: int) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(descriptor)

    kept = SealedFile(path, "grants", 1, flush)
    kept.read()
    for _ in range(3):
        with pytest.raises(StorageError, match="No space left"):
            kept.write([b"new"], "boot")
        assert read(path) == b"old"

    is_full = False
    kept.write([b"new"], "boot")
    assert read(path) == b"new"


@pytest.mark.parametrize("writes", [2, 3])
def test_a_power_cut_in_the_middle_of_a_write_leaves_the_write_before_or_this_one(
    tmp_path: Path, writes: int
) -> None:
    """Any of its blocks may have reached the disk and any not; a mixture is seen as one."""
    path = tmp_path / "grants"
    payloads = [bytes([65 + number]) * (3 * BLOCK) for number in range(writes + 1)]
    put(path, *payloads[:-1])
    before = {name: name.read_bytes() for name in (path, other(path))}
    put(path, payloads[-1])
    (written,) = [name for name, content in before.items() if name.read_bytes() != content]
    old, new = before[written], written.read_bytes()
    assert len(old) == len(new) == 4 * BLOCK
    for arrived in product([False, True], repeat=4):
        blocks = [(new if has else old)[n * BLOCK :][:BLOCK] for n, has in enumerate(arrived)]
        written.write_bytes(b"".join(blocks))

        assert read(path) == (payloads[-1] if all(arrived) else payloads[-2])
        is_mixed = len(set(arrived)) > 1
        copy = tmp_path / "copy"
        copy.write_bytes(path.read_bytes())
        other(copy).write_bytes(other(path).read_bytes())
        found = SealedFile(copy, "grants", 1).load(1.0)
        assert found.sealed is not None
        assert bool(found.bad) is is_mixed
        assert (found.aside == tmp_path / "copy.bad-1") is is_mixed
        (tmp_path / "copy.bad-1").unlink(missing_ok=True)


def test_the_first_write_of_all_cut_short_is_no_grant(tmp_path: Path) -> None:
    """Nothing was there before, and nothing was answered."""
    path = tmp_path / "grants"
    put(path, b"x" * 9000)
    path.write_bytes(path.read_bytes()[:BLOCK])

    found = SealedFile(path, "grants", 1).load(1.0)
    assert found.sealed is None
    assert found.bad
    put(path, b"next")
    assert read(path) == b"next"


def test_of_two_that_cannot_be_trusted_both_are_set_aside(tmp_path: Path) -> None:
    """Each under a name of its own, for a person to look at."""
    path = tmp_path / "grants"
    put(path, b"one", b"two")
    for name in (path, other(path)):
        name.write_bytes(b"scribbled\n")

    with pytest.raises(StateError):
        read(path)
    found = SealedFile(path, "grants", 1).load(7.0)
    assert found.sealed is None
    assert {name.name for name in tmp_path.iterdir()} == {"grants.bad-7", "grants.bad-7-1"}


@given(payload=st.binary(max_size=300), cut=st.integers(1, 5000))
def test_a_truncated_file_is_recognised_even_where_only_zeros_are_missing(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, cut: int
) -> None:
    """Whatever took them may have taken more."""
    path = tmp_path_factory.mktemp("cut") / "grants"
    put(path, payload)
    path.write_bytes(path.read_bytes()[:-cut])

    with pytest.raises(StateError):
        read(path)


@given(payload=st.binary(min_size=1, max_size=200), place=st.integers(0, 4095))
def test_a_flipped_bit_is_recognised_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, place: int
) -> None:
    """In the header, in the payload, and in the zeros behind it."""
    path = tmp_path_factory.mktemp("flip") / "grants"
    put(path, payload)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)

    with pytest.raises(StateError):
        read(path)
