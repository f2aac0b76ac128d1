"""The catalogue: series of cards, NVML's names for them, their drivers (R-603), and a node's label of it (R-004)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.domain.node.labels import label_value
from gpu_device_plugin.errors import ConfigError, clip

MODEL_LABEL = "alibabacloud.com/gpu-model-series"
"""On a pod: the series that it asks for. On a node: the series that it has."""
SERIES_ANNOTATION = "gpu-device-plugin/model-series"
"""Repeats the label's value where we wrote it: another value is an operator's."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series.

    Attributes:
        nvml_names: What NVML calls such cards, for instance `Tesla T4`; may be empty.
        drivers: Versions that a pod may ask for, opaque texts; empty is any.
        default: Version for a pod that asks for none, or "" for whichever the node has.
    """

    name: str
    nvml_names: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    default: str = ""

    def serves(self, driver: str) -> bool:
        return not self.drivers or driver in self.drivers


class Catalogue:
    """All series, by name."""

    def __init__(self, series: Mapping[str, Series]) -> None:
        """Raise ConfigError for a name that is no label value, an unlisted default, or a card in two series."""
        self.series = dict(sorted(series.items()))
        self._by_card: dict[str, str] = {}
        for name, each in self.series.items():
            _check(each)
            for card in map(label_value, each.nvml_names):
                other = self._by_card.setdefault(card, name)
                if other != name:
                    raise ConfigError(f"the card {card} is of series {other} and of {name}")

    @property
    def known(self) -> str:
        return ", ".join(self.series) or "none"

    def series_of(self, models: Iterable[str]) -> str:
        """The series of a node with these cards, or "" if they are of none, or not of one alone.

        `models` are names from NVML, as they are or as label values.
        """
        found = {self._by_card.get(label_value(model), "") for model in models}
        return found.pop() if len(found) == 1 else ""


def _check(series: Series) -> None:
    for value in (series.name, *series.drivers):
        if not value or label_value(value) != value:
            raise ConfigError(
                f"series {clip(series.name)!r}: {clip(value)!r} cannot be the value of a label"
            )
    if series.default and not series.serves(series.default):
        raise ConfigError(
            f"series {series.name}: the default {series.default} is none of its drivers "
            f"({', '.join(series.drivers)})"
        )


@dataclass(frozen=True, slots=True)
class NodeMetadataChange:
    """Labels and annotations to set; None removes one."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


def series_change(label: str | None, written: str | None, series: str) -> NodeMetadataChange | None:
    """What to change of a node, or None.

    `label` and `written` are the values of the node's label and annotation; `series` is by the
    catalogue, "" where its cards are of none.
    """
    if label is not None and label != written:
        # An operator's value stays; an annotation would make it the controller's once it happens to agree.
        return (
            None if written is None else NodeMetadataChange(annotations={SERIES_ANNOTATION: None})
        )
    wanted = series or None
    if label == wanted == written:
        return None
    return NodeMetadataChange({MODEL_LABEL: wanted}, {SERIES_ANNOTATION: wanted})


def withdrawn_series(label: str | None, written: str | None) -> NodeMetadataChange:
    """What to remove of a node on which nothing of this plugin is left."""
    labels = {MODEL_LABEL: None} if label is not None and label == written else {}
    return NodeMetadataChange(labels, {SERIES_ANNOTATION: None} if written is not None else {})
