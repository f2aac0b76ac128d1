"""Metrics of one moment as a table: built for each scrape, so that nothing that is gone leaves a series."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_Moment = TypeVar("_Moment")
_Each = TypeVar("_Each")
Rows: TypeAlias = Iterable[tuple[Sequence[str], float | None]]
"""Values of the labels and of the series; None where it is not known, and has no series."""


@dataclass(frozen=True, slots=True)
class Family(Generic[_Moment]):
    """One metric."""

    name: str  # its name; of a counter without `_total`
    text: str
    labels: Sequence[str]
    rows: Callable[[_Moment], Rows]
    is_always: bool = True  # whether it is shown without any series
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily


class Gauges(Collector, Generic[_Moment]):
    """The families of a table, in its order, as of `moment`."""

    def __init__(self, table: Sequence[Family[_Moment]], moment: _Moment, prefix: str = "") -> None:
        self._prefix = prefix
        self.moment = moment
        self._table = table

    def collect(self) -> Iterator[Metric]:
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


@dataclass(frozen=True, slots=True)
class FamilyOf(Generic[_Moment, _Each]):
    """Makes metrics that have a series for each of `things`, with labels of these names and values."""

    things: Callable[[_Moment], Iterable[_Each]]
    names: Sequence[str]
    values: Callable[[_Each], Sequence[str]]
    is_always: bool = True  # see `Family`

    def __call__(
        self, name: str, text: str, value: Callable[[_Each], float | None]
    ) -> Family[_Moment]:
        def rows(now: _Moment) -> Rows:
            return ((self.values(each), value(each)) for each in self.things(now))

        return Family(name, text, self.names, rows, self.is_always)

    def told(self, name: str, text: str, label: str) -> Family[_Moment]:
        """A metric that is 1 for each thing with that attribute, which is one more label."""

        def rows(now: _Moment) -> Rows:
            known = ((each, getattr(each, label)) for each in self.things(now))
            return (((*self.values(each), value), 1) for each, value in known if value)

        return Family(name, text, (*self.names, label), rows, self.is_always)
