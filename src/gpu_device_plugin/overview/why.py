"""Why a pod is where it is, what each node has for it, and what to do."""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from gpu_device_plugin.domain.cards.fault_cures import fault_cure
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.demands import TEMPLATE, asked_text, parse_claim_name
from gpu_device_plugin.domain.fractions.foreign_resource_names import HAMI, KOORDINATOR
from gpu_device_plugin.domain.fractions.pod_annotations import (
    ASSIGNED,
    FIRST_GENERATION,
    SECOND_GENERATION,
    believed_holds,
    hold_of,
)
from gpu_device_plugin.domain.fractions.slice_size import slice_mib
from gpu_device_plugin.domain.grants.holdings_annotation import DEVICES_ANNOTATION, TOPOLOGY_GPU
from gpu_device_plugin.domain.grants.node_annotations import fault_reason
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import PodRequest
from gpu_device_plugin.domain.wording import count_noun, few
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterPod
from gpu_device_plugin.kubernetes.objects.explained_pod import ExplainedPod
from gpu_device_plugin.kubernetes.objects.pod_spec import asking_containers, koordinator_amounts
from gpu_device_plugin.kubernetes.objects.survey_objects import Event, SurveyedNode, SurveyedPod
from gpu_device_plugin.overview.device_names import offered_devices, other_names
from gpu_device_plugin.overview.node_cards import ClusterCards, NodeCards
from gpu_device_plugin.overview.verdicts import NodeVerdict, held_lines, node_verdicts

_NEVER = "no node takes the pod as it is: change the pod as its nodes say, or the mode of a node"
_TRANSLATE = (
    "it asks by {}'s names ({}), which no node of this plugin offers: set the chart's controller.enabled, "
    "controller.webhook.enabled and controller.webhook.{}, which translates them, and create the pod again, or write it "
    "in this plugin's names"
)
_OTHER_API = {
    AllocationApi.DEVICE_PLUGIN: "label the pod's namespace gpu-device-plugin/allocation-api=dra and create the pod "
    "again, or a node gpu-device-plugin/allocation-api=device-plugin",
    AllocationApi.DRA: "label a node gpu-device-plugin/allocation-api=dra; or take that label off the pod's namespace and "
    "create the pod again",
}


def is_served(pod: ExplainedPod) -> bool:
    """Whether the agent says that the pod has what it asks of the cards."""
    has_slice = pod.annotations.get(ASSIGNED) == "true"
    return not pod.status.is_over and (has_slice or DEVICES_ANNOTATION in pod.annotations)


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a pod beside what it asks.

    Attributes:
        unlisted: Why nodes and pods cannot be listed, so that both are empty; else "".
        holds: Whether it holds anything, or a scheduler has reserved it.
        has_been_told: Whether anybody has said anything of it.
        unhealthy: What is wrong with cards that it is on, and the cure.
    """

    verdicts: Sequence[NodeVerdict]
    nodes: Mapping[str, SurveyedNode]
    unlisted: str
    holds: bool
    has_been_told: bool
    unhealthy: tuple[str, ...] = ()


def cures(pod: ExplainedPod, asking: ClusterPod, now: Situation) -> tuple[str, ...]:
    """What to do next."""
    verdicts = now.verdicts
    if pod.status.is_over:
        return _cures_after_end(pod, asking, now)
    if pod.spec.node_name:
        on_node = _of_node(pod.spec.node_name, now) or now.unhealthy
        return on_node or _cures_on_node(pod, holds=now.holds)
    if pod.metadata.deletion_timestamp:
        kept_by = "what keeps it is in its metadata.finalizers"
        return (f"it is being deleted, so no scheduler takes it; {kept_by}",)
    gates = few(gate.name for gate in pod.spec.scheduling_gates or ())
    gated: tuple[str, ...] = ()
    if gates:
        gated += (f"no scheduler takes it before its scheduling gates are removed: {gates}",)
    if missing := few(filter(parse_claim_name, pod.missing_claims)):
        gated += (
            f"its claim is not made yet ({missing}): namespace {pod.metadata.namespace} needs the "
            f"ResourceClaimTemplate {TEMPLATE}, which the chart's dra.namespaces makes",
        )
    fitting = _fitting_nodes(verdicts)
    if not fitting:
        return (*gated, *_cures_for_room(now, asking))
    why = (
        f", and no scheduler has spoken of it: does one run that serves schedulerName "
        f"{pod.spec.scheduler_name}?"
    )
    if now.has_been_told:
        why = (
            ": what keeps it away is something else (CPU, memory, taints, affinity), which the "
            "scheduler names"
        )
    return gated or (f"by its cards it fits on {fitting}{why}",)


def _fitting_nodes(verdicts: Iterable[NodeVerdict]) -> str:
    return few(verdict.node for verdict in verdicts if verdict.is_fit)


def _of_node(name: str, now: Situation) -> tuple[str, ...]:
    if now.unlisted:
        return ()
    node = now.nodes.get(name)
    if node is None:
        return (
            f"its node {name} is not in the cluster: the control plane deletes the pod after a minute "
            f"or two, and its controller, if it has one, makes another one",
        )
    if node.is_ready:
        return ()
    why = node.readiness_text or "its kubelet does not say why"
    return (
        f"its node {name} is not ready: {why}; `kubectl describe node {name}`. What "
        f"is shown of the pod may be out of date",
    )


def _cures_after_end(pod: ExplainedPod, asking: ClusterPod, now: Situation) -> tuple[str, ...]:
    if pod.status.phase == "Succeeded":
        return ()
    if pod.failed_by_itself:
        ran = f"-n {pod.metadata.namespace} {pod.metadata.name} -c {pod.failed_by_itself[0]}"
        return (f"it was not refused: it ran and failed, which `kubectl logs {ran}` may explain",)
    again = "delete it; its controller, if it has one, has made another one already"
    return (again,) if _fitting_nodes(now.verdicts) else (again, *_cures_for_room(now, asking))


def _cures_on_node(pod: ExplainedPod, *, holds: bool) -> tuple[str, ...]:
    is_pending = pod.status.phase == "Pending"
    if is_served(pod) or (holds and not is_pending):
        has = "it has what it asks of the cards; what it waits for is among what was said"
        return (f"{has}, or by `kubectl describe pod`",) if is_pending else ()
    return (
        f"it is bound and has no slice yet: look at the agent with `kubectl gpu doctor`, and at the "
        f"pod's Events with `kubectl describe pod` (the node is {pod.spec.node_name})",
    )


def _cures_for_room(now: Situation, asking: ClusterPod) -> tuple[str, ...]:
    """What to do where the pod fits on no node."""
    names, request, verdicts = few(sorted(asking.devices)), asking.request, now.verdicts
    if now.unlisted:
        return (
            f"ask somebody who may list nodes and pods to run this: what each node has for it is not "
            f"shown to you ({now.unlisted})",
        )
    if otherwise := _to_write_otherwise(asking):
        return (otherwise,)
    offered = offered_devices(now.nodes.values())
    if found := other_names(asking.devices, offered) or tuple(_to_make_room(verdicts)):
        return found
    if any(verdict.is_other_api for verdict in verdicts):
        return (_OTHER_API[request.allocation_api],)
    nowhere = "no node publishes cards: run `kubectl gpu doctor`"
    nowhere = _not_offered(asking.devices, offered) if names else nowhere
    return (_NEVER if verdicts else nowhere,)


def _to_write_otherwise(asking: ClusterPod) -> str:
    """How to ask for what no node gives, whatever is free; empty where one may."""
    whole = asking.devices.keys() - {HAMI.dropped}
    is_classic = asking.request.allocation_api is AllocationApi.DEVICE_PLUGIN
    is_both = bool(whole) and asking.request.asks and is_classic
    # To drop a name does not help a pod that asks for both all the same.
    hamis = HAMI.parts if is_both else (*HAMI.parts, HAMI.dropped)
    for whose, names in (("HAMi", hamis), ("Koordinator", KOORDINATOR.names)):
        if spoken := asking.devices.keys() & {*names}:
            return _TRANSLATE.format(whose, few(sorted(spoken)), whose.lower())
    if is_both:
        return (
            f"make two pods of it: a node gives slices or whole cards, never both, and this pod asks "
            f"for a slice and for {few(sorted(whole))}"
        )
    return ""


def _to_make_room(verdicts: Sequence[NodeVerdict]) -> Iterator[str]:
    """What would let nodes take the pod that may take it."""
    if how := few(verdict.cure for verdict in verdicts if verdict.cure):
        yield f"the cards have room, the node is closed to it: {how}"
    if lacking := [verdict for verdict in verdicts if verdict.lacks_room]:
        by_node = (
            "; its nodes' lines say what fits now" if any(each.hint for each in verdicts) else ""
        )
        is_too_large = all(verdict.is_too_large for verdict in lacking)
        meant = next((f"{each.if_in_mib}; else " for each in lacking if each.if_in_mib), "")
        larger = f"{meant}ask less, or add a node of larger cards: none has so many units"
        yield f"{larger if is_too_large else 'ask less, free a slice, or add a node'}{by_node}"
    if any(verdict.is_unreadable for verdict in verdicts):
        yield "run `kubectl gpu doctor`: it names the cure for nodes whose cards cannot be read"


def _not_offered(devices: Iterable[str], offered: Mapping[str, int]) -> str:
    asked = sorted(devices)
    if all(name == TOPOLOGY_GPU for name in asked):
        where = "nodes of mode topology would"
    elif all(name.startswith("nvidia.com/mig-") for name in asked):
        where = "nodes of mode default or mig would, whose cards are cut into such instances"
    else:
        where = "nodes of mode default or mig would offer nvidia.com/*"
    there = f"; nodes offer {few(sorted(offered))}" if offered else ""
    return f"no node with cards offers {few(asked)}{there}; {where}"


_SHOWN_EVENTS = 5
AGENT = "gpu-device-plugin"
_TO_THE_SECOND = len("2026-11-22T04:00:00")
_DISPUTED = (
    "its annotations of cards do not agree with its spec and do not count: "
    "what counts is what the node's agent says, else what the spec asks for"
)
_NO_EVENTS = "its Events are not shown to you: you may not list Events in this namespace"
_OF_CARDS = frozenset((*FIRST_GENERATION, *SECOND_GENERATION, DEVICES_ANNOTATION))
_NOTHING = "it asks for nothing of this plugin: no gpu-mem, no gpu-core.percentage, no card"


@dataclass(frozen=True, slots=True)
class PodStory:
    """All that is known of a pod.

    Attributes:
        state: Phase, node, reason and, for a pod without a slice, on how many nodes it fits, in one line.
        cures: What to do next.
        asks: One line a container.
        created: By whom, when, and how long ago; empty where that is not known.
        messages: What the scheduler, the kubelet or the agent said, the last one last.
        nodes: What each node has for it; empty for a pod that has its slice, or has had it.
    """

    pod: str
    state: str
    cures: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()


def creation_text(pod: ExplainedPod, now: datetime.datetime) -> tuple[str, ...]:
    """Who created a pod, when, and how long ago; empty where its metadata do not say."""
    owner, created = pod.metadata.owner, pod.metadata.creation_timestamp
    parts = [f"by {owner.kind} {owner.name}"] if owner and owner.name else []
    with suppress(ValueError):
        seconds = int((now - datetime.datetime.fromisoformat(created)).total_seconds())
        units = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
        unit, size = next(each for each in units if seconds >= each[1] or each[1] == 1)
        parts.append(f"{count_noun(max(0, seconds) // size, unit)} ago, {created}")
    return (", ".join(parts),) if parts else ()


def story(
    pod: ExplainedPod,
    events: Sequence[Event] | None,
    cards: ClusterCards,
    facts: Mapping[str, SurveyedNode],
    unlisted: str = "",
) -> PodStory:
    """What a pod asks, holds and was told, and, unless it has a slice, where it would fit.

    `events` is None where they may not be read; `unlisted` is why nodes and pods cannot be listed,
    else "".
    """
    pod = pod if pod.spec.node_name else _without_cards(pod)
    asking = pod.as_asking(koordinator_amounts(pod))
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    created = creation_text(pod, datetime.datetime.now(datetime.UTC))
    told = [event for event in events or () if event.is_about(pod) and not _is_past(event, pod)]
    unread = (_NO_EVENTS,) if events is None else ()
    messages = (*_event_lines(told), *_of_pod(pod, told), *unread)
    if asking is None:
        return PodStory(name, _state(pod), asks=(_NOTHING,), created=created, messages=messages)
    unit = next((n.offer.unit for n in cards.nodes if n.name == asking.node), None)
    unit = unit or next((n.offer.unit for n in cards.nodes), MemoryUnit.GIB)
    devices = (f"{device}: {count}" for device, count in sorted(asking.devices.items()))
    asks = (*_asks(pod, asking.request, unit), *devices)
    holds = () if pod.status.is_over else _holds(pod, asking, cards.nodes)
    is_past = pod.failed_by_itself or pod.status.phase == "Succeeded"
    needs_place = not (holds or is_served(pod) or is_past)
    nodes = node_verdicts(asking, pod, cards, facts) if needs_place else ()
    sick = () if pod.status.is_over else tuple(_unhealthy(asking, cards.nodes))
    now = Situation(nodes, facts, unlisted, bool(holds), bool(messages), sick)
    messages += tuple(
        f"node {node.name} serves by an older configuration: {node.offer.older_configuration}"
        for node in cards.nodes
        if node.offer.older_configuration and asking.node in {"", node.name}
    )[:_SHOWN_EVENTS]
    messages += () if believed_holds(asking.request, asking.annotations).is_all else (_DISPUTED,)
    steps = cures(pod, asking, now)
    state = _state(pod) + (", on an unhealthy card" if sick else _fits_text(pod, nodes))
    return PodStory(name, state, steps, asks, created, holds, messages, nodes)


def _fits_text(pod: ExplainedPod, nodes: Sequence[NodeVerdict]) -> str:
    """On how many of the nodes that were compared the pod fits; empty where none was."""
    fitting = sum(verdict.is_fit for verdict in nodes)
    now = " now" if pod.status.is_over else ""
    of = f"of {count_noun(len(nodes), 'node')} with cards"
    return f": fits{now} on {fitting} {of}" if nodes else ""


def _unhealthy(asking: ClusterPod, nodes: Iterable[NodeCards]) -> Iterator[str]:
    """The cards that are unhealthy and that a pod is on."""
    for node in (node for node in nodes if node.name == asking.node):
        for card in node.cards:
            if not card.is_healthy and asking.request.ref in node.pods_on(card):
                fault = card.fault or "no reason is told"
                yield (
                    f"card {card.index} of node {node.name} is unhealthy ({fault}), and the pod is "
                    f"on it: delete the pod, its controller makes another one, which goes to "
                    f"another card; then {fault_cure(fault_reason(card.fault))}"
                )


def _without_cards(pod: ExplainedPod) -> ExplainedPod:
    """An unbound pod without annotations of cards: a restored backup or `kubectl debug --copy-to` brought them."""
    own = {name: value for name, value in pod.annotations.items() if name not in _OF_CARDS}
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, annotations=own)
    )


def _state(pod: ExplainedPod) -> str:
    where = f"on node {pod.spec.node_name}" if pod.spec.node_name else "not bound to a node"
    reason = f" ({pod.status.reason})" if pod.status.reason else ""
    deleted = ", being deleted" if pod.metadata.deletion_timestamp else ""
    return f"{pod.status.phase or 'Unknown'}{reason}, {where}{deleted}"


def _is_past(event: Event, pod: ExplainedPod) -> bool:
    """Whether it says why a pod that runs now did not run yet.

    What the agent said when it admitted the pod, for instance of its annotations, stays true.
    """
    if pod.status.phase != "Running" or event.reporter == AGENT or not event.at:
        return False
    return event.at[:_TO_THE_SECOND] < (pod.status.start_time or "")[:_TO_THE_SECOND]


def event_line(event: Event) -> str:
    """An Event, for people."""
    reporter = event.reporter or "unknown"
    return f"{event.at} {reporter} {event.reason}: {_without_rpc(event.message)}"


def _event_lines(events: Sequence[Event]) -> list[str]:
    shown = [e for e in events if e.type == "Warning" or e.reporter == AGENT]
    own = [e for e in shown if not any(_wraps(e.message, other.message) for other in shown)]
    latest: dict[tuple[str, str], Event] = {}
    for event in own:  # the same words in a new Event say only when they were said last
        latest.pop((event.reason, event.message), None)
        latest[event.reason, event.message] = event
    return list(map(event_line, [*latest.values()][-_SHOWN_EVENTS:]))


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
    if request.allocation_api is AllocationApi.DRA:
        names = (claim.name for claim in pod.spec.resource_claims or ())
        found.append(f"through claims: {', '.join(names)}")
    return tuple(found)


def _holds(pod: SurveyedPod, asking: ClusterPod, nodes: Iterable[NodeCards]) -> tuple[str, ...]:
    """As its node counts it; of a node that is not known by its annotations, in units."""
    node, ref = next((n for n in nodes if n.name == pod.spec.node_name), None), asking.request.ref
    lines = held_lines(pod, node.cards if node else (), node.devices_of(ref) if node else None)
    hold = hold_of(asking.request, asking.annotations)
    counted_hold = next((h for h in node.holds if h.pod == ref), hold) if node else hold
    by_container = [(pod.spec.containers[c].name, s) for c, s in sorted(hold.by_container.items())]
    if counted_hold.by_card() != hold.by_card():
        # The agent names no containers, and the annotations other cards, or sizes of before a resize.
        asks = [each.name for each in asking.request.asking] or asking_containers(pod)
        by_container = [(few(asks) or "?", counted_hold.by_card())]
    by_index = {card.index: card for card in node.offer.cards} if node else {}
    for name, shares in by_container:
        for index, (units, percent) in sorted(shares.items()):
            card = by_index.get(index)
            size = count_noun(units, "unit")
            if card and node:
                size = f"{slice_mib(card, units, node.offer.unit)} MiB"
            compute = f", {percent} % of its compute" if percent else ""
            lines.append(f"container {name}: {size} of card {index}{compute}")
    told = (
        {each.enforcers for card in node.cards for each in card.holders if each.pod == ref}
        if node
        else ()
    )
    lines += [f"enforced: {text}" for text in told if text]
    return tuple(lines)
