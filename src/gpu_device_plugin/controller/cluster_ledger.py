"""What every node's cards have left, kept from the watches and from what is being bound."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import structlog

from gpu_device_plugin.controller.card_arrays import CardArrays, Judged
from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.fractions.node_fit import (
    Fit,
    Misfit,
    RequestChecks,
    node_rooms,
    try_rooms,
)
from gpu_device_plugin.domain.fractions.pod_annotations import (
    PodHold,
    believed_holds,
    hold_of,
    told_hold,
)
from gpu_device_plugin.domain.fractions.processors import Processors
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import resources_of
from gpu_device_plugin.domain.grants.holdings_annotation import Holding, parse_holdings
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer, parse_offer
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest, Standing
from gpu_device_plugin.errors import StateError
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod

_NO_CARDS = Misfit("node(s) have no cards of an agent", is_final=True)
_LEFT_OUT = Misfit("node(s) have an annotation of cards that is none of an agent", is_final=True)
_log = structlog.get_logger("ledger")


class ClusterLedger:
    """One writer, the watches and bind; what a node has left is counted when it is asked for.

    Attributes:
        offers: What each node offers.
        left_out: Why a node counts as one without cards, though its annotation names some.
    """

    def __init__(self, default_policy: PlacementPolicy) -> None:
        self._default_policy = default_policy
        self.processors = Processors(self._mark_stale)
        self.left_out: dict[str, str] = {}
        self.offers: dict[str, NodeOffer] = {}
        self._bound: dict[str, dict[PodRef, PodHold]] = {}
        self._reserved: dict[str, dict[PodRef, PodHold]] = {}
        self._node_of: dict[PodRef, str] = {}
        # What decides whether a bound pod may be evicted; and what waits for a node of its own.
        self._standing: dict[PodRef, Standing] = {}
        self._nominated: dict[str, dict[PodRef, PodHold]] = {}
        self._reserved_on: dict[PodRef, str] = {}
        self._reserved_milli: dict[PodRef, int] = {}
        self._pods: dict[PodRef, ClusterPod] = {}
        # What each node's agent says: by pod uid.
        self._holdings: dict[str, Mapping[str, Holding[CardIndex]]] = {}
        # Pods whose annotations were found not to agree with their specs: each is told once.
        self._disputed: set[PodRef] = set()
        self._rooms: dict[str, tuple[Room, ...]] = {}
        self._arrays = CardArrays()
        # Nodes that have changed since they were written there; in order, so that all come about.
        self._stale: dict[str, None] = {}

    def node_changed(self, name: str, node: ClusterNode | None) -> None:
        """A node with cards is there, has changed, or (None) is gone or has none any more."""
        told, why_before = None, self.left_out.pop(name, None)
        try:
            if node is not None:
                told = parse_offer(name, node.cards, node.labels)
        except StateError as error:
            self.left_out[name] = why = f"node {name} is left out: {error}"
            if why != why_before:  # A node is told again and again.
                _log.warning("node left out", node=name, error=str(error))
        holdings = parse_holdings(node.holdings, told.cards) if node and told else {}
        self._holdings_changed(name, holdings)
        before = self.offers.pop(name, None)
        if told is not None:
            self.offers[name] = told
        if told != before:
            self._changed(name)

    def _holdings_changed(self, name: str, told: Mapping[str, Holding[CardIndex]]) -> None:
        """The agent says what its pods hold; of one that it names no more, the last word stays."""
        before, bound = self._holdings.pop(name, {}), self._bound.get(name, {})
        if told:
            self._holdings[name] = told
        for ref in bound:
            if ref.uid in told and told[ref.uid] != before.get(ref.uid):
                bound[ref] = told_hold(ref, told[ref.uid])
                self._changed(name)

    def pod_changed(self, ref: PodRef, pod: ClusterPod | None) -> None:
        """A pod with a slice appeared, changed, or (None) ended."""
        hold = self._hold(pod) if pod and pod.node else None
        self._note_standing(ref, pod)
        if pod and hold and self._bound.get(pod.node, {}).get(ref) == hold:
            return  # Its status has changed, or a list has it once more.
        before = self._node_of.pop(ref, None)
        if before is not None:
            _drop(self._bound, before, ref)
            self._changed(before)
        if pod is None:
            self._pods.pop(ref, None)
            self._disputed.discard(ref)
            self.release(ref)
            return
        if hold is None:
            self._pods[ref] = pod
            return
        # What agent and annotations say takes precedence over what was reserved.
        self._pods.pop(ref, None)
        self.release(ref)
        self._node_of[ref] = pod.node
        self._bound.setdefault(pod.node, {})[ref] = hold
        self._changed(pod.node)

    def _note_standing(self, ref: PodRef, pod: ClusterPod | None) -> None:
        """Which bound pods may be evicted, and for which pods kube-scheduler makes room where."""
        self._standing.pop(ref, None)
        if (before := self._pods.get(ref)) and before.nominated in self._nominated:
            _drop(self._nominated, before.nominated, ref)
        if pod and pod.node:
            self._standing[ref] = pod.request.standing
        elif pod and pod.nominated and pod.request.asks_units:
            self._nominated.setdefault(pod.nominated, {})[ref] = hold_of(pod.request, {})

    def _hold(self, pod: ClusterPod) -> PodHold:
        ref = pod.request.ref
        told = self._holdings.get(pod.node, {}).get(ref.uid)
        believed = believed_holds(pod.request, pod.annotations)
        if not believed.is_all and ref not in self._disputed:
            self._disputed.add(ref)
            _log.warning(
                "annotations that do not agree with the pod spec do not count",
                pod=str(ref),
                node=pod.node,
                counts="what the agent says" if told else "what the spec says",
            )
        return hold_of(pod.request, pod.annotations, told, believed)

    def pod(self, ref: PodRef) -> ClusterPod | None:
        return self._pods.get(ref)

    def reserve(self, node: str, hold: PodHold, cpu_milli: int) -> None:
        """Count what a pod will hold from now on, until `release` or until it is bound."""
        self.release(hold.pod)
        self._reserved_milli[hold.pod] = cpu_milli
        self._reserved.setdefault(node, {})[hold.pod] = hold
        self._reserved_on[hold.pod] = node
        self._changed(node)

    def reserves(self, ref: PodRef) -> bool:
        """Whether something is still reserved for the pod: it was neither bound nor given back."""
        return ref in self._reserved_on

    def release(self, ref: PodRef) -> None:
        """Give a reservation back; none is no error."""
        node = self._reserved_on.pop(ref, None)
        if node is not None:
            _drop(self._reserved, node, ref)
            del self._reserved_milli[ref]
            self._changed(node)

    def rooms(self, node: str) -> tuple[Room, ...]:
        if node not in self._rooms:
            offer = self.offers[node]
            self._rooms[node] = node_rooms(offer, self.holds(node))
        return self._rooms[node]

    def card_units(self) -> Collection[int]:
        """The different numbers of memory units that cards of nodes with slices have."""
        offers = [offer for offer in self.offers.values() if resources_of(offer.mode)]
        return {card.capacity(offer.unit) for offer in offers for card in offer.cards}

    def holds(self, node: str) -> Sequence[PodHold]:
        bound, reserved = self._bound.get(node, {}), self._reserved.get(node, {})
        return [*bound.values(), *reserved.values()]

    @property
    def reserved(self) -> int:
        return len(self._reserved_on)

    def checks(self, pod: PodRequest) -> RequestChecks:
        """The pod by the rules of all nodes that are asked about with it."""
        return RequestChecks(pod, self._default_policy)

    def count(self) -> Iterator[None]:
        """Count what has changed, a node at each step; `judge` directly afterwards sees all of it."""
        while self._stale:
            name = next(iter(self._stale))
            del self._stale[name]
            if name in self.offers:
                self._arrays.put(self.offers[name], self.rooms(name), self._free_milli(name))
            else:
                self._arrays.drop(name)
            yield

    def still_alike(self, names: list[str]) -> list[list[str]]:
        """These nodes, which `judge` found alike; each that has changed since then by itself."""
        changed = [[name] for name in names if name in self._stale]
        same = [name for name in names if name not in self._stale] if changed else names
        return [*([same] if same else []), *changed]

    def judge(self, names: Sequence[str], checks: RequestChecks) -> Judged:
        """Whether and how well a pod fits each of these nodes, as last counted."""
        # Arrays count the pod's own hold too: what is left there without it, `fit` knows.
        ref = checks.pod.ref
        own = {where[ref] for where in (self._reserved_on, self._node_of) if ref in where}
        own |= {name for name in self._nominated if self._expected(name, checks.pod)}
        others = [name for name in names if name not in own] if own else names
        found = self._arrays.judge(others, checks)
        for misfit, is_left_out in ((_LEFT_OUT, True), (_NO_CARDS, False)):
            of_these = [n for n in found.unknown if (n in self.left_out) is is_left_out]
            found.misfits.append((misfit, of_these))
        found.left += ([name] for name in own if name in names)
        return found

    def fit(self, node: str, checks: RequestChecks, gone: Collection[str] = ()) -> Fit | Misfit:
        """What a pod would hold of a node if the pods with the uids `gone` were not there.

        What it holds itself, bound or reserved, does not stand in its way. What kube-scheduler makes
        room for there does, unless the pod has a higher priority.
        """
        if node not in self.offers:
            return _LEFT_OUT if node in self.left_out else _NO_CARDS
        offer, ref = self.offers[node], checks.pod.ref
        asked = checks.of(offer)
        if isinstance(asked, Misfit):
            return asked
        holds = self.holds(node)
        left = [h for h in holds if h.pod.uid not in gone and h.pod != ref]
        left += self._expected(node, checks.pod)
        rooms = self.rooms(node) if left == holds else node_rooms(offer, left)
        return try_rooms(offer, rooms, asked, self._free_milli(node, ref))

    def _expected(self, node: str, asking: PodRequest) -> list[PodHold]:
        """What pods of at least its priority will hold there, for which kube-scheduler makes room.

        kube-scheduler counts them alike. One that is being bound is counted where it is reserved.
        """
        return [
            hold
            for ref, hold in self._nominated.get(node, {}).items()
            if ref != asking.ref
            and ref not in self._reserved_on
            and self._pods[ref].request.standing.priority >= asking.standing.priority
        ]

    def evictable(self, node: str, priority: int) -> Mapping[PodRef, tuple[PodHold, Standing]]:
        """What bound pods of a lower priority hold of a node, and those that are ending already."""
        bound = self._bound.get(node, {})
        return {
            ref: (hold, standing)
            for ref, hold in bound.items()
            if (standing := self._standing[ref]).priority < priority or standing.is_ending
        }

    def _free_milli(self, node: str, but: PodRef | None = None) -> int:
        """Processor that is free of a node, without what is reserved for others than `but`."""
        reserved = self._reserved.get(node, {})
        return self.processors.free(node) - sum(
            self._reserved_milli[ref] for ref in reserved if ref != but
        )

    def _changed(self, node: str) -> None:
        self._rooms.pop(node, None)
        self._mark_stale(node)

    def _mark_stale(self, node: str) -> None:
        """A node's cards or processor have changed; of one that has no cards nothing is written."""
        if node in self.offers or node in self._arrays:
            self._stale[node] = None
        else:
            self._stale.pop(node, None)


def _drop(held: dict[str, dict[PodRef, PodHold]], node: str, ref: PodRef) -> None:
    """Without this pod; nodes come and go, and one that holds nothing is forgotten."""
    held[node].pop(ref, None)
    if not held[node]:
        del held[node]
