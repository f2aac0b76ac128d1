"""What is mounted at a directory, by this process's mounts."""

import os
from pathlib import Path
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mountinfo")


def has_own_file_system(directory: Path) -> bool:
    """Whether a file system is mounted there, and not a directory of a larger one (as into a pod).

    In a pod every volume is a mount; the root of the mount tells which of the two it is.
    """
    return place_of(directory).path == "/"


class MountPlace(NamedTuple):
    """What each mount of a directory shows: the device number, and the path within its file system."""

    device: str = ""
    path: str = ""


def place_of(directory: Path) -> MountPlace:
    """The place of a directory, by this process's mounts."""
    path, nearest, found = os.path.realpath(directory), "", MountPlace()
    for line in _MOUNTS.read_text().split("\n")[:-1]:
        device, root, point = line.split(" ")[2:5]  # 36 35 98:0 /root /point ...
        inside = point if point.endswith("/") else f"{point}/"
        if f"{path}/".startswith(inside) and len(inside) >= len(nearest):
            nearest, below = inside, path[len(inside) :]
            found = MountPlace(device, f"{root.rstrip('/')}/{below}".rstrip("/") or "/")
    return found
