"""All nodes of a cluster with their cards."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.node_cards import NodeView, node_view
from gpu_device_plugin.cluster.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.domain.counted import counted
from gpu_device_plugin.errors import StateError


@dataclass(frozen=True, slots=True)
class ClusterCards:
    """Every node with cards, and those whose annotation cannot be read, with the reason."""

    nodes: tuple[NodeView, ...]
    unreadable: tuple[tuple[str, str], ...] = ()

    @property
    def summary(self) -> str:
        """How much of it is held, in one line."""
        if not self.nodes and not self.unreadable:
            return "no node publishes cards; `kubectl gpu doctor` says why"
        cards = sum(len(node.cards) for node in self.nodes)
        shared = [node for node in self.nodes if not node.is_whole]
        whole = [card for node in self.nodes if node.is_whole for card in node.cards]
        parts = []
        if shared or not whole:
            held = sum(node.held_units for node in shared)
            units = sum(node.units for node in shared)
            percent = 100 * held // units if units else 0
            parts.append(f"{held} of {units} units held ({percent} %)")
        if whole:
            given = sum(bool(card.pods) for card in whole)
            parts.append(f"{given} of {len(whole)} whole cards held")
        nodes = counted(len(self.nodes) + len(self.unreadable), "node")
        nodes += f" ({len(self.unreadable)} unreadable)" if self.unreadable else ""
        return f"{nodes}, {counted(cards, 'card')}: {', '.join(parts)}"

    def only(self, names: Collection[str]) -> "ClusterCards":
        """The nodes of these names; all where none is given."""
        if not names:
            return self
        nodes = tuple(node for node in self.nodes if node.name in names)
        return ClusterCards(nodes, tuple(each for each in self.unreadable if each[0] in names))


def cluster_cards(nodes: Iterable[ClusterNode], pods: Iterable[ClusterPod]) -> ClusterCards:
    """The cards of these nodes, by name; finished pods hold nothing."""
    by_node: dict[str, list[ClusterPod]] = {}
    for pod in pods:
        if pod.node and not pod.request.is_finished:
            by_node.setdefault(pod.node, []).append(pod)
    views, unreadable = [], []
    for node in sorted(nodes, key=lambda node: node.name):
        try:
            views.append(node_view(node, by_node.get(node.name, ())))
        except StateError as error:
            unreadable.append((node.name, str(error)))
    return ClusterCards(tuple(views), tuple(unreadable))
