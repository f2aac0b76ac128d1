"""The cap of the card's time: what a slice completes, against what the same work does without."""

import math

from tools.bench.rows import Row, shown
from tools.gpu.place import Place, Told, together

UNIT_NS = {"sync": 20_000_000, "stream": 100_000, "graph": 100_000}
TELLS = {
    "sync": "kernels of 20 ms, each waited for",
    "stream": "a stream of 100 µs kernels",
    "graph": "graphs of ten 100 µs kernels",
}
PERCENTS = (10, 30, 60, 90)
TENANTS = (10, 90)
LEAST_KEPT = 0.95
MOST_KEPT = 1.4
"""What is always busy lowers the card's clock: a slice of it kept 1.24 on an H200; without a limit 60 % would keep 1.67."""
FEWEST_SECONDS = 3.0

METHOD = """\
Whether a slice gets its share of the card's time, no more and no less, with different kinds of work.

The kernel is a loop of a fixed number of turns. CUDA events measure it on the idle card: alone, in a queue and in a graph. A share of the
card's time is the number of kernels completed, times that duration. "Throughput kept" is their number, against the cap's part of what the
same program completes without the library right before. Each figure is one window of {seconds:g} s; the two tenants run at the same moment."""


def method(place: Place) -> str:
    """How, with the window in it."""
    return METHOD.format(seconds=place.seconds)


def measure(place: Place) -> list[Row]:
    """One tenant by every kind of work, then two."""
    rows: list[Row] = []
    turns = {kind: place.turns(unit_ns) for kind, unit_ns in UNIT_NS.items()}
    for kind in UNIT_NS:
        words = ["work", kind, turns[kind], str(place.seconds)]
        piece_seconds = place.tell(place.base, "solo", kind, turns[kind])["piece_ns"] / 1e9
        native = rate(place.tell(place.base, *words))
        rows.append(shown(f"{TELLS[kind]}: native", f"{native:.1f} a second"))
        for percent in PERCENTS:
            environment = place.inside(f"{kind}-{percent}", core_percent=percent)
            capped = rate(place.tell(environment, *words))
            rows.append(share_row(TELLS[kind], percent, capped * piece_seconds))
            rows.append(kept_row(TELLS[kind], percent, capped / native))
    rows.append(_two_tenants(place, turns["stream"]))
    return rows


def share_row(what: str, percent: int, part: float) -> Row:
    """A part of the card's time against its cap: no more than two points off."""
    return Row(
        f"{what}, {percent} %: the card's time",
        f"{percent} ± 2 %",
        f"{part * 100:.1f} %",
        percent - 2 <= part * 100 <= percent + 2,
    )


def kept_row(what: str, percent: int, ratio: float, most: float = math.inf) -> Row:
    """Throughput at a cap against native: no more than 5 % of the share is lost, and `most` of it is had."""
    kept = ratio * 100 / percent
    return Row(
        f"{what}, {percent} %: throughput kept",
        f"≥ {LEAST_KEPT:g}" if math.isinf(most) else f"{LEAST_KEPT:g} to {most:g}",
        f"{kept:.3f}",
        LEAST_KEPT <= kept <= most,
    )


def rate(told: Told) -> float:
    """Pieces a second."""
    return float(told["pieces"]) / float(told["took_ns"]) * 1e9


def _two_tenants(place: Place, turns: str) -> Row:
    seconds = max(place.seconds, FEWEST_SECONDS)
    words = [str(place.program), "work", "stream", turns, str(seconds)]
    slices = [place.inside(f"tenant-{percent}", core_percent=percent) for percent in TENANTS]
    small, large = map(rate, together([(inside, words) for inside in slices]))
    ratio = large / small
    return Row(
        "tenants of 10 and 90 % at once, work completed",
        "1:8.5 to 1:9.5",
        f"1:{ratio:.2f}",
        8.5 <= ratio <= 9.5,
    )
