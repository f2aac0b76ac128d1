"""The promise: a container can spoil its own slice's files, and no more of the node than that."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin.disk.region import REGION_BYTES
from gpu_device_plugin.disk.slice_files import ACTIVITY_BYTES, SliceFiles, SliceSpec

CARDS = ("GPU-a", "GPU-b")
SPEC = SliceSpec("5", "limits", CARDS)


@pytest.fixture
def files(tmp_path: Path) -> SliceFiles:
    """The files of one slice of two cards."""
    found = SliceFiles(tmp_path, tmp_path / "cdi")
    assert found.make(SPEC)
    return found


def cut_back(files: SliceFiles) -> dict[tuple[str, str], int]:
    """What is cut back now: the size found, by slice and name."""
    found: dict[tuple[str, str], int] = {}
    files.sizes.on_grown = lambda slice_id, name, size: found.update({(slice_id, name): size})
    assert files.sizes.cut_back() == bool(found)
    return found


def writable(run: Path) -> dict[str, Path]:
    """What a container may write, by the name in reports."""
    cards = {f"activity file of card {uuid}": run / "cards" / uuid / "5" for uuid in CARDS}
    return {"region file": run / "slices" / "5" / "region", **cards}


def test_whatever_a_container_may_write_is_cut_back_to_its_size(
    files: SliceFiles, tmp_path: Path
) -> None:
    """And is named with the size that was found; a second time there is nothing to say."""
    for number, path in enumerate(writable(tmp_path).values()):
        os.truncate(path, (8 << 20) + number)

    assert cut_back(files) == {
        ("5", name): (8 << 20) + number for number, name in enumerate(writable(tmp_path))
    }
    sizes = [path.stat().st_size for path in writable(tmp_path).values()]
    assert sizes == [REGION_BYTES, ACTIVITY_BYTES, ACTIVITY_BYTES]
    assert cut_back(files) == {}


@pytest.mark.usefixtures("files")
def test_every_file_that_a_container_may_write_is_known(tmp_path: Path) -> None:
    """Those of mode 0666, anyone who makes one more."""
    modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}

    assert {path for path, mode in modes.items() if mode & 0o002} == {*writable(tmp_path).values()}


@pytest.mark.parametrize("name", ["region file", "activity file of card GPU-a"])
def test_a_file_that_a_container_has_cut_is_the_same_file_again(
    files: SliceFiles, tmp_path: Path, name: str
) -> None:
    """In its place a new one would leave the old one to the container, growing without a name."""
    path = writable(tmp_path)[name]
    before, size = path.stat().st_ino, path.stat().st_size
    os.truncate(path, 7)

    assert files.make(SPEC)
    assert (path.stat().st_ino, path.stat().st_size) == (before, size)
    assert not files.make(SPEC)


def test_the_cdi_file_of_a_slice_comes_and_goes_with_it(tmp_path: Path, files: SliceFiles) -> None:
    """It is made again when it is lost; a slice without one has no such directory."""
    assert not (tmp_path / "cdi").exists()
    spec, path = replace(SPEC, cdi="{}"), tmp_path / "cdi" / "gpu-slice-5.json"
    assert files.make(spec)
    path.unlink()
    assert files.make(spec)
    assert not files.make(spec)
    assert path.read_text() == "{}"
    files.remove("5")
    assert not path.exists()


def test_older_limits_never_take_the_place_of_newer_ones(tmp_path: Path, files: SliceFiles) -> None:
    """Somebody may have waited with the grant of before: a process would keep what it reads."""
    path = tmp_path / "slices" / "5" / "config" / "limits"
    newer = replace(SPEC, limits="revision=2\n", revision=2)
    assert files.make(newer)
    assert not files.make(SPEC)
    assert not files.make(replace(SPEC, limits="revision=1\n", revision=1))
    assert path.read_text() == "revision=2\n"
    assert files.make(replace(SPEC, limits="revision=2\nother\n", revision=2))
