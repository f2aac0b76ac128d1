"""Why a pod is where it is: what it asks, what was said of it, and what each node has for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.device_rooms import held_lines
from gpu_device_plugin.apps.overview.node_cards import NodeView
from gpu_device_plugin.apps.overview.verdicts import NodeVerdict, device_verdicts, verdicts
from gpu_device_plugin.apps.overview.wording import few
from gpu_device_plugin.cluster.survey_objects import Event, SurveyedNode, SurveyedPod
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.schemes.aliyun.requests import asked_text
from gpu_device_plugin.domain.schemes.aliyun.slice_size import slice_mib

_SHOWN_EVENTS = 5
_ASK_LESS = "ask less, free a slice, or add a node"
_NEVER = "change what is said above of a node, or a node's mode: none takes it as it is"
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

_OTHER_DOOR = {
    Door.DEVICE_PLUGIN: "label the pod's namespace gpu-device-plugin/door=dra and create the pod "
    "again, or a node gpu-device-plugin/door=device-plugin (docs/dra.md)",
    Door.DRA: "label a node gpu-device-plugin/door=dra; or take that label off the pod's namespace and "
    "create the pod again (docs/dra.md)",
}


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
        asks, of_nodes = (
            _asks(pod, asking.request, unit),
            verdicts(asking.request, pod, nodes, facts),
        )
    elif asking is not None:
        asks = tuple(f"{device}: {count}" for device, count in sorted(asking.devices.items()))
        of_nodes = tuple(device_verdicts(asking.devices, pod, nodes, facts))
    else:
        text = "it asks for nothing of this plugin: no gpu-mem, no gpu-core.percentage, no card"
        return PodStory(name, _state(pod), (text,), (), said)
    holds = _holds(pod, nodes)
    needs_place = not holds or pod.status.phase in ("Pending", "Failed")
    shown = of_nodes if needs_place and pod.status.phase != "Succeeded" else ()
    devices = asking.devices if nodes and not asking.request.asks else {}
    cures = _cures(pod, shown, holds, devices, asking.request.door) if needs_place else ()
    return PodStory(name, _state(pod), asks, holds, said, shown, cures)


def _state(pod: SurveyedPod) -> str:
    where = f"on node {pod.spec.node_name}" if pod.spec.node_name else "not bound to a node"
    reason = f" ({pod.status.reason})" if pod.status.reason else ""
    return f"{pod.status.phase or 'Unknown'}{reason}, {where}"


def _told(events: Sequence[Event]) -> list[str]:
    shown = [e for e in events if e.type == "Warning" or e.reporter == "gpu-device-plugin"]
    lines = [
        f"{event.at} {event.reporter or 'unknown'} {event.reason}: {event.message}"
        for event in shown
        if not any(_wraps(event.message, other.message) for other in shown)
    ]
    return lines[-_SHOWN_EVENTS:]


def _once(message: str, events: Iterable[Event]) -> str:
    """The pod's own message, if no Event says it too."""
    said = [event.message for event in events]
    return "" if any(message in each or _wraps(message, each) for each in said) else message


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


def _cures(  # noqa: PLR0911 - one for each thing seen
    pod: SurveyedPod,
    verdicts: Sequence[NodeVerdict],
    holds: Sequence[str],
    devices: Iterable[str],
    door: Door,
) -> tuple[str, ...]:
    """What to do, by what is seen."""
    fitting = few(verdict.node for verdict in verdicts if verdict.is_fit)
    less = _ASK_LESS + (_FITS_ABOVE if any(verdict.hint for verdict in verdicts) else "")
    if verdicts and all(verdict.is_never for verdict in verdicts):
        less = _NEVER
    if pod.status.phase == "Failed":
        again = "delete it; its controller, if it has one, has made another one already"
        return (again,) if fitting else (again, less)
    if holds:
        return ()
    if pod.spec.node_name:
        return (_NO_SLICE_YET.format(node=pod.spec.node_name),)
    if fitting:
        return (_ELSEWHERE.format(nodes=fitting),)
    if verdicts:
        is_door = all(verdict.is_other_door for verdict in verdicts)
        return (_OTHER_DOOR[door] if is_door else less,)
    names = few(sorted(devices))
    return (_NOT_OFFERED.format(names=names) if names else _NO_CARDS,)
