"""Why a pod is where it is: what it asks, what was said of it, and what each node has for it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.cluster_cards import ClusterCards
from gpu_device_plugin.apps.overview.cures import Situation, cures, is_served
from gpu_device_plugin.apps.overview.device_rooms import held_lines
from gpu_device_plugin.apps.overview.node_cards import NodeView
from gpu_device_plugin.apps.overview.verdicts import NodeVerdict, node_verdicts
from gpu_device_plugin.cluster.cluster_watch import ClusterPod
from gpu_device_plugin.cluster.survey_objects import Event, ExplainedPod, SurveyedNode, SurveyedPod
from gpu_device_plugin.domain.counted import counted
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.schemes.aliyun.annotations import believed
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import hold_of
from gpu_device_plugin.domain.schemes.aliyun.requests import asked_text
from gpu_device_plugin.domain.schemes.aliyun.units import slice_mib

_SHOWN_EVENTS = 5
_AGENT = "gpu-device-plugin"
_TO_THE_SECOND = len("2026-11-22T04:00:00")
_DISPUTED = (
    "its annotations of cards do not agree with its spec and do not count: "
    "what counts is what the node's agent says, else what the spec asks for"
)
_NO_EVENTS = "its Events are not shown to you: you may not list Events in this namespace"
_NOTHING = "it asks for nothing of this plugin: no gpu-mem, no gpu-core.percentage, no card"


@dataclass(frozen=True, slots=True)
class PodStory:
    """All that is known of a pod.

    Attributes:
        pod: `namespace/name`.
        state: Phase, node and reason, in one line.
        asks: One line a container.
        holds: What it holds: one line a container and card.
        said: What the scheduler, the kubelet or the agent said, the last one last.
        nodes: What each node has for it; empty for a pod that has its slice, or has had it.
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
    pod: ExplainedPod,
    events: Sequence[Event] | None,
    cards: ClusterCards,
    facts: Mapping[str, SurveyedNode],
    unlisted: str = "",
) -> PodStory:
    """What a pod asks, holds and was told, and, unless it has a slice, where it would fit.

    Args:
        pod: The pod.
        events: Events about it; None where they may not be read.
        cards: The nodes with cards.
        facts: All nodes, by name.
        unlisted: Why nodes and pods cannot be listed, so that both are empty; else "".
    """
    asking = pod.as_asking()
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    told = [event for event in events or () if event.is_about(pod) and not _is_past(event, pod)]
    said = (*_told(told), *_of_pod(pod, told), *((_NO_EVENTS,) if events is None else ()))
    if asking is None:
        return PodStory(name, _state(pod), (_NOTHING,), (), said)
    unit = next((n.offer.unit for n in cards.nodes if n.name == asking.node), None)
    unit = unit or next((n.offer.unit for n in cards.nodes), MemoryUnit.GIB)
    devices = (f"{device}: {count}" for device, count in sorted(asking.devices.items()))
    asks = (*_asks(pod, asking.request, unit), *devices)
    holds = () if pod.is_over else _holds(pod, asking, cards.nodes)
    is_past = pod.failed_by_itself or pod.status.phase == "Succeeded"
    needs_place = not (holds or is_served(pod) or is_past)
    nodes = node_verdicts(asking, pod, cards, facts) if needs_place else ()
    now = Situation(nodes, facts, unlisted, holds=bool(holds), has_been_told=bool(said))
    said += () if believed(asking.request, asking.annotations)[1] else (_DISPUTED,)
    return PodStory(name, _state(pod), asks, holds, said, nodes, cures(pod, asking, now))


def _state(pod: ExplainedPod) -> str:
    where = f"on node {pod.spec.node_name}" if pod.spec.node_name else "not bound to a node"
    reason = f" ({pod.status.reason})" if pod.status.reason else ""
    deleted = ", being deleted" if pod.metadata.deletion_timestamp else ""
    return f"{pod.status.phase or 'Unknown'}{reason}, {where}{deleted}"


def _is_past(event: Event, pod: ExplainedPod) -> bool:
    """Whether it says why a pod that runs now did not run yet.

    What the agent said when it admitted the pod, for instance of its annotations, stays true.
    """
    if pod.status.phase != "Running" or event.reporter == _AGENT or not event.at:
        return False
    return event.at[:_TO_THE_SECOND] < (pod.status.start_time or "")[:_TO_THE_SECOND]


def event_line(event: Event) -> str:
    """An Event, for people."""
    reporter = event.reporter or "unknown"
    return f"{event.at} {reporter} {event.reason}: {_without_rpc(event.message)}"


def _told(events: Sequence[Event]) -> list[str]:
    shown = [e for e in events if e.type == "Warning" or e.reporter == _AGENT]
    lines = [
        event_line(event)
        for event in shown
        if not any(_wraps(event.message, other.message) for other in shown)
    ]
    return lines[-_SHOWN_EVENTS:]


def _of_pod(pod: ExplainedPod, events: Iterable[Event]) -> Iterator[str]:
    """What the pod's status says and no Event does."""
    said = [event.message for event in events]

    def is_new(message: str) -> bool:
        return message != "" and not any(message in each or _wraps(message, each) for each in said)

    scheduled = pod.condition("PodScheduled")
    if scheduled.status == "False" and is_new(scheduled.message):
        yield f"{scheduled.reason or 'not scheduled'}: {scheduled.message}"
    if is_new(pod.status.message):
        yield _without_rpc(pod.status.message)
    yield from filter(None, map(str, pod.containers))


def _without_rpc(message: str) -> str:
    """The agent's words, out of those of gRPC and the kubelet around them."""
    before, found, words = message.partition(" desc = ")
    return (
        words.removesuffix(", which is unexpected") if found and "rpc error" in before else message
    )


def _wraps(message: str, other: str) -> bool:
    """Whether a message is another one with words around it: the kubelet repeats the agent's."""
    return other != "" and other in message and other != message


def _asks(pod: SurveyedPod, request: PodRequest, unit: MemoryUnit) -> tuple[str, ...]:
    found = []
    for container in (c for c in request.containers if c.asks):
        parts = [asked_text(r, amount, unit) for r, amount in sorted(container.amounts.items())]
        found.append(f"container {container.name}: {' and '.join(reversed(parts))}")
    if request.card_count_label:
        found.append(f"over {request.card_count_label} cards")
    if request.door is Door.DRA:
        names = (claim.name for claim in pod.spec.resource_claims or ())
        found.append(f"through claims (docs/dra.md): {', '.join(names)}")
    return tuple(found)


def _holds(pod: SurveyedPod, asking: ClusterPod, nodes: Iterable[NodeView]) -> tuple[str, ...]:
    """As its node counts it; of a node that is not known by its annotations, in units."""
    node, ref = next((n for n in nodes if n.name == pod.spec.node_name), None), asking.request.ref
    lines = held_lines(pod, node.cards if node else (), node.devices_of(ref) if node else None)
    hold = hold_of(asking.request, asking.annotations)
    counted_hold = next((h for h in node.holds if h.pod == ref), hold) if node else hold
    by_container = [(pod.spec.containers[c].name, s) for c, s in sorted(hold.by_container.items())]
    if counted_hold.by_card() != hold.by_card():
        # The agent names no containers, and the annotations name other cards.
        by_container = [("?", counted_hold.by_card())]
    by_index = {card.index: card for card in node.offer.cards} if node else {}
    for name, shares in by_container:
        for index, (units, percent) in sorted(shares.items()):
            card = by_index.get(index)
            size = counted(units, "unit")
            if card and node:
                size = f"{slice_mib(card, units, node.offer.unit)} MiB"
            compute = f", {percent} % of its compute" if percent else ""
            lines.append(f"container {name}: {size} of card {index}{compute}")
    return tuple(lines)
