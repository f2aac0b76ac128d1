"""What is left of an agent on its node when it goes for good.

Directories themselves stay where they cannot be removed: in the agent's pod they are mounts.
"""

import contextlib
from pathlib import Path

from gpu_device_plugin.errors import storage_errors

_STATE_KINDS = ("grants", "cards", "node", "claims", "settings", "configuration")
_FILES = ("agent.sock", "limits.sock", "driver-limits", "devices-denied")
_SIMULATOR = "simulator"


class Remains:
    """The files below state and run directory that belong to no slice."""

    def __init__(self, state_dir: Path, run_dir: Path) -> None:
        self._state_dir = state_dir
        self._run_dir = run_dir

    def sweep(self) -> None:
        """Remove directories that no slice is in any more."""
        cards = self._run_dir / "cards"
        for path in (*_inside(cards), cards, self._run_dir / "slices"):
            remove_empty(path)

    def forget(self) -> tuple[str, ...]:
        """Remove what was remembered over restarts, and the simulated driver; what was there.

        Only where no slice is left: grants, and the card numbers that they are written in, are
        what a later installation knows running containers by.
        """
        removed = []
        with storage_errors("removed"):
            for path in _inside(self._state_dir):
                if path.name.partition(".")[0] in _STATE_KINDS:
                    path.unlink()
                    removed.append(str(path))
            simulator = self._run_dir / _SIMULATOR
            if simulator.is_dir():
                # In the agent's pod the directory is a mount, and stays.
                for path in _inside(simulator):
                    path.unlink()
                removed.append(str(simulator))
            for name in _FILES:
                (self._run_dir / name).unlink(missing_ok=True)
        for path in (simulator, self._run_dir, self._state_dir):
            remove_empty(path)
        return tuple(removed)


def _inside(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []


def remove_empty(path: Path) -> None:
    """Remove a directory that nothing is in, and that is no mount."""
    with contextlib.suppress(OSError):
        path.rmdir()
