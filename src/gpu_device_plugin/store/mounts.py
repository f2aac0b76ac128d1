"""Whether a directory has a file system of its own, which bounds what can be written there."""

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def has_own_file_system(directory: Path) -> bool:
    """Whether a file system is mounted there, and not a directory of a larger one (as into a pod).

    In a pod every volume is a mount; the root of the mount tells which of the two it is.
    """
    place, found = os.path.realpath(directory), False
    for line in _MOUNTS.read_text().splitlines():
        root, point = line.split()[3:5]  # 36 35 98:0 /root /point ...
        if point == place:
            found = root == "/"
    return found
