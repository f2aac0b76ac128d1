"""What is wrong with an installation, each with its cure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.apps.overview.cluster_cards import ClusterCards
from gpu_device_plugin.apps.overview.door_checks import DoorFacts, door_findings
from gpu_device_plugin.apps.overview.finding import Finding, Level, problem
from gpu_device_plugin.apps.overview.node_reports import node_reports
from gpu_device_plugin.apps.overview.wording import few
from gpu_device_plugin.cluster.survey import AgentSet
from gpu_device_plugin.cluster.survey_objects import Event, SurveyedNode, SurveyedPod
from gpu_device_plugin.domain.annotations import UNINSTALL_ANNOTATION
from gpu_device_plugin.domain.counted import counted
from gpu_device_plugin.domain.modes import MODE_LABEL, NodeMode, is_whole
from gpu_device_plugin.errors import ClusterError

DAEMON_SETS = "DaemonSets"
_NO_POLICY = "the API server admits pods that every node refuses"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is examined.

    Attributes:
        version: Of this program.
        sets: The DaemonSets of agents.
        nodes: All nodes.
        pods: All pods.
        cards: The nodes with cards.
        node_events: Events about nodes.
        policies: Names of the admission policies; None where we may not list them.
        runtime_classes: Names of the RuntimeClasses; None as above.
        doors: What the API server has for claims.
        unexamined: What we have no right to list.
    """

    version: str
    sets: Sequence[AgentSet]
    nodes: Sequence[SurveyedNode]
    pods: Sequence[SurveyedPod]
    cards: ClusterCards
    node_events: Sequence[Event] = ()
    policies: frozenset[str] | None = None
    runtime_classes: frozenset[str] | None = None
    doors: DoorFacts = field(default_factory=DoorFacts)
    unexamined: Sequence[str] = ()

    @property
    def agents(self) -> list[SurveyedPod]:
        """The agents' pods."""
        return [pod for pod in self.pods if pod.agent is not None]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Everything that is wrong, problems first."""
    is_installed = bool(facts.sets or facts.agents or DAEMON_SETS in facts.unexamined)
    checks = _CHECKS if is_installed else (_not_installed, _unreadable, _unexamined)
    found = [finding for check in checks for finding in check(facts)]
    return tuple(sorted(found, key=lambda finding: finding.level is Level.NOTE))


def _not_installed(_: Facts) -> Iterator[Finding]:
    cure = "install the chart (docs/install.md), or choose another --context"
    yield problem("no DaemonSet runs the agent in this cluster", cure)


def _not_ready(facts: Facts) -> Iterator[Finding]:
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
                f"kubectl describe pod {name}; kubectl logs {name}",
            )


def _missing(facts: Facts) -> Iterator[Finding]:
    served = {pod.spec.node_name for pod in facts.agents}
    lacking = [n.metadata.name for n in facts.nodes if _is_meant(n, facts.sets)]
    lacking = [name for name in lacking if name not in served]
    if lacking:
        yield problem(
            f"no agent runs on nodes whose labels ask for one: {few(lacking)}",
            "compare the chart's nodeSelector, affinity and tolerations with these nodes' labels "
            "and taints",
        )
    elif facts.sets and not facts.agents:
        names = (f"{each.metadata.namespace}/{each.metadata.name}" for each in facts.sets)
        yield problem(
            f"no node runs an agent of DaemonSet {few(names)}",
            f"label the nodes with cards: kubectl label node NODE {MODE_LABEL}=MODE",
        )


def _is_meant(node: SurveyedNode, sets: Iterable[AgentSet]) -> bool:
    return MODE_LABEL in node.labels or any(each.looks_for(node.labels) for each in sets)


def _silent(facts: Facts) -> Iterator[Finding]:
    published = {view.name for view in facts.cards.nodes} | {n for n, _ in facts.cards.unreadable}
    for pod in facts.agents:
        if pod.is_ready and pod.spec.node_name not in published:
            yield Finding(
                Level.NOTE,
                f"node {pod.spec.node_name} publishes no cards, though its agent is ready",
                f"its mode (label {MODE_LABEL}) may offer nothing; else see the agent's log",
            )


def _unreadable(facts: Facts) -> Iterator[Finding]:
    for name, why in facts.cards.unreadable:
        yield problem(
            f"the cards of node {name} cannot be read: {why}",
            "use a kubectl gpu of the agents' version",
        )


def _versions(facts: Facts) -> Iterator[Finding]:
    images = Counter(pod.agent.image for pod in facts.agents if pod.agent)
    if len(images) > 1:
        yield problem(
            "the agents run different images: "
            + ", ".join(f"{image} ({count})" for image, count in sorted(images.items())),
            "wait for the rollout (kubectl rollout status daemonset), or find the pod that stops it",
        )
    for each in facts.sets:
        if each.version not in ("", facts.version):
            yield Finding(
                Level.NOTE,
                f"DaemonSet {each.metadata.namespace}/{each.metadata.name} is of version "
                f"{each.version}, this program of {facts.version}",
                "install the same version of both; what one writes the other may not know",
            )


def _cards(facts: Facts) -> Iterator[Finding]:
    for view in facts.cards.nodes:
        for card in view.cards:
            if not card.is_healthy:
                yield problem(
                    f"card {card.index} ({card.uuid}) of node {view.name} is out of service",
                    f"kubectl describe node {view.name} names the fault; docs/operations.md, XIDs",
                )
    units = {view.unit_mib for view in facts.cards.nodes}
    if len(units) > 1:
        yield Finding(
            Level.NOTE,
            f"nodes count in different memory units: {few(f'{unit} MiB' for unit in sorted(units))}",
            f"give pods a nodeSelector ({MODE_LABEL}), for the same amount means different sizes",
        )


def _node_events(facts: Facts) -> Iterator[Finding]:
    nodes = {node.metadata.name: node for node in facts.nodes}
    yield from node_reports(facts.node_events, nodes)


def _other_plugins(facts: Facts) -> Iterator[Finding]:
    # Where whole cards are offered, NVIDIA's names are our own, and beside fractions those of MIG
    # instances may be: there the agent itself reports another plugin. A node that is disabled is
    # the other plugin's (docs/moving-in.md).
    giving = [view for view in facts.cards.nodes if view.offer.mode is not NodeMode.DISABLED]
    ours = {view.name for view in giving if not is_whole(view.offer.mode)}
    for node in facts.nodes:
        for name, amount in sorted((node.status.allocatable or {}).items()):
            is_other = name.startswith("nvidia.com/gpu") and str(amount) != "0"
            if is_other and node.metadata.name in ours:
                yield problem(
                    f"node {node.metadata.name} offers {name}: {amount} of another plugin beside ours",
                    "keep NVIDIA's plugin (and a DRA driver) off this node: both would give away "
                    "the same cards",
                )


def _policies(facts: Facts) -> Iterator[Finding]:
    for each in facts.sets if facts.policies is not None else ():
        if not any(name.startswith(each.metadata.name) for name in facts.policies or ()):
            yield Finding(
                Level.NOTE,
                f"no admission policy of {each.metadata.name} is there: {_NO_POLICY}",
                "set the chart's value policies.enabled, or apply daemonset/ again",
            )


def _runtime_classes(facts: Facts) -> Iterator[Finding]:
    known = facts.runtime_classes
    for each in facts.sets if known is not None else ():
        if each.runtime_class and each.runtime_class not in (known or ()):
            yield problem(
                f"the agents ask for RuntimeClass {each.runtime_class}, which does not exist",
                "create it (NVIDIA's container toolkit), or unset the chart's runtimeClassName",
            )


def _marks(facts: Facts) -> Iterator[Finding]:
    # A mark of an earlier DaemonSet means nothing.
    uids = {each.metadata.uid for each in facts.sets}
    marked = [n for n in facts.nodes if n.annotations.get(UNINSTALL_ANNOTATION) in uids]
    if marked:
        yield problem(
            "nodes are marked for uninstalling and offer nothing: "
            + few(node.metadata.name for node in marked),
            f"to keep the plugin: kubectl annotate nodes --all {UNINSTALL_ANNOTATION}-",
        )


def _refused(facts: Facts) -> Iterator[Finding]:
    served = {view.name for view in facts.cards.nodes}
    asking = [
        pod
        for pod in facts.pods
        if pod.status.reason == "UnexpectedAdmissionError"
        and pod.spec.node_name in served
        and _asks_us(pod)
    ]
    if asking:
        first = asking[-1].metadata
        yield Finding(
            Level.NOTE,
            f"refused at their start: {counted(len(asking), 'pod')}",
            f"kubectl gpu why {first.name} -n {first.namespace}",
        )


def _asks_us(pod: SurveyedPod) -> bool:
    """Whether it asks for a resource of this plugin, so that another's refusal is not counted."""
    try:
        return pod.as_asking() is not None
    except ClusterError:
        return False


def _doors(facts: Facts) -> Iterator[Finding]:
    yield from door_findings(facts.doors, facts.nodes, facts.cards.nodes)


def _unexamined(facts: Facts) -> Iterator[Finding]:
    if facts.unexamined:
        yield Finding(
            Level.NOTE,
            f"not examined, for want of the right to list them: {few(facts.unexamined)}",
            "ask somebody who may list them to run this, or for that right (docs/kubectl.md)",
        )


_CHECKS: Sequence[Callable[[Facts], Iterable[Finding]]] = (
    _not_ready,
    _missing,
    _silent,
    _unreadable,
    _versions,
    _cards,
    _other_plugins,
    _runtime_classes,
    _marks,
    _doors,
    _policies,
    _node_events,
    _refused,
    _unexamined,
)
