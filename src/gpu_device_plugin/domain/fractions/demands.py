"""Demands: what each container of a pod spec needs of the cards, once `request_rules` has let it pass.

What a claim asks for stands in its name in the pod: `slice-<units>-<percent>[-x<cards>]-<c or i><index>`.
The chart's policies make these names of a container's classic request (docs/dra.md).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.request_rules import WHOLE_CARD, Ask, Known, check
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import ContainerDemand, Demand, UnitsAndPercent
from gpu_device_plugin.domain.node.modes import PLACEMENT_ANNOTATION, PlacementPolicy, parse_policy
from gpu_device_plugin.domain.node.pods import ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import RequestError

COUNT_LABEL = "aliyun.com/gpu-count"
"""The pod label that spreads each request over several cards; also the name of a resource."""
CARD_LABEL = "ack.gpushare.placement"
"""The pod label that asks for an otherwise empty card."""


def demands(pod: PodRequest, terms: NodeTerms) -> list[ContainerDemand]:
    """What each container that asks needs on a node of these terms, in the order of the spec.

    Every container of the pod is checked once, init containers too. The kubelet rejects the whole
    pod, so an error in a later container is reported at once instead of after some grants.

    RequestError: A container asks for what this node never gives; the text names pod, container, node,
    amount, rule and cure.
    """
    asking = pod.asking
    return [ContainerDemand(each, _check(pod, each, terms, len(asking))) for each in asking]


def demand(pod: PodRequest, container: ContainerRequest, terms: NodeTerms) -> Demand:
    """What `container` alone needs, of a pod whose every container is checked, as `demands` does."""
    found = demands(pod, terms)
    return _check(pod, container, terms, len(found))


def amounts_of(container: ContainerRequest) -> UnitsAndPercent:
    """What a container asks for, over all its cards."""
    return UnitsAndPercent(Units(container.amount(Resource.MEM)), container.amount(Resource.CORE))


def wants_whole_card(pod: PodRequest | None) -> bool:
    """Whether no other pod may be on this one's cards (R-528)."""
    return pod is not None and pod.card_label == WHOLE_CARD


def policy_of(pod: PodRequest | None, default: PlacementPolicy) -> PlacementPolicy:
    """How a pod's cards are chosen: by its annotation, else the node's way; RequestError for an unknown policy."""
    asked = pod.placement if pod else None
    policy = default if asked is None else parse_policy(asked)
    if policy is None:
        raise RequestError(
            f"pod {pod.ref if pod else ''}: annotation {PLACEMENT_ANNOTATION}={asked} is not a known policy. "
            f"Known: {', '.join(PlacementPolicy)}",
            reason="UnknownPlacement",
        )
    return policy


def demand_from_size(pod: PodRef, resource: str, size: int, terms: NodeTerms) -> Demand:
    """The demand that a call shows by itself, while the pod spec is not known.

    The container's other resource is unknown and counts as 0, and a label for several cards cannot
    be seen. The rules that need the pod spec are checked when the container starts.

    RequestError: No pod may ask this of this node; the text names pod, node, amount and rule.
    """
    asked = asked_text(resource, size, terms.unit)
    subject = f"pod {pod} on node {terms.node} (mode {terms.mode}) asks {asked}"
    ask = Ask(Known.SIZE, subject, terms.mode, {resource: size})
    check(ask)
    return Demand(ask.mem, ask.core)


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
    meaning = f" ({meanings[resource]})" if resource in meanings else ""
    return f"{resource}: {amount}{meaning}"


def _check(
    pod: PodRequest, container: ContainerRequest, terms: NodeTerms, containers: int
) -> Demand:
    asked = " and ".join(
        asked_text(resource, container.amount(resource), terms.unit)
        for resource in Resource
        if container.amount(resource)
    )
    subject = (
        f"pod {pod.ref}, container {container.name}, on node {terms.node} "
        f"(mode {terms.mode}) asks {asked}"
    )
    labels = pod.card_count_label, pod.card_label
    ask = Ask(Known.SPEC, subject, terms.mode, container.amounts, *labels, containers=containers)
    check(ask)
    return Demand(ask.mem, ask.core, ask.cards, is_exclusive=wants_whole_card(pod))


TEMPLATE = "gpu-slice"
"""The ResourceClaimTemplate of every such claim."""
_NAME = re.compile(
    r"slice-(?P<units>[1-9][0-9]{0,8})-(?P<percent>0|[1-9][0-9]?|100)"
    r"(?:-x(?P<cards>[1-9][0-9]?))?-(?P<kind>[ci])(?P<index>[0-9]{1,4})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ClaimShape:
    """What a rewritten container asked for: units over all cards, percent of one card's compute (0: none)."""

    units: Units
    percent: int
    is_app: bool
    index: int


_REQUEST = re.compile(r"container-([0-9]{1,3})-request-[0-9]{1,3}", re.ASCII)


def requesting_container(request: str) -> int | None:
    """The position of a request that kube-scheduler names, among init containers and then the others.

    >>> requesting_container("container-1-request-0")
    1
    """
    found = _REQUEST.fullmatch(request)
    return int(found[1]) if found else None


def parse_claim_name(name: str) -> ClaimShape | None:
    """The shape that a name tells; None for any other name.

    >>> parse_claim_name("slice-8-0-x2-i1")
    ClaimShape(units=8, percent=0, is_app=False, index=1)
    >>> parse_claim_name("slice-8-7k-c0")
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    units, percent, index = Units(int(found["units"])), int(found["percent"]), int(found["index"])
    return ClaimShape(units, percent, found["kind"] == "c", index)
