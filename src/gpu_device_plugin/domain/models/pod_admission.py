"""What a pod's labels ask of model and driver, and what the webhook makes of it (R-001 to R-008).

Profiles are labels and annotations that an operator gives to pods by their labels (R-610 to R-614); the rules
are those of the ConfigMap `kube-system/acs-profile`. Selectors match as Kubernetes' own label selectors do.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, Catalogue, Series
from gpu_device_plugin.domain.node.labels import ACS_DRIVER_LABEL
from gpu_device_plugin.errors import ConfigError, clip


class Operator(Enum):
    """How a key's value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES = (Operator.IN, Operator.NOT_IN)


@dataclass(frozen=True, slots=True)
class Expression:
    """One entry of `matchExpressions`; ConfigError if operator and values do not go together."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.key:
            raise ConfigError("an expression has no key")
        if bool(self.values) != (self.operator in _WITH_VALUES):
            needs = "needs values" if self.operator in _WITH_VALUES else "takes no values"
            raise ConfigError(f"expression on {self.key}: {self.operator.value} {needs}")

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it; `NotIn` holds where the key is absent."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """`matchLabels` and `matchExpressions`; all of them have to hold, and an empty one matches all.

    Source:
        k8s.io/apimachinery, `LabelSelector`.
    """

    labels: Mapping[str, str]
    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            expression.holds(labels) for expression in self.expressions
        )


Values = Mapping[str, str]

_LONGEST_NAME, _LONGEST_PREFIX = 63, 253
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """One entry of `selectors`: which namespaces and pods, by their labels (None is every one), get what."""

    name: str
    namespaces: LabelSelector | None = None
    pods: LabelSelector | None = None
    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)

    def selects(self, pod: Values, namespace: Values) -> bool:
        """Whether it applies to a pod with these labels in a namespace with those."""
        return (self.pods is None or self.pods.matches(pod)) and (
            self.namespaces is None or self.namespaces.matches(namespace)
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """What the rules add to one pod; `source` has the name of the rule of each label."""

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    source: Values = field(default_factory=dict)


def check_rules(rules: Sequence[ProfileRule]) -> None:
    """Raise ConfigError, with its place, for a rule without name or with a label that Kubernetes does not take.

    The API server would refuse every pod that the rule selects.
    """
    for place, rule in enumerate(rules):
        if not rule.name:
            raise ConfigError(f"selectors[{place}]: name is empty")
        for key, value in rule.labels.items():
            if not (is_label_key(key) and (not value or _is_name(value))):
                raise ConfigError(
                    f"selectors[{place}]: {clip(key)!r}: {clip(value)!r} cannot be a label"
                )
        for key in rule.annotations:
            # Kubernetes checks these in lower case.
            if not is_label_key(key.lower()):
                raise ConfigError(
                    f"selectors[{place}]: {clip(key)!r} cannot be the key of an annotation"
                )


def is_label_key(text: str) -> bool:
    """Whether Kubernetes takes it as the key of a label."""
    prefix, slash, name = text.rpartition("/")
    is_prefix = len(prefix) <= _LONGEST_PREFIX and _PREFIX.fullmatch(prefix) is not None
    return _is_name(name) and (not slash or is_prefix)


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def effect_of(
    rules: Sequence[ProfileRule], labels: Values, annotations: Values, namespace: Values
) -> Effect:
    """What all rules that select a pod add to it, in their order.

    Nothing is overwritten: the pod's own value counts first, then the first rule's. Rules select
    by the labels that the pod came with, not by those that an earlier rule adds.
    """
    new_labels: dict[str, str] = {}
    new_annotations: dict[str, str] = {}
    source: dict[str, str] = {}
    for rule in rules:
        if not rule.selects(labels, namespace):
            continue
        for key, value in rule.labels.items():
            if key not in labels and key not in new_labels:
                new_labels[key], source[key] = value, rule.name
        for key, value in rule.annotations.items():
            if key not in annotations:
                new_annotations.setdefault(key, value)
    return Effect(new_labels, new_annotations, source)


Json = Mapping[str, object]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def require(affinity: Json | None, labels: Mapping[str, str]) -> Json:
    """The same affinity, and a node with each of these labels besides.

    Terms are alternatives, so each of them gets the requirement. One without any expression
    matches no node and stays as it is: with an expression it would match some. What is required
    already is not repeated.

    `labels` has the value of each; of a driver with open kernel modules its version will do too.
    """
    affinity = affinity or {}
    node = _object(affinity.get("nodeAffinity"))
    required = _object(node.get(_REQUIRED))
    terms = [_object(term) for term in _list(required.get("nodeSelectorTerms"))]
    expressions = [
        {"key": key, "operator": "In", "values": _alike(key, value)}
        for key, value in sorted(labels.items())
    ]
    new = [_with(term, expressions) for term in terms] or [{"matchExpressions": expressions}]
    changed = {**required, "nodeSelectorTerms": new}
    return {**affinity, "nodeAffinity": {**node, _REQUIRED: changed}}


def required_value(affinity: Json | None, label: str) -> str:
    """The one value of a label that every alternative requires, or "" if there is no such."""
    node = _object((affinity or {}).get("nodeAffinity"))
    terms = _list(_object(node.get(_REQUIRED)).get("nodeSelectorTerms"))
    found = {_value(_object(term), label) for term in terms}
    return found.pop() if len(found) == 1 else ""


def admits(affinity: Json | None, label: str, value: str) -> bool:
    """Whether an alternative leaves room for nodes whose label has this value.

    Terms that match no node at all are passed over; operators that compare numbers count as open.
    """
    node = _object((affinity or {}).get("nodeAffinity"))
    terms = map(_object, _list(_object(node.get(_REQUIRED)).get("nodeSelectorTerms")))
    whole = [term for term in terms if term.get("matchExpressions") or term.get("matchFields")]
    return not whole or any(_admits(term, label, value) for term in whole)


def _admits(term: Json, label: str, value: str) -> bool:
    for expression in map(_object, _list(term.get("matchExpressions"))):
        if expression.get("key") != label:
            continue
        is_named = value in _list(expression.get("values"))
        refused = {"In": not is_named, "NotIn": is_named, "DoesNotExist": True}
        if refused.get(str(expression.get("operator")), False):
            return False
    return True


def _with(term: Json, expressions: Sequence[Json]) -> Json:
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return term
    before = _list(term.get("matchExpressions"))
    return {**term, "matchExpressions": [*before, *(e for e in expressions if e not in before)]}


def _value(term: Json, label: str) -> str:
    for expression in map(_object, _list(term.get("matchExpressions"))):
        values = _list(expression.get("values"))
        is_one = expression.get("operator") == "In" and len(values) == 1
        if expression.get("key") == label and is_one:
            return str(values[0])
    return ""


def _alike(key: str, value: str) -> list[str]:
    """Values of a node's label that will do for a pod's."""
    is_open = key == DRIVER_LABEL and value.endswith(_OPEN)
    return [value, value.removesuffix(_OPEN)] if is_open else [value]


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


CLASS_LABEL = "alibabacloud.com/compute-class"
DRIVER_LABEL = ACS_DRIVER_LABEL
GPU_CLASSES = ("gpu", "gpu-hpn")
_OPEN = "-open"
"""The suffix of a driver with open kernel modules. NVML names its version alone, and so do the labels of nodes."""
_LABEL, _SELECTOR = "label", "the pod's node selector"
OTHER_CLASSES = ("general-purpose", "performance")
_UNKNOWN_CLASS = (
    f"{CLASS_LABEL} {{!r}} is no class that a model or driver can be asked for with. "
    f"Known: {', '.join((*GPU_CLASSES, *OTHER_CLASSES))}"
)
MOST_AFFINITY_BYTES = 256 * 1024
"""Bytes of the affinity of a pod that asks: thousands of terms. Judging and repeating megabytes would hold up every other pod."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """The parts of a pod that decide; `namespace` are its namespace's labels.

    `affinity` is `spec.affinity`, or None; also where it is too long.
    """

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    namespace: Values = field(default_factory=dict)
    node_selector: Values = field(default_factory=dict)
    affinity: Json | None = None
    affinity_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is added to a pod; the new `spec.affinity`, or None to leave it as it is."""

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    affinity: Json | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Why a pod is refused, for people."""

    text: str


def admit(
    pod: Applicant, rules: Sequence[ProfileRule], catalogue: Catalogue, *, needs_model: bool = True
) -> Admitted | Denied:
    """Add what the profile says, check model and driver, and require nodes that have both.

    Precedence of a driver: the pod's own label, its node selector or node affinity, the profile, the
    default of the series (R-617). What a pod asks of nodes itself is respected: a profile's driver or
    a default that no such node has is left out, and a label that contradicts it is refused.
    A pod without a class is treated as one of class `gpu`, which needs a model only where the class
    is named (R-002) and `needs_model`; other classes keep their affinity, and get what the profile says.
    """
    effect = effect_of(rules, pod.labels, pod.annotations, pod.namespace)
    labels = {**pod.labels, **effect.labels}
    asks = MODEL_LABEL in labels or DRIVER_LABEL in labels
    compute_class = labels.get(CLASS_LABEL, GPU_CLASSES[0] if asks else "")
    if compute_class not in GPU_CLASSES:
        if asks and compute_class not in OTHER_CLASSES:
            return Denied(_UNKNOWN_CLASS.format(clip(compute_class)))
        return Admitted(effect.labels, effect.annotations)
    if pod.affinity_bytes > MOST_AFFINITY_BYTES:
        return Denied(
            f"spec.affinity has {pod.affinity_bytes} bytes; with a model or a driver it may have "
            f"{MOST_AFFINITY_BYTES}"
        )
    model, wrong = _model(pod, labels, catalogue, needs_model=needs_model)
    driver, wrong_driver = _driver(pod, model, effect, catalogue)
    if wrong or wrong_driver:
        return Denied(wrong or wrong_driver)
    wanted = {MODEL_LABEL: model.name if model is not None else "", DRIVER_LABEL: driver}
    wanted = {key: value for key, value in wanted.items() if value}
    affinity = require(pod.affinity, wanted) if wanted else None
    added = {key: value for key, value in effect.labels.items() if key != DRIVER_LABEL}
    if driver and DRIVER_LABEL not in pod.labels:
        added[DRIVER_LABEL] = driver
    changed = affinity if affinity != (pod.affinity or {}) else None
    return Admitted(added, effect.annotations, changed)


def _driver(
    pod: Applicant, model: Series | None, effect: Effect, catalogue: Catalogue
) -> tuple[str, str]:
    """The driver that is required and told by label, or ""; and what is wrong with it, or ""."""
    own = pod.labels.get(DRIVER_LABEL)
    if own is not None:
        wrong = _wrong_driver(model, own, effect, catalogue)
        return own, wrong or _contradiction(pod, DRIVER_LABEL, own)
    by_node = _by_node(pod, DRIVER_LABEL)
    if by_node:
        # The nodes' own labels decide, which come from NVML: the catalogue need not know it.
        return "", _contradiction(pod, DRIVER_LABEL, by_node, _SELECTOR)
    of_profile = effect.labels.get(DRIVER_LABEL)
    if of_profile is not None and _allows(pod, DRIVER_LABEL, of_profile):
        return of_profile, _wrong_driver(model, of_profile, effect, catalogue)
    default = model.default if model is not None else ""
    return (default if _allows(pod, DRIVER_LABEL, default) else ""), ""


def _by_node(pod: Applicant, key: str) -> str:
    """The one value that the pod's node selector or affinity asks of a node, or ""."""
    return pod.node_selector.get(key) or required_value(pod.affinity, key)


def _allows(pod: Applicant, key: str, value: str) -> bool:
    """Whether node selector and affinity leave nodes whose label has this value, or one that will do."""
    return any(
        pod.node_selector.get(key, each) == each and admits(pod.affinity, key, each)
        for each in _alike(key, value)
    )


def _contradiction(pod: Applicant, key: str, value: str, who: str = _LABEL) -> str:
    """Why no node has what the pod asks for, or ""."""
    if _allows(pod, key, value):
        return ""
    by_node = _by_node(pod, key)
    other = f"{clip(by_node)!r}" if by_node not in ("", value) else "other values"
    what = f"label {key} says" if who == _LABEL else f"{who} says {key}"
    where = "node selector or affinity" if who == _LABEL else "node affinity"
    return f"{what} {clip(value)!r}, the pod's {where} {other}: no node has both"


def _model(
    pod: Applicant, labels: Values, catalogue: Catalogue, *, needs_model: bool
) -> tuple[Series | None, str]:
    """The series that a pod asks for, or None; and what is wrong with that, or "".

    A label is enough. Nodes of a reservation (class `gpu-hpn`) are asked for by nodeSelector or
    node affinity instead (R-003), which decides the drivers all the same.
    """
    by_node, by_label = _by_node(pod, MODEL_LABEL), labels.get(MODEL_LABEL)
    wrong = _contradiction(pod, MODEL_LABEL, by_node, _SELECTOR) if by_node else ""
    if by_label is not None:
        wrong = _contradiction(pod, MODEL_LABEL, by_label)
    if wrong:
        return None, wrong
    name = by_node if by_label is None else by_label
    if not name and by_label is None:
        if not needs_model or labels.get(CLASS_LABEL) != GPU_CLASSES[0]:
            return None, ""
        asked = f"{CLASS_LABEL} {GPU_CLASSES[0]!r} needs a model: set the label {MODEL_LABEL}."
        return None, f"{asked} Known: {catalogue.known}"
    found = catalogue.series.get(name)
    wrong = f"{MODEL_LABEL} {clip(name)!r} is not in the catalogue. Known: {catalogue.known}"
    return (None, wrong) if found is None else (found, "")


def _wrong_driver(model: Series | None, driver: str, effect: Effect, catalogue: Catalogue) -> str:
    rule = effect.source.get(DRIVER_LABEL)
    origin = f" (by the profile's rule {clip(rule)!r})" if rule else ""
    asked = f"{DRIVER_LABEL} {clip(driver)!r}{origin}"
    if not driver:
        return f"{asked} is empty: leave the label out for the default"
    candidates = [model] if model is not None else list(catalogue.series.values())
    if any(each.serves(driver) for each in candidates):
        return ""
    which = model.name if model is not None else "any series"
    served = sorted({version for each in candidates for version in each.drivers})
    return f"{asked} is not served for {which}. Served: {', '.join(served) or 'none'}"
