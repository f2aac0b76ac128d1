"""What a change of our Node object means: another plugin, the labels, the mark for uninstalling."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_device_plugin.agent.card_watch.mode_follower import OTHERS_CURE, ModeFollower
from gpu_device_plugin.agent.node_checks.withdrawal import Withdrawal
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.domain.node.modes import MODE_LABEL, is_whole, parse_mode
from gpu_device_plugin.domain.node.state import StateReader
from gpu_device_plugin.settings.agent_settings import Settings


@dataclass(eq=False)
class NodeFollower:
    """Passes a change of the node on to the parts, in the order in which it matters."""

    cluster: Cluster
    mode: ModeFollower
    withdrawal: Withdrawal
    state: StateReader
    settings: Settings

    def node_changed(self, _: None) -> None:
        node = self.cluster.node
        if node is None:
            return
        foreign = self._foreign(node.labels)
        self.mode.note_foreign(f"{foreign}; {OTHERS_CURE}" if foreign else "")
        # Before the labels: a withdrawn node must not be offered meanwhile.
        self.withdrawal.follow()
        self.mode.note_kubelet(node.kubelet_version, node.runtime_version)
        self.mode.follow(node.labels)

    def _foreign(self, labels: Mapping[str, str]) -> str:
        """Evidence of another plugin on our cards, as the API server shows it; empty if none.

        Where whole cards are offered, NVIDIA's names are our own; so are names that we registered
        earlier, which the kubelet goes on counting for a while. There a socket or the kubelet tells (`other_plugin_search`).
        """
        mode = self.state().mode
        wanted = parse_mode(labels.get(MODE_LABEL, "")) or mode or self.settings.mode
        has_whole, registered = is_whole(mode) or is_whole(wanted), self.mode.registered
        found = self.cluster.foreign_plugin(lambda name: has_whole or name in registered)
        return "" if self.settings.allow_other_plugin else found
