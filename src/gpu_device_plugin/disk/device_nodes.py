"""Device nodes of the driver: which one opens which MIG instance, and those of IMEX channels.

By IMEX channels the cards of several nodes share memory.
"""

import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from gpu_device_plugin.domain.grants.container_edits import MigPart

FILE = Path("/proc/driver/nvidia-caps/mig-minors")
Minors = Mapping[MigPart, int]
"""As `Paths.mig_minors`."""
_ACCESS = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")


def read_mig_minors(file: Path = FILE) -> Minors:
    """The minors of instances' nodes; none without the file."""
    try:
        return _parsed(file.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return {}


@lru_cache(maxsize=1)  # thousands of lines, which change with the driver only
def _parsed(text: str) -> Minors:
    found = {}
    for line in text.splitlines():
        match = _ACCESS.fullmatch(line.strip())
        if match:
            card, gpu_instance, part, minor = match.groups()
            place = MigPart(int(card), int(gpu_instance), None if part is None else int(part))
            found[place] = int(minor)
    return MappingProxyType(found)


ROOTS = (Path("/driver-root"), Path("/"))
"""Where the node's `dev` may be seen: the chart's mount of `driverRoot`, or our own."""


def imex_channels(asked: Iterable[int], roots: Iterable[Path] = ROOTS) -> tuple[int, ...]:
    """Which of these channels the node has."""
    return tuple(each for each in asked if any(_is_node(root, each) for root in roots))


def _is_node(root: Path, channel: int) -> bool:
    with suppress(OSError):
        path = root / "dev" / "nvidia-caps-imex-channels" / f"channel{channel}"
        return stat.S_ISCHR(path.stat().st_mode)
    return False
