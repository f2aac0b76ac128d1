"""What a pod's node affinity, as JSON, requires and leaves; and the same with one requirement more."""

from collections.abc import Mapping, Sequence

from gpu_device_plugin.domain.node.labels import ACS_DRIVER_LABEL

Json = Mapping[str, object]
_OPEN = "-open"
"""The suffix of a driver with open kernel modules. NVML names its version alone, and so do the labels of nodes."""
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
        {"key": key, "operator": "In", "values": alike(key, value)}
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


def alike(key: str, value: str) -> list[str]:
    """Values of a node's label that will do for a pod's."""
    is_open = key == ACS_DRIVER_LABEL and value.endswith(_OPEN)
    return [value, value.removesuffix(_OPEN)] if is_open else [value]


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
