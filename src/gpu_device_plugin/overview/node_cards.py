"""What each card of a node holds and has left, from the node's and its pods' annotations.

The rules are the controller's; what is held is what the agents have reported, or what the pods ask
for while they have not.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, cycle
from operator import ge
from string import ascii_letters

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.fractions.node_fit import node_rooms
from gpu_device_plugin.domain.fractions.pod_annotations import ASSIGNED, PodHold, hold_of
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import Resource, resources_of
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    Holding,
    held_devices,
    parse_holdings,
)
from gpu_device_plugin.domain.grants.init_containers import Shares
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer, parse_offer
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import is_whole
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.wording import NODE_STATES, count_noun
from gpu_device_plugin.errors import ClusterError, StateError
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod

_Devices = Mapping[str, tuple[PodRef, ...]]


@dataclass(frozen=True, slots=True)
class PodShare:
    """A pod's part of a card; until `is_granted` by the agent's report a scheduler has only reserved it."""

    pod: PodRef
    units: int
    percent: int
    is_granted: bool
    enforcers: str = ""
    """Who holds it to its slice, for people; empty until the agent has told."""


@dataclass(frozen=True, slots=True)
class CardView:
    """A card.

    Attributes:
        held_units: Memory units that its holders have; pods that wait for a card are not among them.
        free_units: Memory units that nobody holds or waits for; 0 for a card that is unhealthy, or
            that pods hold whole.
        free_percent: Percent of compute that nobody holds or waits for; 0 as above.
        holders: Who holds the rest, the largest first.
        pods: Who holds it whole, or a replica of it.
        allocation_api: By what requests reach it (docs/dra.md).
        memory_by: Who holds new slices to their memory, where that is not the usual one.
        fault: Why it is unhealthy, and since when, as its agent says.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    units: int
    held_units: int
    free_units: int
    free_percent: int
    is_healthy: bool
    holders: tuple[PodShare, ...]
    pods: tuple[PodRef, ...] = ()
    allocation_api: AllocationApi = AllocationApi.DEVICE_PLUGIN
    memory_by: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node with cards.

    Attributes:
        waiting: Pods bound to it that have no card yet, with the units they ask for.
        instances: UUIDs of devices that are no cards, which are MIG instances, with who holds each.
        devices_taken: Resource -> whole devices that its pods ask for.
        marks: Why no new pod goes to it: `not ready`, `cordoned`.
    """

    name: str
    offer: NodeOffer
    rooms: tuple[Room, ...]
    holds: tuple[PodHold, ...]
    cards: tuple[CardView, ...]
    waiting: Mapping[PodRef, int]
    instances: Mapping[str, tuple[PodRef, ...]] = field(default_factory=dict)
    devices_taken: Mapping[str, int] = field(default_factory=dict)
    marks: tuple[str, ...] = ()

    @property
    def unit_mib(self) -> int:
        return self.offer.unit.mib

    @property
    def kind_text(self) -> str:
        """Mode, unit and how many cards of which models, for people."""
        unit = "1 GiB" if self.unit_mib == 1024 else f"{self.unit_mib} MiB"
        units = [] if self.is_whole else [f"units of {unit}"]
        counts = Counter(card.model for card in self.cards)
        models = (f"{count} x {model}" for model, count in counts.items())
        api = ["given by claims"] if self.offer.is_by_claims else []
        return ", ".join((self.mode, *units, *models, *api))

    @property
    def letters(self) -> Mapping[PodRef, str]:
        """A letter for each pod on its cards; when letters run out, they begin again."""
        pods = dict.fromkeys(
            pod
            for card in self.cards
            for pod in (*card.pods, *(holder.pod for holder in card.holders))
        )
        return dict(zip(pods, cycle(ascii_letters), strict=False))

    @property
    def mode(self) -> str:
        return self.offer.mode.value

    @property
    def pods(self) -> tuple[PodRef, ...]:
        """Those that hold something of it, or wait for a card; some more than once."""
        return (*self.letters, *self.waiting, *chain.from_iterable(self.instances.values()))

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(pod.namespace for pod in self.pods)

    def of_namespace(self, namespace: str) -> "NodeCards":
        """Only what its pods hold or wait for; what others hold of their cards is not to be told from what is free."""

        def own(pods: Iterable[PodRef]) -> tuple[PodRef, ...]:
            return tuple(pod for pod in pods if pod.namespace == namespace)

        cards = []
        for card in self.cards:
            holders = tuple(h for h in card.holders if h.pod.namespace == namespace)
            pods = own(card.pods)
            if holders or pods:
                held = sum(holder.units for holder in holders)
                free = card.units - held if card.is_healthy and not pods else 0
                seen = replace(card, held_units=held, free_units=free, free_percent=0)
                cards.append(replace(seen, holders=holders, pods=pods))
        waiting = {pod: units for pod, units in self.waiting.items() if pod.namespace == namespace}
        instances = {u: pods for u, held in self.instances.items() if (pods := own(held))}
        kept = replace(self, rooms=(), holds=(), devices_taken={})
        return replace(kept, cards=tuple(cards), waiting=waiting, instances=instances)

    @property
    def told_instances(self) -> Sequence[tuple[Mapping[str, object], tuple[PodRef, ...]]]:
        """Each MIG instance with who holds it, free ones too; where the node does not tell them, those held."""
        told = {u: {"uuid": u, **asdict(d)} for u, d in self.offer.devices.items() if d.profile}
        rest = {uuid: {"uuid": uuid} for uuid in self.instances if uuid not in told}
        return [(each, self.instances.get(uuid, ())) for uuid, each in (told | rest).items()]

    def devices_of(self, pod: PodRef) -> frozenset[str]:
        """UUIDs of the cards and instances that a pod holds whole, or replicas of which."""
        whole = (card.uuid for card in self.cards if pod in card.pods)
        return frozenset((*whole, *(uuid for uuid, pods in self.instances.items() if pod in pods)))

    def pods_on(self, card: CardView) -> tuple[PodRef, ...]:
        """Who holds anything of a card: a slice, all of it, or an instance of it."""
        devices = self.offer.devices
        cut = [u for u in self.instances if u in devices and devices[u].card == card.index]
        held = (*card.pods, *(holder.pod for holder in card.holders))
        return tuple(dict.fromkeys((*held, *chain.from_iterable(self.instances[u] for u in cut))))

    @property
    def is_whole(self) -> bool:
        """Whether its mode gives whole cards, replicas or instances, and no slices."""
        return is_whole(self.offer.mode)

    @property
    def has_compute(self) -> bool:
        return Resource.CORE in resources_of(self.offer.mode)

    @property
    def has_memory(self) -> bool:
        """Whether its mode gives slices."""
        return Resource.MEM in resources_of(self.offer.mode)

    @property
    def closed(self) -> tuple[str, ...]:
        """Why no new pod gets anything of it: its marks, and a mode that offers nothing."""
        idle = () if self.is_whole or self.has_memory else (f"mode {self.mode} offers nothing",)
        return (*self.marks, *idle)

    @property
    def states(self) -> tuple[str, ...]:
        """Of `NODE_STATES` those that it is in."""
        serving = [card for card in self.cards if card.is_healthy]
        is_free = any(not c.pods if self.is_whole else self.room(c)[0] for c in serving)
        found = {
            "unhealthy": len(serving) < len(self.cards),
            "closed": bool(self.closed),
            "free": is_free and not self.closed,
            "full": not is_free and not self.closed,
            "waiting": bool(self.waiting),
        }
        return tuple(state for state in NODE_STATES if found[state])

    def room(self, card: CardView) -> tuple[int, int]:
        """Units and percent that one container more may ask of a card; percent are 0 where the mode does not divide it."""
        room = next((room for room in self.rooms if room.card.index == card.index), None)
        if self.closed or card.pods or not self.has_memory or room is None or not room.free_milli:
            return 0, 0
        return card.free_units, card.free_percent if self.has_compute else 0

    @property
    def units(self) -> int:
        return sum(card.units for card in self.cards)

    @property
    def held_units(self) -> int:
        return sum(card.held_units for card in self.cards)


def node_cards(node: ClusterNode, pods: Sequence[ClusterPod]) -> NodeCards:
    """A node and the pods that are bound to it; StateError if its annotation of cards cannot be read."""
    offer = parse_offer(node.name, node.cards, node.labels)
    told = parse_holdings(node.holdings, offer.cards)
    granted = {
        pod.request.ref
        for pod in pods
        if pod.request.ref.uid in told or pod.annotations.get(ASSIGNED) == "true"
    }
    holds = tuple(
        hold_of(pod.request, pod.annotations, told.get(pod.request.ref.uid)) for pod in pods
    )
    devices = _devices(pods, told)
    rooms = node_rooms(offer, holds)
    waiting = {hold.pod: sum(demand.mem_units for demand in hold.unplaced) for hold in holds}
    shares = [(hold.pod, _trusted_shares(hold, offer)) for hold in holds]
    cards = tuple(
        _card(room, offer, _holders(room.card.index, shares, granted, told), devices)
        for room in rooms
    )
    known = {card.uuid for card in cards}
    return NodeCards(
        node.name,
        offer,
        rooms,
        holds,
        cards,
        {pod: units for pod, units in waiting.items() if units},
        {uuid: pods for uuid, pods in sorted(devices.items()) if uuid not in known},
        sum((Counter(pod.devices) for pod in pods), Counter[str]()),
        node.marks,
    )


def _devices(pods: Iterable[ClusterPod], told: Mapping[str, Holding[CardIndex]]) -> _Devices:
    """UUID of a card or an instance -> the pods that hold it or a replica of it.

    What the node's agent says comes first; else a pod's own annotation counts where it names no more
    than the pod asks for.
    """
    found: dict[str, list[PodRef]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod.request.ref)):
        ref = pod.request.ref
        if ref.uid in told:
            uuids = set(told[ref.uid].devices)
        else:
            by_index = held_devices(pod.annotations.get(DEVICES_ANNOTATION, ""))
            uuids = {uuid for each in by_index.values() for uuid in each}
            uuids = uuids if len(uuids) <= sum(pod.devices.values()) else set()
        for uuid in uuids:
            found.setdefault(uuid, []).append(ref)
    return {uuid: tuple(refs) for uuid, refs in found.items()}


def _holders(
    index: CardIndex,
    shares: Iterable[tuple[PodRef, Shares]],
    granted: set[PodRef],
    told: Mapping[str, Holding[CardIndex]],
) -> tuple[PodShare, ...]:
    found = [
        PodShare(
            pod,
            *by_card[index],
            pod in granted,
            told[pod.uid].enforcers_text if pod.uid in told else "",
        )
        for pod, by_card in shares
        if index in by_card
    ]
    return tuple(sorted(found, key=lambda holder: (-holder.units, str(holder.pod))))


def _trusted_shares(hold: PodHold, offer: NodeOffer) -> Shares:
    """What a pod holds of each card; by claims nothing beyond what the node's agent says of all."""
    told = {each.index: (each.units, each.percent) for each in offer.claimed}
    return {
        index: share
        for index, share in hold.by_card().items()
        if not hold.is_by_claims or all(map(ge, told.get(index, (-1, -1)), share))
    }


def _card(
    room: Room, offer: NodeOffer, holders: tuple[PodShare, ...], devices: _Devices
) -> CardView:
    card = room.card
    units = card.capacity(room.unit)
    # A whole card by a claim is all of its units (docs/dra.md), and is counted once.
    pods = tuple(p for p in devices.get(card.uuid, ()) if p not in [h.pod for h in holders])
    has_room = room.is_healthy and not pods
    return CardView(
        card.index,
        card.uuid,
        card.model,
        card.memory_mib,
        units,
        units - room.free_mem if offer.is_by_claims else sum(holder.units for holder in holders),
        room.free_mem if has_room else 0,
        room.free_core if has_room else 0,
        room.is_healthy,
        holders,
        pods,
        offer.allocation_api,
        offer.memory_by.get(card.index, ""),
        offer.faults.get(card.index, ""),
    )


@dataclass(frozen=True, slots=True)
class ClusterCards:
    """Every node with cards; why those cannot be read whose annotation is wrong; the summary where there is none."""

    nodes: tuple[NodeCards, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    nothing: str = "no node publishes cards; `kubectl gpu doctor` says why"

    @property
    def names(self) -> Sequence[str]:
        return [*(node.name for node in self.nodes), *self.unreadable]

    @property
    def summary(self) -> str:
        """How much of it is held, in one line."""
        if not self.nodes and not self.unreadable:
            return self.nothing
        cards = sum(len(node.cards) for node in self.nodes)
        shared = [node for node in self.nodes if not node.is_whole]
        whole = [(node, card) for node in self.nodes if node.is_whole for card in node.cards]
        parts = []
        if shared or not whole:
            held, units, *rest = _given(
                (n, c, c.held_units, c.units) for n in shared for c in n.cards
            )
            percent = 100 * held // units if units else 0
            parts += [f"{held} of {units} units held ({percent} %)", *rest]
        if whole:
            given, all_of_them, *rest = _given((n, c, bool(c.pods), 1) for n, c in whole)
            parts += [f"{given} of {all_of_them} whole cards held", *rest]
        nodes = count_noun(len(self.nodes) + len(self.unreadable), "node")
        nodes += f" ({len(self.unreadable)} unreadable)" if self.unreadable else ""
        return f"{nodes}, {count_noun(cards, 'card')}: {'; '.join(parts)}"

    def in_state(self, state: str | None) -> "ClusterCards":
        """The nodes in a state; None for all."""
        if not state:
            return self
        nodes = tuple(node for node in self.nodes if state in node.states)
        return ClusterCards(nodes, nothing=f"no node is in state {state}")

    def only(self, names: Collection[str] | None, namespace: str = "") -> "ClusterCards":
        """The nodes of these names (None: all) that hold something of the namespace ("": of any, or nothing)."""
        nodes = tuple(
            node
            for node in self.nodes
            if (names is None or node.name in names)
            and (not namespace or namespace in node.namespaces)
        )
        own = {} if namespace else self.unreadable
        what = f"holds anything of namespace {namespace}" if namespace else "has these labels"
        nothing = f"no node with cards {what}" if self.names else self.nothing
        return ClusterCards(nodes, {n: own[n] for n in own if names is None or n in names}, nothing)


def _given(
    parts: Iterable[tuple[NodeCards, CardView, int, int]],
) -> tuple[int, int, *tuple[str, ...]]:
    """How much is held of what can be given, how much that is, and what cannot be given beside it.

    Each part is of a card: how much of it is held, and how much it is.
    """
    held = units = unhealthy = closed = 0
    for node, card, of_card, all_of_card in parts:
        if not card.is_healthy:
            unhealthy += all_of_card
        elif node.closed:
            closed += all_of_card
        else:
            held, units = held + of_card, units + all_of_card
    beside = ((unhealthy, "more unhealthy"), (closed, "more on closed nodes"))
    return held, units, *(f"{count} {what}" for count, what in beside if count)


def asking_of(pod: SurveyedPod) -> ClusterPod | None:
    """What a pod asks of this plugin; None for nothing: one that cannot be parsed holds nothing."""
    try:
        return pod.as_asking()
    except ClusterError:
        return None


def cluster_cards(nodes: Iterable[ClusterNode], pods: Iterable[ClusterPod]) -> ClusterCards:
    """The cards of these nodes, by name; finished pods hold nothing."""
    by_node: dict[str, list[ClusterPod]] = {}
    for pod in pods:
        if pod.node and not pod.request.is_finished:
            by_node.setdefault(pod.node, []).append(pod)
    views, unreadable = [], {}
    for node in sorted(nodes, key=lambda node: node.name):
        try:
            views.append(node_cards(node, by_node.get(node.name, ())))
        except StateError as error:
            unreadable[node.name] = str(error)
    return ClusterCards(tuple(views), unreadable)
