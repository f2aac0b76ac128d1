"""Messages between kube-scheduler and its extenders (kube-scheduler's extender API, v1).

Go writes these fields by their own names. Nodes that come as whole objects are returned as the
bytes that came. What cannot be read is a ClusterError whose text names what is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.wire import Pod, PodSpec
from gpu_device_plugin.kubernetes.objects.pod_spec import scheduled_request


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Meta(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


class _Affinity(msgspec.Struct):
    preferred: list[msgspec.Raw] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _Affinities(msgspec.Struct, rename="camel"):
    node_affinity: _Affinity | None = None
    pod_affinity: _Affinity | None = None
    pod_anti_affinity: _Affinity | None = None


class _Spread(msgspec.Struct, rename="camel"):
    when_unsatisfiable: str = ""


class _AskedSpec(PodSpec):
    affinity: _Affinities | None = None
    topology_spread_constraints: list[_Spread] | None = None

    @property
    def has_preferences(self) -> bool:
        """Whether kube-scheduler scores nodes by what it says."""
        of = self.affinity or _Affinities()
        spreads = self.topology_spread_constraints or ()
        return any(
            each and each.preferred
            for each in (of.node_affinity, of.pod_affinity, of.pod_anti_affinity)
        ) or any(spread.when_unsatisfiable == "ScheduleAnyway" for spread in spreads)


class _AskedPod(Pod):
    spec: _AskedSpec = msgspec.field(default_factory=_AskedSpec)


class _Args(msgspec.Struct, rename="pascal"):
    pod: _AskedPod
    nodes: _NodeList | None = None
    node_names: list[str] | None = None


class _BindingArgs(msgspec.Struct):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct, rename="pascal"):
    pods: list[_MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(msgspec.Struct, rename="pascal"):
    pods: list[_Named] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionArgs(msgspec.Struct, rename="pascal"):
    pod: Pod
    node_name_to_victims: dict[str, _Victims] | None = None
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None


class _PreemptionResult(msgspec.Struct, rename="pascal"):
    node_name_to_meta_victims: dict[str, _MetaVictims]


class _Result(msgspec.Struct, rename="pascal", omit_defaults=True):
    nodes: _NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: msgspec.Raw | None = None
    failed_and_unresolvable_nodes: msgspec.Raw | None = None
    error: str = ""


class _Error(msgspec.Struct, rename="pascal"):
    error: str


_args = msgspec.json.Decoder(_Args)
_binding = msgspec.json.Decoder(_BindingArgs)
_preemption = msgspec.json.Decoder(_PreemptionArgs)
_node = msgspec.json.Decoder(_Named)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Question:
    """Which of these nodes are for this pod? `objects` has their own bytes by name, if these came.

    The pod `has_preferences` of its own: affinity that is preferred, or a spread that is soft.
    """

    pod: PodRequest
    has_preferences: bool
    names: Sequence[str]
    objects: Mapping[str, msgspec.Raw] | None


@dataclass(frozen=True, slots=True)
class Victims:
    """Uids that kube-scheduler would evict from a node, and how many budgets that breaks."""

    uids: Sequence[str]
    budgets_broken: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """Which of these nodes would have room for this pod after its victims?"""

    pod: PodRequest
    victims: Mapping[str, Victims]


class PodBinding(NamedTuple):
    """Bind this pod to this node."""

    pod: PodRef
    node: str


def read_question(body: bytes) -> Question:
    """The body of a filter or prioritize call."""
    try:
        args = _args.decode(body)
        objects = None
        if args.node_names is None:
            items = (args.nodes.items if args.nodes else None) or []
            objects = {_node.decode(item).metadata.name: item for item in items}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterError(f"the body is no ExtenderArgs: {error}") from error
    return Question(
        pod=scheduled_request(args.pod),
        has_preferences=args.pod.spec.has_preferences,
        names=args.node_names if args.node_names is not None else list(objects or {}),
        objects=objects,
    )


def read_binding(body: bytes) -> PodBinding:
    """The body of a bind call."""
    try:
        args = _binding.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterError(f"the body is no ExtenderBindingArgs: {error}") from error
    return PodBinding(PodRef(args.pod_namespace, args.pod_name, args.pod_uid), args.node)


def read_preemption(body: bytes) -> Preemption:
    """The body of a preempt call, with names only or with whole pods."""
    try:
        args = _preemption.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterError(f"the body is no ExtenderPreemptionArgs: {error}") from error
    victims = {
        name: Victims([each.metadata.uid for each in found.pods or ()], found.num_pdb_violations)
        for name, found in (args.node_name_to_victims or {}).items()
    } or {
        name: Victims([each.uid for each in found.pods or ()], found.num_pdb_violations)
        for name, found in (args.node_name_to_meta_victims or {}).items()
    }
    return Preemption(scheduled_request(args.pod), victims)


def preemption_answer(victims: Mapping[str, Victims]) -> bytes:
    """The answer to a preempt call: the nodes on which evicting these helps."""
    told = {
        name: _MetaVictims([_MetaPod(uid) for uid in found.uids], found.budgets_broken)
        for name, found in victims.items()
    }
    return _encoder.encode(_PreemptionResult(told))


def filter_answer(
    question: Question, kept: Sequence[str], failed: Iterable[tuple[str, bool, Sequence[str]]]
) -> bytes:
    """The answer to a filter call: nodes that stay, and why others do not.

    Names or whole objects as in the question; `failed` has why, whether that is so whatever is
    evicted, and whom it is for.
    """
    told: tuple[list[bytes], list[bytes]] = ([], [])
    for why, is_final, names in failed:
        told[is_final].extend(_each(names, b"", b":" + _encoder.encode(why)))
    not_now, never = (msgspec.Raw(b"{%b}" % b",".join(each)) if each else None for each in told)
    result = _Result(failed_nodes=not_now, failed_and_unresolvable_nodes=never)
    if question.objects is None:
        result.node_names = list(kept)
    else:
        result.nodes = _NodeList([question.objects[name] for name in kept])
    return _encoder.encode(result)


def _each(names: Sequence[str], before: bytes, after: bytes) -> list[bytes]:
    """The names as JSON, each between these two, separated by commas; none of no names.

    Thousands have the same text. `","` stands in no name: in one, a quote has a backslash before it.
    """
    between = b'"' + after + b"," + before + b'"'
    return [before + _encoder.encode(names)[1:-1].replace(b'","', between) + after] if names else []


def filter_error(text: str) -> bytes:
    """The answer to a filter call that failed as a whole."""
    return _encoder.encode(_Result(error=text))


def priorities(scores: Iterable[tuple[int, Sequence[str]]]) -> bytes:
    """The answer to a prioritize call: scores of 0 to 10, and the nodes that have each."""
    told: list[bytes] = []
    for score, names in scores:
        told += _each(names, b'{"Host":', b',"Score":%d}' % score)
    return b"[%b]" % b",".join(told)


def binding_answer(error: str) -> bytes:
    """The answer to a bind call; an empty error is success."""
    return _encoder.encode(_Error(error))
