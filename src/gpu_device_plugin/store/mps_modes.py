"""The compute modes that cards had before the MPS daemon: written before the first is changed."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.domain.node_state import ANY_CARD
from gpu_device_plugin.errors import StorageError
from gpu_device_plugin.store.mps_lock import served

_NAME = "compute-modes.json"


class ModesFile:
    """UUID -> NVML's compute mode, in the directory of the MPS daemon; gone after a reboot, as they are.

    Args:
        root: That directory.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _NAME

    def read(self) -> dict[str, int]:
        """Empty without a file.

        Raises:
            StorageError: It cannot be read; then it is not known what to undo.
        """
        try:
            found = json.loads(self._path.read_bytes())
            return {str(uuid): int(mode) for uuid, mode in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise StorageError(
                f"{self._path}: the previous compute modes are not known: {error}; set them with "
                f"`nvidia-smi -c` and remove the file"
            ) from error

    def write(self, modes: Mapping[str, int]) -> None:
        """In one step; without modes the file goes.

        Raises:
            StorageError: The file system refused.
        """
        new = self._path.with_suffix(".new")
        try:
            if not modes:
                self._path.unlink(missing_ok=True)
                return
            with new.open("w", encoding="utf-8") as file:
                json.dump(dict(modes), file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


def kept_by_daemon(root: str) -> str:
    """What the MPS daemon of this directory serves, as it says, while it lives.

    Of one that has ended: UUID of each card that it has not given back, line by line; "" if there is
    none, and `ANY_CARD` where its file cannot be read.
    """
    try:
        return served(Path(root)) or "\n".join(ModesFile(Path(root)).read()) if root else ""
    except StorageError:
        return ANY_CARD
