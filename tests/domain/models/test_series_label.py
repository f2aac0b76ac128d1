"""The promise: the controller writes a node's series only where no operator has."""

import pytest

from gpu_device_plugin.domain.models.model_catalogue import (
    MODEL_LABEL,
    SERIES_ANNOTATION,
    NodeMetadataChange,
    series_change,
    withdrawn_series,
)

FORGET = NodeMetadataChange({}, {SERIES_ANNOTATION: None})


def both(value: str | None) -> NodeMetadataChange:
    """Label and annotation alike."""
    return NodeMetadataChange({MODEL_LABEL: value}, {SERIES_ANNOTATION: value})


@pytest.mark.parametrize(
    ("label", "written", "series", "change"),
    [
        (None, None, "T4", both("T4")),
        ("T4", "T4", "T4", None),
        ("T4", "T4", "A10", both("A10")),
        ("T4", "T4", "", both(None)),
        (None, "T4", "T4", both("T4")),
        (None, "T4", "", both(None)),
        (None, None, "", None),
        ("theirs", None, "T4", None),
        ("theirs", "T4", "T4", FORGET),
        ("T4", None, "T4", None),
        ("", None, "T4", None),
    ],
)
def test_what_an_operator_wrote_stays(
    label: str | None, written: str | None, series: str, change: NodeMetadataChange | None
) -> None:
    """The annotation repeats what we wrote; what differs from it is not."""
    assert series_change(label, written, series) == change


@pytest.mark.parametrize(
    ("label", "written", "change"),
    [
        ("T4", "T4", both(None)),
        ("theirs", "T4", FORGET),
        ("theirs", None, NodeMetadataChange()),
        (None, None, NodeMetadataChange()),
    ],
)
def test_a_withdrawn_node_keeps_only_an_operators(
    label: str | None, written: str | None, change: NodeMetadataChange
) -> None:
    """Nothing that we wrote is left."""
    assert withdrawn_series(label, written) == change
