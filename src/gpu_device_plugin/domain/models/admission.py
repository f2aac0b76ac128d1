"""What a pod's labels ask of model and driver, and what the webhook makes of it (R-001 to R-008)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.labels import ACS_DRIVER_LABEL
from gpu_device_plugin.domain.models.catalogue import Catalogue, Series
from gpu_device_plugin.domain.models.node_affinity import Json, require, required_value
from gpu_device_plugin.domain.models.profile import Effect, ProfileRule, Values, effect_of

CLASS_LABEL = "alibabacloud.com/compute-class"
MODEL_LABEL = "alibabacloud.com/gpu-model-series"
DRIVER_LABEL = ACS_DRIVER_LABEL
GPU_CLASSES = ("gpu", "gpu-hpn")
OTHER_CLASSES = ("general-purpose", "performance")


@dataclass(frozen=True, slots=True)
class Applicant:
    """The parts of a pod that decide.

    Attributes:
        labels: Its labels.
        annotations: Its annotations.
        namespace: Labels of its namespace.
        node_selector: `spec.nodeSelector`.
        affinity: `spec.affinity`, or None.
    """

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    namespace: Values = field(default_factory=dict)
    node_selector: Values = field(default_factory=dict)
    affinity: Json | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is added to a pod.

    Attributes:
        labels: Labels to add.
        annotations: Annotations to add.
        affinity: The new `spec.affinity`, or None to leave it as it is.
    """

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    affinity: Json | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Why a pod is refused, for people."""

    text: str


def admit(pod: Applicant, rules: Sequence[ProfileRule], catalogue: Catalogue) -> Admitted | Denied:
    """Add what the profile says, check model and driver, and require nodes that have both.

    Precedence of a driver: the pod's own label, the profile, the default of the series (R-617).
    A pod without a class is treated as one of class `gpu`; other classes keep their affinity, and
    get what the profile says.

    Args:
        pod: The pod.
        rules: The profile.
        catalogue: Series and drivers.
    """
    effect = effect_of(rules, pod.labels, pod.annotations, pod.namespace)
    labels = {**pod.labels, **effect.labels}
    asks = MODEL_LABEL in labels or DRIVER_LABEL in labels
    compute_class = labels.get(CLASS_LABEL, GPU_CLASSES[0] if asks else "")
    if compute_class not in GPU_CLASSES:
        if asks and compute_class not in OTHER_CLASSES:
            return Denied(_unknown_class(compute_class))
        return Admitted(effect.labels, effect.annotations)
    model, wrong = _model(pod, labels, catalogue)
    driver = labels.get(DRIVER_LABEL)
    wrong = wrong or _wrong_driver(model, driver, effect, catalogue)
    if wrong:
        return Denied(wrong)
    default = model.default if model is not None else ""
    wanted = {MODEL_LABEL: model.name if model is not None else "", DRIVER_LABEL: driver or default}
    wanted = {key: value for key, value in wanted.items() if value}
    affinity = require(pod.affinity, wanted) if wanted else None
    added = dict(effect.labels)
    if driver is None and default:
        added[DRIVER_LABEL] = default
    return Admitted(
        added, effect.annotations, None if affinity == (pod.affinity or {}) else affinity
    )


def _model(pod: Applicant, labels: Values, catalogue: Catalogue) -> tuple[Series | None, str]:
    """The series that a pod asks for, or None; and what is wrong with that, or "".

    A label is enough. Nodes of a reservation (class `gpu-hpn`) are asked for by nodeSelector or
    node affinity instead (R-003), which decides the drivers all the same.
    """
    by_node = pod.node_selector.get(MODEL_LABEL) or required_value(pod.affinity, MODEL_LABEL)
    by_label = labels.get(MODEL_LABEL)
    if by_label is not None and by_node and by_label != by_node:
        return None, (
            f"label {MODEL_LABEL} says {by_label!r}, the pod's node selector or affinity "
            f"{by_node!r}: no node has both"
        )
    name = by_node if by_label is None else by_label
    if not name and by_label is None:
        return None, ""
    found = catalogue.series.get(name)
    if found is None:
        known = ", ".join(catalogue.series) or "none"
        return None, f"{MODEL_LABEL} {name!r} is not in the catalogue. Known: {known}"
    return found, ""


def _wrong_driver(
    model: Series | None, driver: str | None, effect: Effect, catalogue: Catalogue
) -> str:
    if driver is None:
        return ""
    rule = effect.source.get(DRIVER_LABEL)
    origin = f" (by the profile's rule {rule!r})" if rule else ""
    asked = f"{DRIVER_LABEL} {driver!r}{origin}"
    if not driver:
        return f"{asked} is empty: leave the label out for the default"
    candidates = [model] if model is not None else list(catalogue.series.values())
    if any(each.serves(driver) for each in candidates):
        return ""
    which = model.name if model is not None else "any series"
    served = sorted({version for each in candidates for version in each.drivers})
    return f"{asked} is not served for {which}. Served: {', '.join(served) or 'none'}"


def _unknown_class(name: str) -> str:
    known = ", ".join((*GPU_CLASSES, *OTHER_CLASSES))
    return (
        f"{CLASS_LABEL} {name!r} is no class that a model or driver can be asked for with. "
        f"Known: {known}"
    )
