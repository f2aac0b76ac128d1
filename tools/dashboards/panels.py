"""The kinds of panels that our dashboard is made of, over grafana-foundation-sdk's builders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; `legend` names its series, in a table its column."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """What every panel has: title, what it means, and its size on Grafana's grid of 24."""

    title: str
    description: str
    width: int = 8
    height: int = 7


AnyPanel = stat.Panel | timeseries.Panel | statetimeline.Panel | bargauge.Panel | table.Panel
P = TypeVar("P", stat.Panel, timeseries.Panel, statetimeline.Panel, bargauge.Panel, table.Panel)


def highest(inner: str) -> str:
    """The 20 highest at each moment: what 40 nodes of 8 cards have together is no picture."""
    return f"topk(20, {inner})"


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A choice among the values of a label, all that are known by default."""
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)  # noqa: FBT003  # the builder's
        .include_all(True)  # noqa: FBT003
        .current(everything)
    )


def cluster_variable(metric: str) -> dashboard.QueryVariable:
    """The clusters of one Prometheus; series of a cluster's own one have no such label, and `.*` finds them too."""
    return variable("cluster", "Cluster", f"label_values({metric}, cluster)").all_value(".*")


def steps(base: str, *above: tuple[float, str]) -> dashboard.ThresholdsConfig:
    """`base` from below on, then each color from its value on."""
    colors = [
        models.Threshold(color=base),
        *(models.Threshold(value=value, color=color) for value, color in above),
    ]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(colors)


def big_number(
    head: Head, unit: str, colors: dashboard.ThresholdsConfig, query: Query
) -> stat.Panel:
    """The last value, large."""
    panel = (
        stat.Panel()
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_ranged(0, query))
    )
    return _headed(panel, head).unit(unit).thresholds(colors)


def lines(head: Head, unit: str, *queries: Query, is_stacked: bool = False) -> timeseries.Panel:
    """Values over time, 0 at the bottom."""
    panel = (
        timeseries.Panel()
        .min(0)
        .fill_opacity(20 if is_stacked else 8)
        .line_width(1)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    )
    if is_stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    for number, query in enumerate(queries):
        panel = panel.with_target(_ranged(number, query))
    return _headed(panel, head).unit(unit)


def states(head: Head, texts: Mapping[int, tuple[str, str]], query: Query) -> AnyPanel:
    """How long something was in which state; value -> text and color."""
    mapping = models.ValueMap(
        options={
            str(value): models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(texts.items())
        }
    )
    panel = (
        statetimeline.Panel()
        .mappings([mapping])
        .show_value(common_models.VisibilityMode.NEVER)
        .legend(_legend())
        .with_target(_ranged(0, query))
    )
    return _headed(panel, head)


def ranking(head: Head, unit: str, query: Query) -> AnyPanel:
    """One bar a series, as of now."""
    panel = (
        bargauge.Panel()
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .value_mode(common_models.BarGaugeValueMode.TEXT)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("none")
        .min(0)
        .with_target(_instant(0, query, PromQueryFormat.TIME_SERIES))
    )
    return _headed(panel, head).unit(unit).thresholds(steps(BLUE))


@dataclass(frozen=True, slots=True)
class Column:
    """How a table shows one of its columns."""

    name: str
    unit: str = "short"
    is_bar: bool = False
    is_flag: bool = False


def rows(head: Head, keys: Sequence[str], columns: Mapping[Column, str]) -> AnyPanel:
    """A table of now: a row for each combination of `keys`, a column for each query.

    Args:
        head: Title, meaning and size.
        keys: Labels, in the order in which they are shown.
        columns: Column -> the query whose values stand there.
    """
    panel = table.Panel().filterable(True).no_value("nothing")  # noqa: FBT003  # the builder's
    letters = dict(zip("ABCDEFGHIJ", columns, strict=False))
    for number, expr in enumerate(columns.values()):
        panel = panel.with_target(_instant(number, Query(expr), PromQueryFormat.TABLE))
    value = "Value #{}" if len(columns) > 1 else "Value"
    names = {value.format(letter): column.name for letter, column in letters.items()}
    order = {name: index for index, name in enumerate([*keys, *names])}
    panel = panel.with_transformation(_transformation("merge", {})).with_transformation(
        _transformation(
            "organize",
            {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names},
        )
    )
    for column in columns:
        panel = panel.override_by_name(column.name, _look(column))
    return _headed(panel, head)


def _look(column: Column) -> list[models.DynamicConfigValue]:
    found: dict[str, Any] = {"unit": column.unit}
    if column.is_bar:
        found |= {
            "custom.cellOptions": {"type": "gauge", "mode": "basic"},
            "min": 0,
            "max": 1,
            "thresholds": steps(GREEN, (0.8, ORANGE), (0.95, RED)).build(),
        }
    if column.is_flag:
        found |= {
            "custom.cellOptions": {"type": "color-text"},
            "mappings": [
                models.ValueMap(
                    options={
                        "0": models.ValueMappingResult(text="unhealthy", color=RED, index=0),
                        "1": models.ValueMappingResult(text="healthy", color=GREEN, index=1),
                    }
                )
            ],
        }
    return [models.DynamicConfigValue(id_val=key, value=value) for key, value in found.items()]


def _transformation(name: str, options: object) -> models.DataTransformerConfig:
    return models.DataTransformerConfig(id_val=name, options=options)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)  # noqa: FBT003  # the builder's
    )


def _headed(panel: P, head: Head) -> P:
    return (
        panel.title(head.title)
        .description(head.description)
        .datasource(SOURCE)
        .span(head.width)
        .height(head.height)
    )


def _ranged(number: int, query: Query) -> prometheus.Dataquery:
    return _query(number, query).range()


def _instant(number: int, query: Query, form: PromQueryFormat) -> prometheus.Dataquery:
    return _query(number, query).instant().format(form)


def _query(number: int, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id("ABCDEFGHIJ"[number])
        .datasource(SOURCE)
    )
