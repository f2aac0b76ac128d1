"""Whether the MPS daemon of this node lives, and what it serves."""

from collections.abc import Callable
from pathlib import Path

from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.config.nvidia_settings import Configuration
from gpu_device_plugin.errors import StorageError
from gpu_device_plugin.store.mps_lock import served
from gpu_device_plugin.store.mps_modes import ModesFile


class MpsCheck:
    """Reads the daemon's lock, which lies in memory (below /run)."""

    def __init__(self, configuration: Callable[[], Configuration], node_store: NodeStore) -> None:
        self._configuration = configuration
        self._node_store = node_store

    def run(self) -> None:
        """Publish what is served now; of a daemon that was killed, which cards it has not given back."""
        root = self._configuration().mps_root
        self._node_store.update(mps_served=_served(Path(root)) if root else "")


def _served(root: Path) -> str:
    try:
        return served(root) or "\n".join(ModesFile(root).read())
    except StorageError:
        return ""
