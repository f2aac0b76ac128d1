"""Processes that have a card's device node open: monitors do, which NVML lists nowhere."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

OURS = ("gpu_device_plugin", "gpu-device-plugin")
"""Words in the command lines of our own programs, which look at cards and compute nothing."""


def openers(minor: int, proc: Path) -> Iterator[tuple[int, str]]:
    """Pid and name of each process with `/dev/nvidia<minor>` open, but for our own.

    Args:
        minor: The card's minor number.
        proc: The mounted procfs. Processes of other pid namespaces are not in it.
    """
    device = f"/dev/nvidia{minor}"
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: path.name):
        with suppress(OSError):  # it ended, or it is not ours to look at
            links = {str(link.readlink()) for link in (process / "fd").iterdir()}
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if device in links and not any(word in command for word in OURS):
                yield int(process.name), command.split("\0")[0] or "?"
