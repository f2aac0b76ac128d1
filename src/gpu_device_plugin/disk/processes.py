"""Whether a process of a pod runs on although the kubelet has forgotten the pod.

That happens to pods that are deleted by force (kubernetes #104824). A process with the isolation library locks a
byte behind the end of its slice's region (src/isolation/books/region_lock.c); the kernel releases it with the
process. A pod's cgroup tells of every process, where the agent sees it: not in a cgroup namespace of its own.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from gpu_device_plugin.disk.region import REGION_BYTES, SLOTS

_FLOCK = struct.Struct("hhqqi4x")
_QOS = ("", "burstable", "besteffort")
_V1 = ("", "memory", "pids")  # v2 has all controllers in one tree


def holds_region(path: str | Path) -> bool:
    """Whether a process holds a lock of this region; of one that is not there none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except BlockingIOError:  # leased, which only a living process can
        return True
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, REGION_BYTES, SLOTS, 0)
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def is_populated(root: Path, uid: str) -> bool:
    """Whether the cgroup of the pod of this uid has a process, as far as `root` shows it."""
    for place in _places(root, uid):
        try:
            events = (place / "cgroup.events").read_text(encoding="ascii")
            found = "populated 1" in events
        except OSError:
            found = any(map(_has_process, place.rglob("cgroup.procs"))) if place.is_dir() else False
        if found:
            return True
    return False


def _has_process(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="ascii").strip())
    except OSError:
        return False


def _places(root: Path, uid: str) -> Iterator[Path]:
    """As systemd names it, and as the kubelet does without systemd."""
    for controller in _V1 if uid.replace("-", "").isalnum() else ():
        for qos in _QOS:
            name = "-".join(filter(None, ("kubepods", qos)))
            slices = ["kubepods.slice", *([f"{name}.slice"] if qos else [])]
            yield root.joinpath(controller, *slices, f"{name}-pod{uid.replace('-', '_')}.slice")
            yield root.joinpath(controller, "kubepods", qos, f"pod{uid}")
