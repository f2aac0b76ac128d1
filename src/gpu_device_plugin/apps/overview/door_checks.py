"""Whether nodes, namespaces and policies agree on the door of requests (docs/dra.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.finding import Finding, note, problem
from gpu_device_plugin.apps.overview.node_cards import NodeView
from gpu_device_plugin.apps.overview.wording import few
from gpu_device_plugin.cluster.survey_objects import SurveyedNode
from gpu_device_plugin.domain.doors import DOOR_LABEL, Door, parse_door

_SLICES_POLICY = "-slices"
_LABEL = f"{DOOR_LABEL}={Door.DRA}"


@dataclass(frozen=True, slots=True)
class DoorFacts:
    """What the API server has for claims; None where we may not read it, or it is not served.

    Attributes:
        namespaces: Namespaces whose label says that they use claims.
        templates: Namespaces that have the ResourceClaimTemplate.
        policies: Names of the MutatingAdmissionPolicies.
    """

    namespaces: frozenset[str] | None = None
    templates: frozenset[str] | None = None
    policies: frozenset[str] | None = None


def door_findings(
    facts: DoorFacts, nodes: Sequence[SurveyedNode], views: Sequence[NodeView]
) -> Iterator[Finding]:
    """What does not go together.

    Args:
        facts: The side of claims.
        nodes: All nodes.
        views: Those with cards.
    """
    by_name = {view.name: view for view in views if view.cards}
    for node in nodes:
        yield from _of_node(node, by_name.get(node.metadata.name))
    giving = [view.name for view in by_name.values() if _gives_by_claims(view)]
    if facts.namespaces is not None:
        yield from _of_namespaces(facts.namespaces, giving, facts)


def _of_node(node: SurveyedNode, view: NodeView | None) -> Iterator[Finding]:
    name, label = node.metadata.name, node.labels.get(DOOR_LABEL)
    if label is None or view is None:
        return
    asked = parse_door(label)
    if asked is None:
        known = " or ".join(Door)
        yield problem(
            f"node {name}: the label {DOOR_LABEL}={label} names no door",
            f"kubectl label node {name} --overwrite {DOOR_LABEL}=DOOR, which is {known}",
        )
    elif asked is Door.DRA and not _gives_by_claims(view):
        yield problem(
            f"node {name} asks for claims ({_LABEL}), and its agent serves the device plugin",
            f"kubectl describe node {name}: the Event DoorNotAvailable says why (docs/dra.md)",
        )
    elif asked is Door.DEVICE_PLUGIN and view.offer.by_claims:
        yield note(
            f"node {name} goes back to the device plugin; claims still have "
            f"{len(view.offer.by_claims)} of its {len(view.cards)} cards",
            "each card follows when the last claim on it has ended",
        )


def _of_namespaces(
    labelled: frozenset[str], giving: Sequence[str], facts: DoorFacts
) -> Iterator[Finding]:
    if labelled and not giving:
        yield problem(
            f"namespaces use claims, and no node gives cards by them: {few(sorted(labelled))}",
            f"kubectl label node NODE {_LABEL}; until then their pods stay Pending",
        )
    if giving and not labelled:
        yield note(
            f"nodes give their cards by claims, and no namespace uses them: {few(giving)}",
            f"kubectl label namespace NAMESPACE {_LABEL} (docs/dra.md)",
        )
    if missing := labelled - (labelled if facts.templates is None else facts.templates):
        yield problem(
            f"namespaces use claims and have no template for them: {few(sorted(missing))}",
            "name them in the chart's value dra.namespaces; until then their pods stay Pending",
        )
    if unused := (facts.templates or frozenset()) - labelled:
        yield note(
            f"namespaces have the template for claims and not the label: {few(sorted(unused))}",
            f"kubectl label namespace NAMESPACE {_LABEL}; until then they use the device plugin",
        )
    policies = facts.policies
    if labelled and policies is not None and not any(map(_makes_claims, policies)):
        yield problem(
            f"namespaces use claims, and no policy makes them: {few(sorted(labelled))}",
            "set the chart's value dra.enabled",
        )


def _gives_by_claims(view: NodeView) -> bool:
    return len(view.offer.by_claims) == len(view.cards)


def _makes_claims(policy: str) -> bool:
    return policy.endswith(_SLICES_POLICY)
