"""What a change of our Node object means: another plugin, the uninstall mark, the labels."""

from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.lifecycle.withdrawal import Withdrawal
from gpu_device_plugin.apps.agent.publish.cluster import Cluster

_CURE = "nothing is offered. Remove it, or start with --allow-other-plugin"


class NodeFollower:
    """Passes a change of the node on to the parts, in the order in which it matters."""

    def __init__(
        self,
        cluster: Cluster,
        mode: ModeFollower,
        withdrawal: Withdrawal,
        *,
        allow_other_plugin: bool,
    ) -> None:
        self._cluster = cluster
        self._mode = mode
        self._withdrawal = withdrawal
        self._allow_other_plugin = allow_other_plugin

    def node_changed(self, _: None) -> None:
        """The API server reports a change of our node."""
        node = self._cluster.node
        if node is None:
            return
        foreign = None if self._allow_other_plugin else self._cluster.foreign_plugin
        self._mode.note_foreign(f"{foreign.text}; {_CURE}" if foreign else "")
        # Before the labels: a withdrawn node must not be offered meanwhile.
        self._withdrawal.follow()
        self._mode.follow(node.labels)
