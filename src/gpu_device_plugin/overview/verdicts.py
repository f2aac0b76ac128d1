"""What each node has for a pod: whether it fits there, and what is missing.

kube-scheduler counts whole cards, replicas and MIG instances as the kubelet does: a device is a
device. So what is left on a node is its allocatable less what the pods bound to it ask for.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.fractions.demands import demands, policy_of
from gpu_device_plugin.domain.fractions.no_room import NoRoom, if_in_mib
from gpu_device_plugin.domain.fractions.node_fit import Fit, fit, node_rooms
from gpu_device_plugin.domain.fractions.placement import place
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.holdings_annotation import DEVICES_ANNOTATION, held_devices
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.labels import kept_away
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRequest
from gpu_device_plugin.domain.wording import count_noun, few
from gpu_device_plugin.errors import RequestError
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterPod
from gpu_device_plugin.kubernetes.objects.pod_spec import (
    asking_containers,
    asking_together,
    device_count,
)
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedNode, SurveyedPod
from gpu_device_plugin.overview.node_cards import CardView, ClusterCards, NodeCards

_SIZES = {Resource.MEM.value: "{} units", Resource.CORE.value: "{} %"}


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """How many devices of a resource the kubelet gives out, how many pods have taken, how many the pod asks for."""

    resource: str
    allocatable: int
    taken: int
    asked: int

    @property
    def missing(self) -> int:
        """How many are too few; 0 where the pod fits."""
        return max(0, self.asked - (self.allocatable - self.taken))

    def __str__(self) -> str:
        free = max(0, self.allocatable - self.taken)
        lack = f", {self.missing} too few" if self.missing else ""
        return f"{self.resource}: {free} of {self.allocatable} free{lack}"


def device_rooms(
    asked: Mapping[str, int], node: SurveyedNode, taken: Mapping[str, int]
) -> tuple[DeviceRoom, ...]:
    """What the node has of each resource that is asked for; empty where it has never had any."""
    offered = node.status.allocatable or {}
    if not any(name in offered for name in asked):
        return ()
    return tuple(
        DeviceRoom(name, device_count(offered.get(name, 0)), taken.get(name, 0), amount)
        for name, amount in sorted(asked.items())
    )


def whole_by_claims(asked: Mapping[str, int], node: NodeCards) -> tuple[DeviceRoom, ...]:
    """The cards of which a claim could have all; empty where they are not given by claims.

    Only with the chart's value `dra.wholeCards`, under whose name whole cards are asked for.
    """
    given = [card for card in node.cards if node.offer.is_by_claims and card.is_healthy]
    taken = sum(card.free_units < card.units for card in given)
    return tuple(
        DeviceRoom(f"{name} by claims (dra.wholeCards)", len(given), taken, amount)
        for name, amount in sorted(asked.items())
        if given
    )


def held_lines(
    pod: SurveyedPod, cards: Iterable[CardView], held: Collection[str] | None = None
) -> list[str]:
    """What the pod holds: one line a container and whole device.

    `held` has the UUIDs of what it holds by its node; None where that is not known.
    """
    told: Mapping[int, Sequence[str]] = held_devices(pod.annotations.get(DEVICES_ANNOTATION, ""))
    if held is not None:
        by_index = {index: [u for u in uuids if u in held] for index, uuids in told.items()}
        rest = set(held).difference(*by_index.values())
        told = {**by_index, **({len(pod.spec.containers): sorted(rest)} if rest else {})}
    by_uuid = {card.uuid: card for card in cards}
    lines, asking = [], asking_containers(pod)
    for index, uuids in told.items():
        for uuid in uuids:
            card = by_uuid.get(uuid)
            others = len(card.pods) - 1 if card else 0
            shared = (
                f", which {count_noun(others, 'other pod')} {'has' if others == 1 else 'have'} too"
                if others
                else ""
            )
            what = f"card {card.index} ({card.model})" if card else uuid
            name = pod.spec.containers[index].name if index < len(pod.spec.containers) else "?"
            # A claim of whole cards (docs/dra.md) is of the only one that asks.
            name = asking[0] if len(asking) == 1 else name
            lines.append(f"container {name}: {what}{shared}")
    return lines


_OTHER_API = {
    AllocationApi.DEVICE_PLUGIN: "never: this node gives its cards through claims, and the pod asks by limits",
    AllocationApi.DRA: "never: this node gives its cards through the device plugin, and the pod asks by a claim",
}


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a node has for the pod.

    Attributes:
        cards: One line a card: what it has, and what is missing.
        hint: The largest such slice that would fit, or "".
        devices: What it has of the whole devices that the pod asks for, or "".
        free: How many units or devices that is, to compare nodes by.
        is_other_api: Whether the node serves such requests by the other allocation API (docs/dra.md).
        is_never: Whether the node's mode takes no such pod, whatever is free.
        is_too_large: Whether no card of the node has as many units as are asked of one.
        if_in_mib: What to ask instead where that number is likely meant in MiB; or "".
        cure: What to do for the pod to go there, where the cards have room; or "".
    """

    node: str
    verdict: str
    cards: tuple[str, ...] = ()
    is_fit: bool = False
    hint: str = ""
    devices: str = ""
    free: int = 0
    is_other_api: bool = False
    is_never: bool = False
    is_unreadable: bool = False
    is_too_large: bool = False
    if_in_mib: str = ""
    cure: str = ""

    @property
    def lacks_room(self) -> bool:
        """Whether it might take the pod if more were free."""
        is_other = self.is_other_api or self.is_never or self.is_unreadable
        return not (self.is_fit or self.cure or is_other)

    @property
    def kind(self) -> str:
        """The verdict without the names of cards."""
        return _PLACE.sub("", self.verdict)


_PLACE = re.compile(r",? \(?card \d+(?:, \d+)*\)?(?=,|$)")
_NAMED = 2


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of which the same is to be said; `most` is the one that has most for the pod."""

    nodes: tuple[str, ...]
    most: NodeVerdict

    @property
    def names(self) -> str:
        first = ", ".join(self.nodes[:_NAMED])
        left = len(self.nodes) - _NAMED
        return f"{first} and {left} more" if left > 0 else first

    def line(self, *, is_short: bool) -> str:
        """What is said of them; `is_short`: without what a pod would have to ask there."""
        said = self.most.verdict if len(self.nodes) == 1 else self.most.kind
        said = said.partition(";")[0] if is_short and self.most.is_never else said
        fits = self.most.hint and f"what fits: {self.most.hint}"
        return "; ".join(filter(None, (said, fits or self.most.devices)))


def node_kinds(verdicts: Iterable[NodeVerdict]) -> list[NodeKind]:
    """The nodes by what is to be said of them: where the pod fits first, then the largest group."""
    groups: dict[str, list[NodeVerdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.kind, []).append(verdict)
    found = [
        NodeKind(tuple(each.node for each in group), max(group, key=lambda each: each.free))
        for group in groups.values()
    ]
    return sorted(found, key=lambda k: (not k.most.is_fit, k.most.is_never, -len(k.nodes)))


@dataclass(frozen=True, slots=True)
class _Closed:
    """Why the pod cannot go to a node whatever its cards have, and the cure."""

    why: str = ""
    cure: str = ""


def node_verdicts(
    asking: ClusterPod, pod: SurveyedPod, cards: ClusterCards, facts: Mapping[str, SurveyedNode]
) -> tuple[NodeVerdict, ...]:
    """What each node has for all that a pod asks, of slices and of whole devices."""
    request, devices = asking.request, asking.devices
    places = [view for view in cards.nodes if _may_go(pod, view.name)]
    found = list(_device_verdicts(devices, pod, places, facts)) if devices else []
    if request.asks:
        slices = [_verdict(request, pod, view, facts) for view in places]
        whole = {verdict.node: verdict for verdict in found}
        names = few(sorted(devices))
        found = [_both(each, whole.get(each.node), names) for each in slices] if names else slices
    for name, why in cards.unreadable.items():
        offered = facts[name].status.allocatable or {} if name in facts else {}
        if _may_go(pod, name) and (request.asks or any(device in offered for device in devices)):
            found.append(NodeVerdict(name, why, is_unreadable=True))
    return tuple(found)


def _both(slices: NodeVerdict, whole: NodeVerdict | None, names: str) -> NodeVerdict:
    """What a node has for a pod that asks for slices and for whole devices of these names."""
    if slices.is_never or slices.is_other_api:
        return slices
    if whole is None:
        told = f"never: it gives slices, and no {names}, for which the pod asks too"
        return NodeVerdict(slices.node, told, is_never=True)
    return NodeVerdict(
        slices.node,
        f"{slices.verdict}; of {names} it {whole.verdict}",
        (*slices.cards, *whole.cards),
        is_fit=slices.is_fit and whole.is_fit,
        hint=slices.hint,
        devices=whole.devices,
        free=slices.free,
    )


def _device_verdicts(
    asked: Mapping[str, int],
    pod: SurveyedPod,
    nodes: Sequence[NodeCards],
    facts: Mapping[str, SurveyedNode],
) -> Iterator[NodeVerdict]:
    """What each node that has such devices has left; the pod itself takes none of them."""
    together = asking_together(pod)
    inits = [name for name in asking_containers(pod) if name not in together]
    for view in nodes:
        node = facts.get(view.name)
        if node is None:
            continue
        others = Counter(view.devices_taken)
        if pod.spec.node_name == view.name and not pod.status.is_over:
            others.subtract(asked)
        rooms = device_rooms(asked, node, others)
        by_claims = () if rooms else whole_by_claims(asked, view)
        if by_claims and inits and len(together) > 1:
            told = (
                f"never: by claims an init container ({few(inits)}) cannot share {few(together)}'s"
            )
            yield NodeVerdict(view.name, told, is_never=True)
            continue
        rooms = rooms or by_claims
        if not rooms:
            continue
        closed = _why_closed(pod, node)
        has_room = not any(room.missing for room in rooms)
        verdict = "has room" if has_room else "has too few"
        yield NodeVerdict(
            view.name,
            f"{verdict}, but {closed.why}" if closed.why else verdict,
            tuple(str(room) for room in rooms),
            is_fit=has_room and not closed.why,
            devices="; ".join(map(str, rooms)),
            free=min(room.allocatable - room.taken for room in rooms),
            cure=closed.cure if has_room else "",
        )


def _may_go(pod: SurveyedPod, node: str) -> bool:
    """A pod that has ended would have to be created again, and may then go anywhere."""
    return pod.status.is_over or pod.spec.node_name in ("", node)


def _verdict(
    request: PodRequest, pod: SurveyedPod, node: NodeCards, facts: Mapping[str, SurveyedNode]
) -> NodeVerdict:
    closed = _why_closed(pod, facts.get(node.name))
    try:
        chosen = policy_of(request, node.offer.policy or PlacementPolicy.BINPACK)
        wanted = [needed for _, needed in demands(request, node.offer.terms)]
    except RequestError as error:
        told = f"never, in mode {node.mode}: {rule_text(error)} [{error.reason}]"
        return NodeVerdict(node.name, told, is_never=True)
    others = [hold for hold in node.holds if not hold.pod.is_same_pod(request.ref)]
    rooms = node_rooms(node.offer, others)
    if node.offer.allocation_api is not request.allocation_api:
        return NodeVerdict(node.name, _OTHER_API[request.allocation_api], is_other_api=True)
    found = fit(node.offer, rooms, request, chosen)
    # Of several containers the first that no card has room for; each may find room, but not all.
    lacking = [w for w in wanted if isinstance(place(rooms, w, chosen), NoRoom)]
    compared = (lacking or wanted)[0]
    cards = tuple(_card_line(room, compared) for room in rooms)
    if isinstance(found, Fit):
        index = ", ".join(
            str(card) for shares in found.hold.by_container.values() for card in shares
        )
        # What was said of a pod that was refused is from before.
        fits = f"fits now, card {index}" if pod.status.is_over else f"fits, card {index}"
        fits = f"would fit (card {index}), but {closed.why}" if closed.why else fits
        return NodeVerdict(node.name, fits, cards, is_fit=not closed.why, cure=closed.cure)
    lack = "has no card with room for it" if lacking else "has no room for all containers at once"
    lack = lack if any(room.is_healthy for room in rooms) else "every card is unhealthy"
    verdict = lack + (f", and {closed.why}" if closed.why else "")
    most = max((room.card.capacity(room.unit) for room in rooms), default=0)
    is_large, meant = compared.units_per_card > most, if_in_mib(compared, rooms)
    hint, free = _hint(rooms, compared, chosen)
    return NodeVerdict(
        node.name, verdict, cards, hint=hint, free=free, is_too_large=is_large, if_in_mib=meant
    )


def _why_closed(pod: SurveyedPod, node: SurveyedNode | None) -> _Closed:
    """Empty if nothing is known."""
    if node is None:
        return _Closed()
    name = node.metadata.name
    if away := kept_away(node.labels):  # the operator cordons it too
        return _Closed(away, f"wait until the operator gives {name} back")
    if node.marks:
        asks_why = f"`kubectl describe node {name}` says why it is not ready"
        cure = f"`kubectl uncordon {name}`" if node.is_ready else asks_why
        return _Closed(closed_text(node.marks), cure)
    for key, value in sorted((pod.spec.node_selector or {}).items()):
        if node.labels.get(key) != value:
            label = f"`kubectl label node {name} {key}={value}`, or "
            cure = ("" if key in node.labels else label) + "change the pod's nodeSelector"
            return _Closed(f"the node has no label {key}={value}", cure)
    return _Closed()


def _card_line(room: Room, wanted: Demand) -> str:
    compute = f", {room.free_core} % compute" if room.least_core else ""
    lack = room.lack(wanted)
    is_out = room.is_full_of_pods or not room.is_healthy
    if lack is not None and is_out:
        return f"card {room.card.index}: {lack}"
    missing = wanted.units_per_card - room.free_mem
    missing_core = wanted.core_percent - room.free_core
    lacks = [count_noun(missing, "unit")] if missing > 0 else []
    lacks += [f"{missing_core} % compute"] if missing_core > 0 else []
    free = f"{room.free_mem} of {room.card.capacity(room.unit)} units{compute} free"
    return f"card {room.card.index}: {free}" + (f", {' and '.join(lacks)} too few" if lacks else "")


def _hint(rooms: Sequence[Room], wanted: Demand, policy: PlacementPolicy) -> tuple[str, int]:
    """The largest slice that would fit, for people, and its units."""
    found = place(rooms, wanted, policy)
    room = found.largest if isinstance(found, NoRoom) else None
    if room is None or wanted.cards > 1:
        return "", 0  # the largest slice of one card says nothing of several
    percent = min(wanted.core_percent, room.free_core)
    compute = f" with {percent} %" if wanted.core_percent else ""
    where = f"on card {room.card.index}"
    return f"{room.free_mem} units ({room.free_slice_mib} MiB){compute} {where}", room.free_mem


def closed_text(marks: Sequence[str]) -> str:
    """Why no new pod goes to a node that has these marks."""
    return f"the node is {' and '.join(marks)}"


def rule_text(error: RequestError) -> str:
    """The rule that refuses a request, and the cure; without the pod, the node and what is asked."""
    return str(error).partition("): ")[2] or str(error)


def amounts_text(asking: ClusterPod) -> str:
    """What a pod's containers ask for together, but for ordinary init containers: `3 units, 20 %`."""
    amounts = Counter(asking.devices)
    for container in asking.request.containers:
        if container.kind is not ContainerKind.INIT:
            amounts.update(container.amounts)
    parts = sorted(amounts.items(), reverse=True)
    return ", ".join(_SIZES.get(name, name + ": {}").format(amount) for name, amount in parts)
