"""A process that outlives its pod is known by the lock of its slice's region, and by the pod's cgroup."""

import fcntl
import os
import struct
from pathlib import Path

import pytest

from gpu_device_plugin.disk.processes import holds_region, is_populated
from gpu_device_plugin.disk.region import REGION_BYTES

UID = "0a1b-2c3d"
POD = "pod0a1b_2c3d.slice"


def test_a_region_is_held_as_long_as_a_process_has_its_slot(tmp_path: Path) -> None:
    """The kernel ends the lock with the process; a region that is not there is nobody's."""
    path = tmp_path / "region"
    assert not holds_region(path)
    path.write_bytes(bytes(REGION_BYTES))
    assert not holds_region(path)
    with path.open("rb+") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, REGION_BYTES + 7, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        assert holds_region(path)
    assert not holds_region(path)


@pytest.mark.parametrize(
    "place",
    [
        f"kubepods.slice/kubepods-{POD}",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{POD}",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods/pod{UID}",
    ],
)
def test_a_pods_cgroup_tells_whether_it_has_a_process(tmp_path: Path, place: str) -> None:
    """In cgroup v2 it says so itself, in v1 the lists of its containers do."""
    assert not is_populated(tmp_path, UID)
    events = tmp_path / place / "cgroup.events"
    events.parent.mkdir(parents=True)
    for text, is_there in (("populated 0\n", False), ("populated 1\n", True)):
        events.write_text(text)
        assert is_populated(tmp_path, UID) is is_there
    v1 = tmp_path / "v1"
    processes = v1 / "memory" / place / "container" / "cgroup.procs"
    processes.parent.mkdir(parents=True)
    for text, is_there in (("", False), ("4711\n", True)):
        processes.write_text(text)
        assert is_populated(v1, UID) is is_there


def test_a_uid_that_is_no_name_of_a_directory_is_nowhere(tmp_path: Path) -> None:
    """A static pod's is anybody's text."""
    (tmp_path / "kubepods").mkdir()
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    assert not is_populated(tmp_path, "/../..")
    assert not is_populated(tmp_path, "")
