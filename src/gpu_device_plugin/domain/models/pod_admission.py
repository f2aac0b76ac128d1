"""What a pod's labels ask of model and driver, and what the webhook makes of it (R-001 to R-008)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, Catalogue, Series
from gpu_device_plugin.domain.models.node_affinity import (
    Json,
    admits,
    alike,
    require,
    required_value,
)
from gpu_device_plugin.domain.models.profile_rules import Effect, ProfileRule, Values, effect_of
from gpu_device_plugin.domain.node.labels import ACS_DRIVER_LABEL
from gpu_device_plugin.errors import clip

CLASS_LABEL = "alibabacloud.com/compute-class"
DRIVER_LABEL = ACS_DRIVER_LABEL
GPU_CLASSES = ("gpu", "gpu-hpn")
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
        for each in alike(key, value)
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
