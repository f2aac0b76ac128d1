"""The node label of a series: written from the catalogue, never over an operator's value (R-004)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.domain.models.admission import MODEL_LABEL

SERIES_ANNOTATION = "gpu-device-plugin/model-series"
"""Repeats the label's value where we wrote it: another value is an operator's."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Labels and annotations to set; None removes one."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


def series_change(label: str | None, written: str | None, series: str) -> NodeChange | None:
    """What to change of a node, or None.

    Args:
        label: Value of its label, or None.
        written: Value of the annotation, or None.
        series: By the catalogue, or "" where its cards are of none.
    """
    if label is not None and label != written:
        # An operator's value stays; an annotation would call it ours once it happens to agree.
        return None if written is None else NodeChange(annotations={SERIES_ANNOTATION: None})
    wanted = series or None
    if label == wanted == written:
        return None
    return NodeChange({MODEL_LABEL: wanted}, {SERIES_ANNOTATION: wanted})


def withdrawn_series(label: str | None, written: str | None) -> NodeChange:
    """What to remove of a node on which nothing of ours is left."""
    labels = {MODEL_LABEL: None} if label is not None and label == written else {}
    return NodeChange(labels, {SERIES_ANNOTATION: None} if written is not None else {})
