"""Whether the agent's own container has lost its device nodes, which only a new container gives back."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOST_DEVICES = "devices-denied"
"""File in the run directory: an agent's container has lost its devices, and no later one has reported the end."""
_DEVICES_DENIED = (
    "the agent's container may no longer open {}: its device rules were set again without the devices that NVIDIA's hook "
    "had added, as systemctl daemon-reload does. The node still serves, but the agent cannot open NVML again. Containers "
    "that had cards from the hook at that time have probably lost them too; those started since have not"
)


@dataclass(eq=False)
class LostDevices:
    """What the agent's container has lost, which only a new container gives back.

    `mark` is a file that stays until the next agent, so that it reports the end.
    """

    mark: Path
    node: Path = Path("/dev/nvidiactl")

    def __post_init__(self) -> None:
        self._could_open = self.was_lost = self.mark.exists()

    def find(self) -> str | None:
        """That the device cgroup denies what it allowed: access(2) asks it without calling the driver, which may hang."""
        may_open = os.access(self.node, os.R_OK | os.W_OK)
        self._could_open |= may_open
        is_denied = self._could_open and not may_open and self.node.exists()
        with suppress(OSError):  # where the run directory is full, only the end is not reported
            if is_denied:
                self.mark.touch()
            else:
                self.mark.unlink(missing_ok=True)
        return _DEVICES_DENIED.format(self.node) if is_denied else None
