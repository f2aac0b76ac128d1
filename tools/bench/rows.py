"""What was measured, and how it stands in docs/benchmarks.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        what: The promise.
        target: The target, in words; empty for a figure that has none.
        measured: The figure, in words.
        is_met: Whether the target was met; None where there is none, or nothing was measured.
    """

    what: str
    target: str
    measured: str
    is_met: bool | None = None

    @property
    def verdict(self) -> str:
        """The last column."""
        if self.is_met is None:
            return "" if not self.target else "not measured"
        return "met" if self.is_met else "**missed**"


@dataclass(frozen=True, slots=True)
class Chapter:
    """Rows that were measured together, and how.

    Attributes:
        title: Heading.
        method: As paragraphs: the first says what the figures are for, the others how they were measured.
        rows: The figures.
    """

    title: str
    method: str
    rows: tuple[Row, ...]


def at_most(what: str, value: float, bar: float, unit: str, digits: int = 2) -> Row:
    """A row whose figure must not exceed `bar`."""
    return Row(what, f"≤ {bar:g} {unit}", f"{value:.{digits}f} {unit}", value <= bar)


def shown(what: str, measured: str) -> Row:
    """A row without a target."""
    return Row(what, "", measured)


def quantile(values: Sequence[float], part: float) -> float:
    """The value that `part` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return quantile(values, 0.5)
