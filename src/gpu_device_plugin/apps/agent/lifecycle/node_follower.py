"""What a change of our Node object means: another plugin, the uninstall mark, the labels."""

from collections.abc import Mapping

from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.lifecycle.withdrawal import Withdrawal
from gpu_device_plugin.apps.agent.publish.cluster import Cluster
from gpu_device_plugin.cluster.node import ForeignPlugin
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.domain.modes import MODE_LABEL, is_whole, parse_mode
from gpu_device_plugin.domain.node_state import StateReader

CURE = "nothing is offered. Remove it, or start with --allow-other-plugin"


class NodeFollower:
    """Passes a change of the node on to the parts, in the order in which it matters."""

    def __init__(
        self,
        cluster: Cluster,
        mode: ModeFollower,
        withdrawal: Withdrawal,
        state: StateReader,
        settings: Settings,
    ) -> None:
        self._cluster = cluster
        self._mode = mode
        self._withdrawal = withdrawal
        self._state = state
        self._settings = settings

    def node_changed(self, _: None) -> None:
        """The API server reports a change of our node."""
        node = self._cluster.node
        if node is None:
            return
        foreign = self._foreign(node.labels)
        self._mode.note_foreign(f"{foreign.text}; {CURE}" if foreign else "")
        # Before the labels: a withdrawn node must not be offered meanwhile.
        self._withdrawal.follow()
        self._mode.note_kubelet(node.kubelet_version)
        self._mode.follow(node.labels)

    def _foreign(self, labels: Mapping[str, str]) -> ForeignPlugin | None:
        """Another plugin on our cards, as the API server shows it.

        Where whole cards are offered, NVIDIA's names are our own; so are names that we registered
        earlier, which the kubelet goes on counting for a while. There a socket tells (SocketCheck).
        """
        mode = self._state().mode
        wanted = parse_mode(labels.get(MODE_LABEL, "")) or mode or self._settings.mode
        has_whole, registered = is_whole(mode) or is_whole(wanted), self._mode.registered
        found = self._cluster.foreign_plugin(lambda name: has_whole or name in registered)
        return None if self._settings.allow_other_plugin else found
