"""What every node's cards have left, kept from the watches and from what is being bound."""

from collections.abc import Mapping, Sequence

import structlog

from gpu_device_plugin.cluster.whole import ClusterNode, ClusterPod
from gpu_device_plugin.domain.cluster_ledger import Fit, Misfit, fit, node_rooms
from gpu_device_plugin.domain.cluster_view import NodeOffer, PodHold, hold_of, parse_offer
from gpu_device_plugin.domain.modes import PlacementPolicy, parse_policy
from gpu_device_plugin.domain.placement import Room
from gpu_device_plugin.domain.pods import PodRef, PodRequest
from gpu_device_plugin.errors import StateError

PLACEMENT_ANNOTATION = "gpu-device-plugin/placement"
NO_CARDS_TEXT = "node(s) have no cards of ours"
_log = structlog.get_logger("ledger")


class ClusterLedger:
    """One writer, the watches and bind; what a node has left is counted when it is asked for."""

    def __init__(self, default_policy: PlacementPolicy) -> None:
        self._default_policy = default_policy
        self._offers: dict[str, NodeOffer] = {}
        self._bound: dict[str, dict[PodRef, PodHold]] = {}
        self._reserved: dict[str, dict[PodRef, PodHold]] = {}
        self._node_of: dict[PodRef, str] = {}
        self._pods: dict[PodRef, ClusterPod] = {}
        self._rooms: dict[str, tuple[Room, ...]] = {}

    @property
    def offers(self) -> Mapping[str, NodeOffer]:
        """What each node offers."""
        return self._offers

    def node_changed(self, name: str, node: ClusterNode | None) -> None:
        """A node with cards is there, has changed, or (None) is gone or has none any more."""
        self._rooms.pop(name, None)
        self._offers.pop(name, None)
        if node is None:
            return
        try:
            self._offers[name] = parse_offer(name, node.cards, node.labels)
        except StateError as error:
            _log.warning("node left out", node=name, error=str(error))

    def pod_changed(self, ref: PodRef, pod: ClusterPod | None) -> None:
        """A pod of ours is there, has changed, or (None) has ended."""
        before = self._node_of.pop(ref, None)
        if before is not None:
            self._bound[before].pop(ref, None)
            self._rooms.pop(before, None)
        if pod is None:
            self._pods.pop(ref, None)
            self.release(ref)
            return
        self._pods[ref] = pod
        if pod.node:
            # What the node was given as annotations stands over what was reserved.
            self.release(ref)
            self._node_of[ref] = pod.node
            self._bound.setdefault(pod.node, {})[ref] = hold_of(pod.request, pod.annotations)
            self._rooms.pop(pod.node, None)

    def pod(self, ref: PodRef) -> ClusterPod | None:
        """The pod as the watch last told it."""
        return self._pods.get(ref)

    def reserve(self, node: str, hold: PodHold) -> None:
        """Count what a pod will hold from now on, until `release` or until it is bound."""
        self.release(hold.pod)
        self._reserved.setdefault(node, {})[hold.pod] = hold
        self._rooms.pop(node, None)

    def release(self, ref: PodRef) -> None:
        """Give a reservation back; none is no error."""
        for node, holds in self._reserved.items():
            if holds.pop(ref, None) is not None:
                self._rooms.pop(node, None)

    def rooms(self, node: str) -> tuple[Room, ...]:
        """What the cards of a node have left."""
        if node not in self._rooms:
            self._rooms[node] = node_rooms(self._offers[node], self.holds(node))
        return self._rooms[node]

    def node_rooms(self) -> Mapping[str, tuple[Room, ...]]:
        """What the cards of every node have left."""
        return {name: self.rooms(name) for name in sorted(self._offers)}

    def holds(self, node: str) -> Sequence[PodHold]:
        """What is held on a node, and what is reserved."""
        bound, reserved = self._bound.get(node, {}), self._reserved.get(node, {})
        return [*bound.values(), *reserved.values()]

    def fit(self, node: str, pod: PodRequest, annotations: Mapping[str, str]) -> Fit | Misfit:
        """Whether and how well a pod fits a node."""
        offer = self._offers.get(node)
        if offer is None:
            return Misfit(NO_CARDS_TEXT, is_final=True)
        wanted = parse_policy(annotations.get(PLACEMENT_ANNOTATION, ""))
        policy = wanted or offer.policy or self._default_policy
        return fit(offer, self.rooms(node), pod, policy)
