"""The driver's file that says which device node opens which MIG instance."""

import re
from pathlib import Path

FILE = Path("/proc/driver/nvidia-caps/mig-minors")
_ACCESS = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")


def read_mig_minors(file: Path = FILE) -> dict[tuple[int, int, int | None], int]:
    """Card's minor, GPU instance, compute instance or None -> minor; none without the file."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    for line in text.splitlines():
        match = _ACCESS.fullmatch(line.strip())
        if match:
            card, gpu_instance, part, minor = match.groups()
            found[int(card), int(gpu_instance), None if part is None else int(part)] = int(minor)
    return found
