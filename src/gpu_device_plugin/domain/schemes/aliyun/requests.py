"""What a container may ask for: the rules about the pod spec and the node's mode."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import (
    MODE_LABEL,
    PLACEMENT_ANNOTATION,
    NodeMode,
    PlacementPolicy,
    parse_policy,
)
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.modes import resources_of
from gpu_device_plugin.domain.schemes.aliyun.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.domain.shares import Demand
from gpu_device_plugin.errors import RequestError

COUNT_LABEL = "aliyun.com/gpu-count"
"""The pod label that spreads each request over several cards; also the name of a resource."""
CARD_LABEL = "ack.gpushare.placement"
"""The pod label that asks for an otherwise empty card."""
WHOLE_CARD = "require-whole-device"
CORE_STEP_PERCENT = 5
_MEMORY_ONLY_CURE = (
    f"or send the pod elsewhere with nodeSelector {MODE_LABEL}: {NodeMode.CGPU} (or share)"
)
_COUNT_CURE = (
    f'for M cards set the pod\'s label {COUNT_LABEL}: "M" and nodeSelector '
    f"{MODE_LABEL}: {NodeMode.CGPU}; for one card ask nothing but {Resource.MEM}"
)
_COUNT_TEXT = "failed to parse request device count from pod label aliyun.com/gpu-count"
_NEGATIVE_TEXT = "request device count must be large than 0"


def demand(pod: PodRequest, container: ContainerRequest, terms: NodeTerms) -> Demand:
    """What `container` needs on a node of these terms.

    Every container of the pod is checked, init containers too. The kubelet rejects the whole pod,
    so an error in a later container is reported at once instead of after some grants.

    Raises:
        RequestError: A container asks for what this node never gives; the text names pod,
            container, node, amount, rule and cure.
    """
    for each in pod.containers:
        if each.asks:
            _checked(pod, each, terms)
    return _checked(pod, container, terms)


def demand_ahead(pod: PodRequest, container: ContainerRequest, needed: Demand) -> Demand:
    """What the card of `container` needs free, with the containers that reuse its units.

    The kubelet hands an ordinary init container's units on to the containers after it, which can
    then be on no other card: a card without room for them would have the pod refused.
    """
    held = dict.fromkeys((Resource.MEM, Resource.CORE), 0)
    reusable = dict(held)
    for each in pod.containers[pod.containers.index(container) :]:
        if each is not container and not any(reusable.values()):
            break
        for resource in held:
            reused = min(reusable[resource], each.amount(resource))
            fresh = each.amount(resource) - reused
            held[resource] += fresh
            reusable[resource] += fresh if each.kind is ContainerKind.INIT else -reused
    return replace(needed, mem_units=held[Resource.MEM], core_percent=held[Resource.CORE])


def wants_whole_card(pod: PodRequest | None) -> bool:
    """Whether no other pod may be on this one's cards (R-528)."""
    return pod is not None and pod.card_label == WHOLE_CARD


def policy_of(pod: PodRequest | None, default: PlacementPolicy) -> PlacementPolicy:
    """How a pod's cards are chosen: by its annotation, else the node's way.

    Raises:
        RequestError: The annotation names no policy.
    """
    asked = pod.placement if pod else None
    policy = default if asked is None else parse_policy(asked)
    if policy is None:
        raise RequestError(
            f"pod {pod.ref if pod else ''}: annotation {PLACEMENT_ANNOTATION}={asked} names no policy. "
            f"Known: {', '.join(PlacementPolicy)}",
            reason="UnknownPlacement",
        )
    return policy


def demand_from_size(pod: PodRef, resource: str, size: int, terms: NodeTerms) -> Demand:
    """The demand that a call shows by itself, while the pod spec is not known.

    The container's other resource is unknown and counts as 0, and a label for several cards cannot
    be seen. The rules that need the pod spec are checked when the container starts.

    Raises:
        RequestError: No pod may ask this of this node; the text names pod, node, amount and rule.
    """
    subject = f"pod {pod} on node {terms.node} (mode {terms.mode})"
    asked = asked_text(resource, size, terms.unit)
    if resource == Resource.COUNT:
        raise _count_refusal(f"{subject} asks {asked}")
    if resource not in resources_of(terms.mode):
        raise RequestError(
            f"{subject} asks {asked}: this mode does not serve it", reason="WrongMode"
        )
    if resource == Resource.CORE:
        _check_percentage(f"{subject} asks {asked}", size)
        return Demand(mem_units=0, core_percent=size)
    return Demand(mem_units=size)


def asked_text(resource: str, amount: int, unit: MemoryUnit) -> str:
    """An amount of a resource with its unit, for people.

    >>> asked_text(Resource.MEM, 2, MemoryUnit.GIB)
    'aliyun.com/gpu-mem: 2 (units of 1024 MiB)'
    >>> asked_text(Resource.CORE, 30, MemoryUnit.GIB)
    'aliyun.com/gpu-core.percentage: 30 (percent of one card)'
    """
    meanings: Mapping[str, str] = {
        Resource.MEM: f"units of {unit.mib} MiB",
        Resource.CORE: "percent of one card",
        Resource.COUNT: "cards",
    }
    meaning = meanings.get(resource)
    return f"{resource}: {amount} ({meaning})" if meaning else f"{resource}: {amount}"


def _checked(pod: PodRequest, container: ContainerRequest, terms: NodeTerms) -> Demand:
    asked = " and ".join(
        asked_text(resource, container.amount(resource), terms.unit)
        for resource in Resource
        if container.amount(resource)
    )
    subject = (
        f"pod {pod.ref}, container {container.name}, on node {terms.node} "
        f"(mode {terms.mode}) asks {asked}"
    )
    if container.amount(Resource.COUNT):
        raise _count_refusal(subject)
    _check_mode(subject, container, terms)
    if container.amount(Resource.CORE):
        _check_percentage(subject, container.amount(Resource.CORE))
    cards = _cards(subject, pod, terms)
    if container.amount(Resource.MEM) % cards:
        quotient = container.amount(Resource.MEM) / cards
        raise RequestError(
            f"{subject}: invalid replica for resource {Resource.MEM},because "
            f"{container.amount(Resource.MEM)} / {cards} = {quotient:.1f}; with label "
            f"{COUNT_LABEL}={cards} ask a multiple of {cards}",
            reason="UnevenShare",
        )
    if pod.card_label not in (None, WHOLE_CARD):
        raise RequestError(
            f"{subject}: label {CARD_LABEL}={pod.card_label} names no placement. Known: {WHOLE_CARD}",
            reason="UnknownPlacement",
        )
    amounts = container.amount(Resource.MEM), container.amount(Resource.CORE)
    return Demand(*amounts, cards, is_exclusive=wants_whole_card(pod))


def _check_mode(subject: str, container: ContainerRequest, terms: NodeTerms) -> None:
    offered = resources_of(terms.mode)
    if not offered:
        raise RequestError(
            f"{subject}: this mode serves no shared cards; choose a node with nodeSelector "
            f"{MODE_LABEL}: {_wanted_mode(container)}",
            reason="WrongMode",
        )
    if container.amount(Resource.CORE) and Resource.CORE not in offered:
        raise RequestError(
            f"{subject}: this mode does not divide compute; set nodeSelector "
            f"{MODE_LABEL}: {NodeMode.CORE_MEM}, or ask nothing but {Resource.MEM}",
            reason="ComputeNotServed",
        )
    if not container.amount(Resource.MEM):
        raise RequestError(
            f"{subject}: compute goes with memory of the same card; ask {Resource.MEM} as well",
            reason="ComputeWithoutMemory",
        )
    if Resource.CORE in offered and not container.amount(Resource.CORE):
        raise RequestError(
            f"{subject}: this mode takes no container without compute; ask "
            f"{Resource.CORE} (5, 10, ... 100) as well, {_MEMORY_ONLY_CURE}",
            reason="MemoryOnly",
        )


def _wanted_mode(container: ContainerRequest) -> NodeMode:
    return NodeMode.CORE_MEM if container.amount(Resource.CORE) else NodeMode.CGPU


def _check_percentage(subject: str, percent: int) -> None:
    if not 0 < percent <= CORE_UNITS_PER_CARD or percent % CORE_STEP_PERCENT:
        below = min(max(percent // CORE_STEP_PERCENT * CORE_STEP_PERCENT, 5), CORE_UNITS_PER_CARD)
        raise RequestError(
            f"{subject}: the percentage must be one of 5, 10, ... 100 (a multiple of 5, at most "
            f"one card); ask for instance {below}",
            reason="BadPercentage",
        )


def _count_refusal(subject: str) -> RequestError:
    return RequestError(
        f"{subject}: {Resource.COUNT} is counted on nodes but cannot be asked for; {_COUNT_CURE}",
        reason="CountRequested",
    )


def _cards(subject: str, pod: PodRequest, terms: NodeTerms) -> int:
    label = pod.card_count_label
    if label is None:
        return 1
    digits = label.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise RequestError(
            f'{subject}: {_COUNT_TEXT}: "{label}" is no whole number; {_COUNT_CURE}',
            reason="BadCardCount",
        )
    count = int(label)
    if count < 0:
        raise RequestError(
            f"{subject}: {_NEGATIVE_TEXT}, label {COUNT_LABEL}={label}; {_COUNT_CURE}",
            reason="BadCardCount",
        )
    if count and terms.mode is NodeMode.CORE_MEM:
        raise RequestError(
            f"{subject}: label {COUNT_LABEL}={label} does not go with divided compute; set "
            f"nodeSelector {MODE_LABEL}: {NodeMode.CGPU}, or remove the label",
            reason="SeveralCardsOfCompute",
        )
    return max(1, count)
