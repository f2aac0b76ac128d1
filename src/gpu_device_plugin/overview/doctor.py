"""What is wrong with an installation, each with its cure."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.cards.fault_cures import fault_cure
from gpu_device_plugin.domain.grants.node_annotations import UNINSTALL_ANNOTATION, fault_reason
from gpu_device_plugin.domain.node.allocation_api import (
    ALLOCATION_API_LABEL,
    AllocationApi,
    parse_allocation_api,
)
from gpu_device_plugin.domain.node.labels import kept_away
from gpu_device_plugin.domain.node.modes import MODE_LABEL, NodeMode, is_served, is_whole
from gpu_device_plugin.domain.wording import count_noun, few
from gpu_device_plugin.kubernetes.objects.agent_set import AgentSet
from gpu_device_plugin.kubernetes.objects.survey_objects import Event, SurveyedNode, SurveyedPod
from gpu_device_plugin.overview.finding import Finding, Level, logs_cure, note, problem
from gpu_device_plugin.overview.node_cards import CardView, ClusterCards, NodeCards, asking_of
from gpu_device_plugin.overview.placing_parts import placing_findings

_COMPONENT = "gpu-device-plugin"
_RECOVERED, _IS_OVER = "Recovered", "Over"  # a reason with this end says that a fault has ended
_ENDS = {
    "ModeSwitched": ("ModeSwitchRefused", "UnknownMode"),
    "UnitSwitched": ("UnitSwitchRefused",),
    "AllocationApiSwitched": ("AllocationApiSwitchRefused",),
    "WithdrawalEnded": ("WithdrawalWaits",),
}
_TOLD = {"RunDirectoryShared", "XidsNotGiven"}  # nothing is wrong, and it can be better
_CARD_TEXT = re.compile(r"^(?:card \d+ \()?((?:GPU|MIG)-[^\s:)]+)\)?: ")
_LABEL_TEXT = re.compile(r"label ([^\s=]+)=(\S*) ")
_SLICES_POLICY = "-slices"
_OFFERED_AS = ("aliyun.com/gpu", "nvidia.com/")
_LABEL = f"{ALLOCATION_API_LABEL}={AllocationApi.DRA}"


@dataclass(frozen=True, slots=True)
class Installation:
    """What is examined.

    Attributes:
        node_events: Events about nodes, the oldest first.
        policies: Names of the admission policies; None where we may not list them.
        runtime_classes: Names of the RuntimeClasses; None as above.
        by_claims: Namespaces with the label for claims; None as above.
        templates: Namespaces with the template for claims; None also where they are not served.
        claim_policies: Names of the policies that make claims; None as above.
        unexamined: What we have no right to list.
    """

    version: str
    sets: Sequence[AgentSet]
    nodes: Sequence[SurveyedNode]
    pods: Sequence[SurveyedPod]
    cards: ClusterCards
    node_events: Sequence[Event] | None = ()
    policies: frozenset[str] | None = None
    runtime_classes: frozenset[str] | None = None
    by_claims: frozenset[str] | None = None
    templates: frozenset[str] | None = None
    claim_policies: frozenset[str] | None = None
    unexamined: Sequence[str] = ()

    @property
    def agents(self) -> list[SurveyedPod]:
        return [pod for pod in self.pods if pod.agent is not None]


def findings(facts: Installation) -> tuple[Finding, ...]:
    """Everything that is wrong, problems first."""
    placing = placing_findings(facts.pods, facts.sets or facts.agents)
    found = [*placing, *(f for check in _CHECKS for f in check(facts))]
    return tuple(sorted(found, key=lambda finding: finding.level is Level.NOTE))


def _not_installed(facts: Installation) -> Iterator[Finding]:
    if facts.sets or facts.agents or DAEMON_SETS in facts.unexamined:
        return
    unserved = _unserved(facts)
    offering = [view.name for view in facts.cards.nodes if view.name not in unserved]
    if offering:
        yield note(
            f"no DaemonSet and no pod runs the agent, and nodes offer their cards: {few(offering)}",
            "agents outside of pods are not examined: read their logs on these nodes",
        )
    else:
        cure = "install the chart, or choose another --context"
        yield problem("no DaemonSet runs the agent in this cluster", cure)
    if unserved:
        yield problem(
            f"nodes publish cards, and no agent serves them: {few(unserved)}",
            "start the agent there"
            + ("" if offering else ", or remove what it left: gpu-device-plugin clear-nodes"),
        )


def _unserved(facts: Installation) -> Sequence[str]:
    """Nodes that publish cards of which their kubelets have nothing to give."""
    nodes = {node.metadata.name: node.status.allocatable or {} for node in facts.nodes}
    return [
        view.name
        for view in facts.cards.nodes
        if not view.offer.is_by_claims
        and not any(
            name.startswith(_OFFERED_AS) and str(amount) != "0"
            for name, amount in nodes[view.name].items()
        )
    ]


def _not_ready(facts: Installation) -> Iterator[Finding]:
    served = {pod.spec.node_name for pod in facts.agents}
    away = {node.metadata.name: node for node in facts.nodes if not node.is_ready}
    for name, node in away.items():
        if name in served:
            yield problem(
                f"node {name} is not ready: {node.readiness_text or 'its kubelet does not say why'}",
                f"kubectl describe node {name}; its agent is seen again when the kubelet reports",
            )
    for pod in facts.agents:
        is_away = pod.spec.node_name in away
        if not pod.is_ready and not is_away and pod.metadata.owner_uid:
            name = f"-n {pod.metadata.namespace} {pod.metadata.name}"
            text = pod.condition("Ready").message or pod.status.message or pod.status.phase
            yield problem(
                f"the agent of node {pod.spec.node_name or '(none yet)'} is not ready: {text}",
                logs_cure(name, pod.condition("Initialized").message, pod.annotations),
            )


def _missing(facts: Installation) -> Iterator[Finding]:
    served = {pod.spec.node_name for pod in facts.agents}
    lacking: dict[str, list[str]] = {}
    for node in facts.nodes if facts.sets or facts.agents else ():
        name, away = node.metadata.name, kept_away(node.labels)
        is_asking = MODE_LABEL in node.labels or any(s.looks_for(node.labels) for s in facts.sets)
        if name not in served and (is_asking or (away and name in facts.cards.names)):
            lacking.setdefault(away, []).append(name)
    for away, names in lacking.items():
        if away:
            until = "when the label is `true` again the agent comes back by itself"
            yield note(f"no agent runs on {few(names)}: {away}", until)
    if "" in lacking:
        yield problem(
            f"no agent runs on nodes whose labels ask for one: {few(lacking[''])}",
            "compare the chart's nodeSelector, affinity and tolerations with these nodes' labels "
            "and taints",
        )
    elif facts.sets and not facts.agents and not lacking:
        sets = (f"{each.metadata.namespace}/{each.metadata.name}" for each in facts.sets)
        yield problem(
            f"no node runs an agent of DaemonSet {few(sets)}",
            f"label the nodes with cards: kubectl label node NODE {MODE_LABEL}=MODE",
        )


def _silent(facts: Installation) -> Iterator[Finding]:
    published = set(facts.cards.names)
    for pod in facts.agents:
        if pod.is_ready and pod.spec.node_name not in published:
            yield note(
                f"node {pod.spec.node_name} publishes no cards, though its agent is ready",
                f"its mode (label {MODE_LABEL}) may offer nothing; else see the agent's log",
            )


def _unreadable(facts: Installation) -> Iterator[Finding]:
    for name, why in facts.cards.unreadable.items():
        yield problem(
            f"the cards of node {name} cannot be read: {why}",
            "use a kubectl gpu of the agents' version",
        )


def _versions(facts: Installation) -> Iterator[Finding]:
    images = Counter(pod.agent.image for pod in facts.agents if pod.agent)
    if len(images) > 1:
        yield problem(
            "the agents run different images: "
            + ", ".join(f"{image} ({count})" for image, count in sorted(images.items())),
            "wait for the rollout (kubectl rollout status daemonset), or find the pod that stops it",
        )
    for each in facts.sets:
        if each.version not in ("", facts.version):
            yield note(
                f"DaemonSet {each.metadata.namespace}/{each.metadata.name} is of version "
                f"{each.version}, this program of {facts.version}",
                "install the same version of both: one may not understand what the other writes",
            )


def _cards(facts: Installation) -> Iterator[Finding]:
    reported = _reports(facts)
    for view in facts.cards.nodes:
        for card in view.cards:
            if not card.is_healthy:
                found = (e.message for e in reported if _is_of_card(e, view.name, card))
                fault, pods = f": {card.fault}" if card.fault else "", view.pods_on(card)
                on_it = f"; pods on it: {few(map(str, pods))}" if pods else ""
                cure = "; ".join(_CARD_TEXT.sub("", text) for text in found)
                cure = cure or fault_cure(fault_reason(card.fault))
                yield problem(
                    f"card {card.index} ({card.uuid}) of node {view.name} is unhealthy{fault}{on_it}",
                    f"delete its pods, which go elsewhere; then {cure}" if pods else cure,
                )
    if len(units := {view.unit_mib for view in facts.cards.nodes}) > 1:
        yield note(
            f"nodes count in different memory units: {few(f'{unit} MiB' for unit in sorted(units))}",
            f"give pods a nodeSelector ({MODE_LABEL}), for the same amount means different sizes",
        )


def _idle_modes(facts: Installation) -> Iterator[Finding]:
    idle = [view.name for view in facts.cards.nodes if not is_served(view.offer.mode)]
    if idle:
        cure = f"kubectl label node NODE --overwrite {MODE_LABEL}=MODE"
        yield problem(f"nodes have a mode that is not served, and offer nothing: {few(idle)}", cure)


def _enforcers(facts: Installation) -> Iterator[Finding]:
    """Notes on who holds the memory of slices to its limit, by node."""
    nodes: dict[str, list[str]] = {}
    for view in facts.cards.nodes:
        for text in sorted({card.memory_by for card in view.cards if card.memory_by}):
            nodes.setdefault(text, []).append(view.name)
    for text, names in sorted(nodes.items()):
        held = "there are" if text.startswith("no slices") else "memory of new slices is held by"
        yield note(f"{held} {text} on {few(names)}", "")


def _older_configurations(facts: Installation) -> Iterator[Finding]:
    """Nodes whose configuration cannot be read as it is now."""
    for view in facts.cards.nodes:
        if view.offer.older_configuration:
            yield problem(
                f"node {view.name} serves by an older configuration: {view.offer.older_configuration}",
                "mend the file that is named; the agent reads it again within seconds",
            )


def _other_plugins(facts: Installation) -> Iterator[Finding]:
    # Where whole cards are offered, NVIDIA's names are our own, and beside fractions those of MIG
    # instances may be: there the agent itself reports another plugin. A node that is disabled is
    # the other plugin's (docs/tasks/moving-in.md).
    giving = [view for view in facts.cards.nodes if view.offer.mode is not NodeMode.DISABLED]
    fractional = {view.name for view in giving if not is_whole(view.offer.mode)}
    for node in facts.nodes:
        for name, amount in sorted((node.status.allocatable or {}).items()):
            is_other = name.startswith("nvidia.com/gpu") and str(amount) != "0"
            if is_other and node.metadata.name in fractional:
                yield problem(
                    f"node {node.metadata.name} offers {name}: {amount} of another plugin as well",
                    "keep NVIDIA's plugin (and a DRA driver) off this node: both would give away "
                    "the same cards",
                )


def _allocation_apis(facts: Installation) -> Iterator[Finding]:
    """Whether nodes, namespaces and policies agree on the API of requests (docs/dra.md)."""
    by_name = {view.name: view for view in facts.cards.nodes if view.cards}
    for node in facts.nodes:
        yield from _of_node(node, by_name.get(node.metadata.name))
    giving = [view.name for view in by_name.values() if view.offer.is_by_claims]
    if facts.by_claims is not None:
        yield from _of_namespaces(facts.by_claims, giving, facts)


def _of_node(node: SurveyedNode, view: NodeCards | None) -> Iterator[Finding]:
    name, label = node.metadata.name, node.labels.get(ALLOCATION_API_LABEL)
    if label is None or view is None:
        return
    asked = parse_allocation_api(label)
    if asked is None:
        known = " or ".join(AllocationApi)
        yield problem(
            f"node {name}: the label {ALLOCATION_API_LABEL}={label} is not a known allocation API",
            f"kubectl label node {name} --overwrite {ALLOCATION_API_LABEL}=API, which is {known}",
        )
    elif asked is AllocationApi.DRA and not view.offer.is_by_claims:
        yield problem(
            f"node {name} asks for claims ({_LABEL}), and its agent serves the device plugin",
            f"kubectl describe node {name}: the Event AllocationApiNotAvailable or "
            f"AllocationApiSwitchRefused says why",
        )
    elif asked is AllocationApi.DEVICE_PLUGIN and view.offer.is_by_claims:
        yield note(
            f"node {name} is to go back to the device plugin, and waits until no claims hold its cards",
            f"kubectl cordon {name}, and drain it; then it switches by itself",
        )


def _of_namespaces(
    labelled: frozenset[str], giving: Sequence[str], facts: Installation
) -> Iterator[Finding]:
    if labelled and not giving:
        yield problem(
            f"namespaces use claims, and no node gives cards by them: {few(sorted(labelled))}",
            f"kubectl label node NODE {_LABEL}; until then their pods stay Pending",
        )
    if giving and not labelled:
        yield note(
            f"nodes give their cards by claims, and no namespace uses them: {few(giving)}",
            f"kubectl label namespace NAMESPACE {_LABEL}",
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
    policies = facts.claim_policies
    if labelled and policies is not None and not any(p.endswith(_SLICES_POLICY) for p in policies):
        yield problem(
            f"namespaces use claims, and no policy makes them: {few(sorted(labelled))}",
            "set the chart's value dra.enabled",
        )


DAEMON_SETS = "DaemonSets"
_NO_POLICY = "the API server admits pods that every node refuses"


def _policies(facts: Installation) -> Iterator[Finding]:
    for each in facts.sets if facts.policies is not None else ():
        if not any(name.startswith(each.metadata.name) for name in facts.policies or ()):
            yield note(
                f"no admission policy of {each.metadata.name} is there: {_NO_POLICY}",
                "set the chart's value policies.enabled, or apply daemonset/ again",
            )


def _runtime_classes(facts: Installation) -> Iterator[Finding]:
    known = facts.runtime_classes
    for each in facts.sets if known is not None else ():
        if each.runtime_class and each.runtime_class not in (known or ()):
            yield problem(
                f"the agents ask for RuntimeClass {each.runtime_class}, which does not exist",
                "create it (NVIDIA's container toolkit), or unset the chart's runtimeClassName",
            )


def _marks(facts: Installation) -> Iterator[Finding]:
    # A mark of an earlier DaemonSet means nothing.
    uids = {each.metadata.uid for each in facts.sets}
    marked = [n for n in facts.nodes if n.annotations.get(UNINSTALL_ANNOTATION) in uids]
    if marked:
        yield problem(
            "nodes are marked for uninstalling and offer nothing: "
            + few(node.metadata.name for node in marked),
            f"to keep the plugin: kubectl annotate nodes --all {UNINSTALL_ANNOTATION}-",
        )


def _reports(facts: Installation) -> Sequence[Event]:
    """What agents have reported as Events of their nodes, and have not said to be over."""
    nodes = {node.metadata.name: node for node in facts.nodes}  # an Event outlives its node
    last: dict[tuple[str, str, str], Event] = {}
    for event in facts.node_events or ():
        if event.reporter != _COMPONENT or event.about not in nodes:
            continue
        label = _LABEL_TEXT.match(event.message)
        if label and nodes[event.about].labels.get(label[1]) != label[2]:
            continue  # the node has another one since
        if event.type == "Warning" or event.reason in _TOLD:
            last[event.about, event.reason, _card(event)] = event
        else:
            last = {key: each for key, each in last.items() if not _ends(event, each)}
    return [event for _, event in sorted(last.items())]


def _node_events(facts: Installation) -> Iterator[Finding]:
    """Those that are not the cure of a card's problem, nor what `_idle_modes` says."""
    sick = [(v.name, card) for v in facts.cards.nodes for card in v.cards if not card.is_healthy]
    for event in (each for each in _reports(facts) if each.reason != "ModeNotServedYet"):
        if not any(_is_of_card(event, name, card) for name, card in sick):
            text = f"node {event.about} reported {event.reason} at {event.at}: {event.message}"
            yield note(text, f"kubectl gpu explain {event.reason}")


def _is_of_card(event: Event, node: str, card: CardView) -> bool:
    """Whether it tells why the card is unhealthy, alone or with all of the node's."""
    uuid, reason = _card(event), fault_reason(card.fault)
    return event.about == node and (uuid == card.uuid if uuid else event.reason == reason)


def _ends(good: Event, bad: Event) -> bool:
    """Whether an Event says that what another one reported is over."""
    ended = _ENDS.get(good.reason, (good.reason.removesuffix(_IS_OVER),))
    is_of_reason = (good.reason == _RECOVERED and bad.reason not in _TOLD) or bad.reason in ended
    return is_of_reason and good.about == bad.about and _card(good) == _card(bad)


def _card(event: Event) -> str:
    """The UUID of the card that it is about, or ""."""
    return found[1] if (found := _CARD_TEXT.match(event.message)) else ""


def _refused(facts: Installation) -> Iterator[Finding]:
    served = {view.name for view in facts.cards.nodes}
    asking = [
        pod
        for pod in facts.pods
        if pod.status.reason == "UnexpectedAdmissionError"
        and pod.spec.node_name in served
        and asking_of(pod)
    ]
    if asking:
        first = asking[-1].metadata
        yield note(
            f"refused at admission: {count_noun(len(asking), 'pod')}",
            f"kubectl gpu why {first.name} -n {first.namespace}",
        )


def _unexamined(facts: Installation) -> Iterator[Finding]:
    if facts.unexamined:
        yield note(
            f"not examined, because you may not list them: {few(facts.unexamined)}",
            "ask somebody who may list them to run this, or for that right",
        )


_CHECKS: Sequence[Callable[[Installation], Iterable[Finding]]] = (
    _not_installed,
    _not_ready,
    _missing,
    _silent,
    _unreadable,
    _versions,
    _cards,
    _idle_modes,
    _enforcers,
    _older_configurations,
    _other_plugins,
    _runtime_classes,
    _marks,
    _allocation_apis,
    _policies,
    _node_events,
    _refused,
    _unexamined,
)
