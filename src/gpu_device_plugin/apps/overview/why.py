"""Why a pod is where it is: what it asks, what was said of it, and what each node has for it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.device_rooms import device_rooms, held_lines
from gpu_device_plugin.apps.overview.node_cards import NodeView
from gpu_device_plugin.apps.overview.wording import few
from gpu_device_plugin.cluster.survey_objects import Event, SurveyedNode, SurveyedPod
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import PlacementPolicy, parse_policy
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.schemes.aliyun.node_fit import Fit, fit
from gpu_device_plugin.domain.schemes.aliyun.node_rooms import node_rooms
from gpu_device_plugin.domain.schemes.aliyun.placement import NoRoom, place
from gpu_device_plugin.domain.schemes.aliyun.requests import asked_text, demand
from gpu_device_plugin.domain.schemes.aliyun.room import Room
from gpu_device_plugin.domain.schemes.aliyun.slice_size import slice_mib
from gpu_device_plugin.domain.shares import Demand
from gpu_device_plugin.errors import RequestError

_PLACEMENT_ANNOTATION = "gpu-device-plugin/placement"
_SHOWN_EVENTS = 5
_ASK_LESS = "ask less, free a slice, or add a node"
_FITS_ABOVE = "; what fits now is said above"
_NO_SLICE_YET = (
    "it is bound and has no slice yet: look at the agent with `kubectl gpu doctor`, and at the "
    "pod's Events with `kubectl describe pod` (the node is {node})"
)
_ELSEWHERE = (
    "by its cards it fits on {nodes}: what keeps it away is something else (CPU, memory, taints, "
    "affinity), which the scheduler names above"
)
_NO_CARDS = "no node publishes cards: run `kubectl gpu doctor`"
_NOT_OFFERED = (
    "no node with cards offers {names}; nodes of mode default or mig would offer nvidia.com/*, of "
    "mode topology aliyun.com/gpu (docs/node-modes.md)"
)


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a node has for the pod.

    Attributes:
        node: Its name.
        verdict: In a few words.
        cards: One line a card: what it has, and what is missing.
        is_fit: Whether the pod would fit.
        hint: The largest such slice that would fit, or "".
    """

    node: str
    verdict: str
    cards: tuple[str, ...] = ()
    is_fit: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PodStory:
    """All that is known of a pod.

    Attributes:
        pod: `namespace/name`.
        state: Phase, node and reason, in one line.
        asks: One line a container.
        holds: What it holds: one line a container and card.
        said: What the scheduler, the kubelet or the agent said, the last one last.
        nodes: What each node has for it; empty for a pod that runs.
        cures: What to do next.
    """

    pod: str
    state: str
    asks: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    cures: tuple[str, ...] = ()


def story(
    pod: SurveyedPod,
    events: Sequence[Event],
    nodes: Sequence[NodeView],
    facts: Mapping[str, SurveyedNode],
) -> PodStory:
    """What a pod asks, holds and was told, and, unless it has a slice, where it would fit.

    Args:
        pod: The pod.
        events: Events about it.
        nodes: The nodes with cards.
        facts: All nodes, by name.
    """
    asking = pod.as_asking()
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    said = tuple(filter(None, (*_told(events), _once(pod.status.message, events))))
    if asking is not None and asking.request.asks:
        unit = next((n.offer.unit for n in nodes if n.name == asking.node), None)
        unit = unit or next((n.offer.unit for n in nodes), MemoryUnit.GIB)
        asks, verdicts = _asks(asking.request, unit), _verdicts(asking.request, pod, nodes, facts)
    elif asking is not None:
        asks = tuple(f"{device}: {count}" for device, count in sorted(asking.devices.items()))
        verdicts = tuple(_device_verdicts(asking.devices, pod, nodes, facts))
    else:
        text = "it asks for nothing of this plugin: no gpu-mem, no gpu-core.percentage, no card"
        return PodStory(name, _state(pod), (text,), (), said)
    holds = _holds(pod, nodes)
    needs_place = not holds or pod.status.phase in ("Pending", "Failed")
    shown = verdicts if needs_place and pod.status.phase != "Succeeded" else ()
    devices = asking.devices if nodes and not asking.request.asks else {}
    cures = _cures(pod, shown, holds, devices) if needs_place else ()
    return PodStory(name, _state(pod), asks, holds, said, shown, cures)


def _state(pod: SurveyedPod) -> str:
    where = f"on node {pod.spec.node_name}" if pod.spec.node_name else "not bound to a node"
    reason = f" ({pod.status.reason})" if pod.status.reason else ""
    return f"{pod.status.phase or 'Unknown'}{reason}, {where}"


def _told(events: Sequence[Event]) -> list[str]:
    lines = [
        f"{event.at} {event.reporter or 'unknown'} {event.reason}: {event.message}"
        for event in events
        if event.type == "Warning" or event.reporter == "gpu-device-plugin"
    ]
    return lines[-_SHOWN_EVENTS:]


def _once(message: str, events: Iterable[Event]) -> str:
    """The pod's own message, if no Event says it too."""
    return "" if any(message in event.message for event in events) else message


def _asks(request: PodRequest, unit: MemoryUnit) -> tuple[str, ...]:
    found = []
    for container in (c for c in request.containers if c.asks):
        parts = [asked_text(r, amount, unit) for r, amount in sorted(container.amounts.items())]
        found.append(f"container {container.name}: {' and '.join(reversed(parts))}")
    if request.card_count_label:
        found.append(f"over {request.card_count_label} cards")
    return tuple(found)


def _holds(pod: SurveyedPod, nodes: Iterable[NodeView]) -> tuple[str, ...]:
    node = next((n for n in nodes if n.name == pod.spec.node_name), None)
    if node is None:
        return ()
    lines = held_lines(pod, node.cards)
    hold = next((h for h in node.holds if h.pod.uid == pod.metadata.uid), None)
    by_index = {card.index: card for card in node.offer.cards}
    for container, shares in sorted(hold.by_container.items()) if hold else ():
        for index, (units, percent) in sorted(shares.items()):
            card = by_index.get(index)
            size = f"{slice_mib(card, units, node.offer.unit)} MiB" if card else f"{units} units"
            compute = f", {percent} % of its compute" if percent else ""
            name = pod.spec.containers[container].name
            lines.append(f"container {name}: {size} of card {index}{compute}")
    return tuple(lines)


def _device_verdicts(
    asked: Mapping[str, int],
    pod: SurveyedPod,
    nodes: Sequence[NodeView],
    facts: Mapping[str, SurveyedNode],
) -> Iterable[NodeVerdict]:
    """What each node that has such devices has left; the pod itself takes none of them."""
    for view in nodes:
        node = facts.get(view.name)
        if node is None or not _may_go(pod, view.name):
            continue
        others = Counter(view.devices_taken)
        if pod.spec.node_name == view.name and not _is_over(pod):
            others.subtract(asked)
        rooms = device_rooms(asked, node, others)
        if not rooms:
            continue
        closed = _closed(pod, node)
        has_room = not any(room.missing for room in rooms)
        verdict = "has room" if has_room else "has too few"
        yield NodeVerdict(
            view.name,
            f"{verdict}, but {closed}" if closed else verdict,
            tuple(str(room) for room in rooms),
            is_fit=has_room and not closed,
        )


def _verdicts(
    request: PodRequest,
    pod: SurveyedPod,
    nodes: Sequence[NodeView],
    facts: Mapping[str, SurveyedNode],
) -> tuple[NodeVerdict, ...]:
    policy = parse_policy(pod.annotations.get(_PLACEMENT_ANNOTATION, ""))
    places = [node for node in nodes if _may_go(pod, node.name)]
    return tuple(_verdict(request, pod, node, facts, policy) for node in places)


def _may_go(pod: SurveyedPod, node: str) -> bool:
    """A pod that has ended would have to be created again, and may then go anywhere."""
    return _is_over(pod) or pod.spec.node_name in ("", node)


def _is_over(pod: SurveyedPod) -> bool:
    return pod.status.phase in ("Failed", "Succeeded")


def _verdict(
    request: PodRequest,
    pod: SurveyedPod,
    node: NodeView,
    facts: Mapping[str, SurveyedNode],
    policy: PlacementPolicy | None,
) -> NodeVerdict:
    closed = _closed(pod, facts.get(node.name))
    try:
        wanted = [demand(request, c, node.offer.terms) for c in request.containers if c.asks]
    except RequestError as error:
        # What comes before is the pod, the node and the request: they stand above.
        text = str(error).partition("): ")[2] or str(error)
        return NodeVerdict(node.name, f"never, in mode {node.mode}: {text} [{error.reason}]")
    chosen = policy or node.offer.policy or PlacementPolicy.BINPACK
    others = [hold for hold in node.holds if not hold.pod.is_same_pod(request.ref)]
    rooms = node_rooms(node.offer, others)
    found = fit(node.offer, rooms, request, chosen)
    # Of several containers the first that no card has room for; each may find room, but not all.
    lacking = [w for w in wanted if isinstance(place(rooms, w, chosen), NoRoom)]
    compared = (lacking or wanted)[0]
    cards = tuple(_card_line(room, compared) for room in rooms)
    if isinstance(found, Fit):
        index = ", ".join(str(card) for shares in found.shares.values() for card in shares)
        verdict = f"would fit (card {index}), but {closed}" if closed else f"fits, card {index}"
        return NodeVerdict(node.name, verdict, cards, is_fit=not closed)
    lack = "has no card with room for it" if lacking else "has no room for all containers at once"
    verdict = lack + (f", and {closed}" if closed else "")
    return NodeVerdict(node.name, verdict, cards, hint=_hint(rooms, compared, chosen))


def _closed(pod: SurveyedPod, node: SurveyedNode | None) -> str:
    """Why the pod cannot go to the node whatever its cards have; empty if nothing is known."""
    if node is None:
        return ""
    if node.closed:
        return node.closed
    for key, value in sorted((pod.spec.node_selector or {}).items()):
        if node.labels.get(key) != value:
            return f"the node has no label {key}={value}"
    return ""


def _card_line(room: Room, wanted: Demand) -> str:
    compute = f", {room.free_core} % compute" if room.least_core else ""
    lack = room.lack(wanted)
    if lack is not None and (room.is_full_of_pods or not room.is_healthy):
        return f"card {room.card.index}: {lack}"
    missing = wanted.units_per_card - room.free_mem
    missing_core = wanted.core_percent - room.free_core
    lacks = [f"{missing} units"] if missing > 0 else []
    lacks += [f"{missing_core} % compute"] if missing_core > 0 else []
    free = f"{room.free_mem} of {room.card.capacity(room.unit)} units{compute} free"
    return f"card {room.card.index}: {free}" + (f", {' and '.join(lacks)} too few" if lacks else "")


def _hint(rooms: Sequence[Room], wanted: Demand, policy: PlacementPolicy) -> str:
    found = place(rooms, wanted, policy)
    if not isinstance(found, NoRoom) or found.largest_card is None or wanted.cards > 1:
        return ""  # the largest slice of one card says nothing of several
    compute = f" with {wanted.core_percent} %" if wanted.core_percent else ""
    return (
        f"{found.largest_units} units ({found.largest_mib} MiB){compute} on card "
        f"{found.largest_card.index}"
    )


def _cures(
    pod: SurveyedPod,
    verdicts: Sequence[NodeVerdict],
    holds: Sequence[str],
    devices: Iterable[str],
) -> tuple[str, ...]:
    """What to do, by what is seen."""
    fitting = few(verdict.node for verdict in verdicts if verdict.is_fit)
    less = _ASK_LESS + (_FITS_ABOVE if any(verdict.hint for verdict in verdicts) else "")
    if pod.status.phase == "Failed":
        again = "delete it; its controller, if it has one, has made another one already"
        return (again,) if fitting else (again, less)
    if holds:
        return ()
    if pod.spec.node_name:
        return (_NO_SLICE_YET.format(node=pod.spec.node_name),)
    if fitting:
        return (_ELSEWHERE.format(nodes=fitting),)
    none = _NOT_OFFERED.format(names=few(sorted(devices))) if devices else _NO_CARDS
    return (less if verdicts else none,)
