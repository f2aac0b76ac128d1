"""Whether the MPS daemon of this node lives, and what it serves."""

from collections.abc import Callable
from pathlib import Path

from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.config.nvidia_configuration import Configuration
from gpu_device_plugin.store.mps_lock import waits_for
from gpu_device_plugin.store.mps_modes import kept_by_daemon


class MpsCheck:
    """Reads the daemon's lock, which lies in memory (below /run).

    Args:
        configuration: What is in force.
        node_store: Gets what is found.
        remember: Stores the daemon's directory for the next run.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        node_store: NodeStore,
        remember: Callable[[], None],
    ) -> None:
        self._configuration = configuration
        self._node_store = node_store
        self._remember = remember

    def run(self) -> None:
        """Publish what is served now; of a daemon that was killed, which cards it has not given back.

        A directory that is configured no more counts until another one is, and its cards are back.
        """
        root, wanted = self._node_store.read().mps_root, self._configuration().mps_root
        kept = kept_by_daemon(root)
        self._node_store.update(mps_waits=waits_for(Path(wanted)) if wanted else "")
        if kept or wanted in {"", root}:
            self._node_store.update(mps_served=kept)
        else:
            self._node_store.update(mps_root=wanted, mps_served=kept_by_daemon(wanted))
            self._remember()
