"""What to do for a pod, by what is seen of it and of each node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.verdicts import NodeVerdict
from gpu_device_plugin.apps.overview.wording import few
from gpu_device_plugin.cluster.cluster_watch import ClusterPod
from gpu_device_plugin.cluster.survey_objects import ExplainedPod, SurveyedNode
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.holdings import DEVICES_ANNOTATION, TOPOLOGY_GPU
from gpu_device_plugin.domain.schemes.aliyun.annotations import ASSIGNED

_ASK_LESS = "ask less, free a slice, or add a node"
_NEVER = "no node takes the pod as it is: change the pod as said above, or the mode of a node"
_FITS_ABOVE = "; what fits now is said above"
_NO_SLICE_YET = (
    "it is bound and has no slice yet: look at the agent with `kubectl gpu doctor`, and at the "
    "pod's Events with `kubectl describe pod` (the node is {node})"
)
_HAS_ITS_SLICE = "it has what it asks of the cards; what it waits for is said above, or by `kubectl describe pod`"
_FAILED_BY_ITSELF = (
    "it was not refused: it ran and failed, which `kubectl logs -n {namespace} {pod} -c "
    "{container}` may explain"
)
_AGAIN = "delete it; its controller, if it has one, has made another one already"
_ELSEWHERE = (
    "by its cards it fits on {nodes}: what keeps it away is something else (CPU, memory, taints, "
    "affinity), which the scheduler names above"
)
_NO_SCHEDULER = (
    "by its cards it fits on {nodes}, and no scheduler has spoken of it: does one run that serves "
    "schedulerName {scheduler}?"
)
_GATED = "no scheduler takes it before its scheduling gates are removed: {gates}"
_DELETED = (
    "it is being deleted, so no scheduler takes it; what keeps it is in its metadata.finalizers"
)
_OPEN = "the cards have room, the node is closed to it: {how}"
_UNREADABLE = "run `kubectl gpu doctor`: it names the cure for nodes whose cards cannot be read"
_NOT_BOTH = (
    "make two pods of it: a node gives slices or whole cards, never both, and this pod asks for a "
    "slice and for {names}"
)
_NO_CARDS = "no node publishes cards: run `kubectl gpu doctor`"
_UNLISTED = (
    "ask somebody who may list nodes and pods to run this: what each node has for it is not shown to "
    "you ({why})"
)
_NODE_GONE = (
    "its node {node} is not in the cluster: the control plane deletes the pod after a minute or two, "
    "and its controller, if it has one, makes another one"
)
_NODE_AWAY = (
    "its node {node} is not ready: {why}; `kubectl describe node {node}`. What is said above is from "
    "before"
)
_OTHER_DOOR = {
    Door.DEVICE_PLUGIN: "label the pod's namespace gpu-device-plugin/door=dra and create the pod "
    "again, or a node gpu-device-plugin/door=device-plugin (docs/dra.md)",
    Door.DRA: "label a node gpu-device-plugin/door=dra; or take that label off the pod's namespace and "
    "create the pod again (docs/dra.md)",
}


def is_served(pod: ExplainedPod) -> bool:
    """Whether the agent says that the pod has what it asks of the cards."""
    has_slice = pod.annotations.get(ASSIGNED) == "true"
    return not pod.is_over and (has_slice or DEVICES_ANNOTATION in pod.annotations)


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a pod beside what it asks.

    Attributes:
        verdicts: What each node has for it; empty where it needs no place.
        nodes: All nodes, by name.
        unlisted: Why nodes and pods cannot be listed, so that both are empty; else "".
        holds: Whether it holds anything, or a scheduler has reserved it.
        has_been_told: Whether anybody has said anything of it.
    """

    verdicts: Sequence[NodeVerdict]
    nodes: Mapping[str, SurveyedNode]
    unlisted: str
    holds: bool
    has_been_told: bool


def cures(pod: ExplainedPod, asking: ClusterPod, now: Situation) -> tuple[str, ...]:
    """What to do next.

    Args:
        pod: The pod.
        asking: What it asks.
        now: How it stands.
    """
    verdicts = now.verdicts
    if pod.is_over:
        return _over(pod, asking, now)
    if pod.spec.node_name:
        return _of_node(pod.spec.node_name, now) or _bound(pod, holds=now.holds)
    if pod.metadata.deletion_timestamp:
        return (_DELETED,)
    names = few(gate.name for gate in pod.spec.scheduling_gates or ())
    gated = (_GATED.format(gates=names),) if names else ()
    fitting = _fitting(verdicts)
    if not fitting:
        return (*gated, *_lacking(now, asking))
    why = _ELSEWHERE if now.has_been_told else _NO_SCHEDULER
    return gated or (why.format(nodes=fitting, scheduler=pod.spec.scheduler_name),)


def _fitting(verdicts: Iterable[NodeVerdict]) -> str:
    return few(verdict.node for verdict in verdicts if verdict.is_fit)


def _of_node(name: str, now: Situation) -> tuple[str, ...]:
    """What is wrong with the node that the pod is bound to."""
    if now.unlisted:
        return ()
    node = now.nodes.get(name)
    if node is None:
        return (_NODE_GONE.format(node=name),)
    why = node.readiness_text or "its kubelet does not say why"
    return () if node.is_ready else (_NODE_AWAY.format(node=name, why=why),)


def _over(pod: ExplainedPod, asking: ClusterPod, now: Situation) -> tuple[str, ...]:
    """A pod that has ended."""
    if pod.status.phase == "Succeeded":
        return ()
    if pod.failed_by_itself:
        meta, container = pod.metadata, pod.failed_by_itself[0]
        ran = {"namespace": meta.namespace, "pod": meta.name, "container": container}
        return (_FAILED_BY_ITSELF.format(**ran),)
    return (_AGAIN,) if _fitting(now.verdicts) else (_AGAIN, *_lacking(now, asking))


def _bound(pod: ExplainedPod, *, holds: bool) -> tuple[str, ...]:
    """A pod that is on a node and has not ended."""
    is_pending = pod.status.phase == "Pending"
    if is_served(pod) or (holds and not is_pending):
        return (_HAS_ITS_SLICE,) if is_pending else ()
    return (_NO_SLICE_YET.format(node=pod.spec.node_name),)


def _lacking(now: Situation, asking: ClusterPod) -> tuple[str, ...]:
    """What to do where the pod fits on no node."""
    names, request, verdicts = few(sorted(asking.devices)), asking.request, now.verdicts
    if now.unlisted:
        return (_UNLISTED.format(why=now.unlisted),)
    if names and request.asks and request.door is Door.DEVICE_PLUGIN:
        return (_NOT_BOTH.format(names=names),)
    if found := tuple(_to_make_room(verdicts)):
        return found
    if any(verdict.is_other_door for verdict in verdicts):
        return (_OTHER_DOOR[request.door],)
    nowhere = _not_offered(asking.devices) if names else _NO_CARDS
    return (_NEVER if verdicts else nowhere,)


def _to_make_room(verdicts: Sequence[NodeVerdict]) -> Iterator[str]:
    """What would let nodes take the pod that may take it."""
    if how := few(verdict.opens for verdict in verdicts if verdict.opens):
        yield _OPEN.format(how=how)
    if any(verdict.lacks_room for verdict in verdicts):
        yield _ASK_LESS + (_FITS_ABOVE if any(each.hint for each in verdicts) else "")
    if any(verdict.is_unreadable for verdict in verdicts):
        yield _UNREADABLE


def _not_offered(devices: Iterable[str]) -> str:
    """No node has these."""
    asked = sorted(devices)
    if all(name == TOPOLOGY_GPU for name in asked):
        where = "nodes of mode topology would"
    elif all(name.startswith("nvidia.com/mig-") for name in asked):
        where = "nodes of mode default or mig would, whose cards are cut into such instances"
    else:
        where = "nodes of mode default or mig would offer nvidia.com/*"
    return f"no node with cards offers {few(asked)}; {where} (docs/node-modes.md, docs/nvidia.md)"
