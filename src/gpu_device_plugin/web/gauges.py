"""Metrics of one moment as a table: built for each scrape, so that nothing that is gone leaves a series."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_Moment = TypeVar("_Moment")
Rows: TypeAlias = Iterable[tuple[Sequence[str], float | None]]
"""Values of the labels and of the series; None where it is not known, and has no series."""


@dataclass(frozen=True, slots=True)
class Family(Generic[_Moment]):
    """One metric.

    Attributes:
        name: Its name; of a counter without `_total`.
        text: Its help.
        labels: Names of its labels.
        rows: Its series.
        is_always: Whether it is shown without any series.
        kind: Gauge or counter.
    """

    name: str
    text: str
    labels: Sequence[str]
    rows: Callable[[_Moment], Rows]
    is_always: bool = True
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily


class Gauges(Collector, Generic[_Moment]):
    """The families of a table, in its order, as of `moment`."""

    def __init__(self, table: Sequence[Family[_Moment]], moment: _Moment, prefix: str = "") -> None:
        self._prefix = prefix
        self.moment = moment
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """All of them, for prometheus_client."""
        moment = self.moment
        for row in self._table:
            family = row.kind(self._prefix + row.name, row.text, labels=row.labels)
            for labels, value in row.rows(moment):
                if value is not None:
                    family.add_metric(labels, value)
            if family.samples or row.is_always:
                yield family


def plain(name: str, text: str, value: Callable[[_Moment], float | None]) -> Family[_Moment]:
    """A metric without labels; it is left out where it is not known."""
    return Family(name, text, (), lambda now: [((), value(now))], is_always=False)
