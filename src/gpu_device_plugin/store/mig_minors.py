"""The driver's file that says which device node opens which MIG instance."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

FILE = Path("/proc/driver/nvidia-caps/mig-minors")
Minors = Mapping[tuple[int, int, int | None], int]
"""Card's minor, GPU instance, compute instance or None -> minor."""
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
            found[int(card), int(gpu_instance), None if part is None else int(part)] = int(minor)
    return MappingProxyType(found)
