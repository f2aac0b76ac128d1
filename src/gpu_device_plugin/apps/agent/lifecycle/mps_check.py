"""Whether the MPS daemon of this node lives, and what it serves."""

from collections.abc import Callable
from pathlib import Path

from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.config.nvidia_settings import Configuration
from gpu_device_plugin.store.mps_lock import served


class MpsCheck:
    """Reads the daemon's lock, which lies in memory (below /run)."""

    def __init__(self, configuration: Callable[[], Configuration], node_store: NodeStore) -> None:
        self._configuration = configuration
        self._node_store = node_store

    def run(self) -> None:
        """Publish what is served now."""
        root = self._configuration().mps_root
        self._node_store.update(mps_served=served(Path(root)) if root else "")
