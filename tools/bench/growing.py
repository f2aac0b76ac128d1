"""What a resize is for: how many more pods of the openb trace run where each asks for half and grows while it is busy."""

import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from tools.bench.openb import trace
from tools.bench.openb.growth import GrowingCluster, GrowingPod, spread
from tools.bench.openb.players import served_fgd
from tools.bench.rows import Chapter, Row, quantile, shown

_SEEDS, _EACH_NODE, _OFFERED = range(42, 45), 16, (100, 130, 160)
_FULL, _END = 24.0, 72.0  # hours: all have arrived; the end
_Busy = Iterator[tuple[float, float]]
_TITLE = "Growing on demand"
_METHOD = f"""\
How many more pods run, and with what they need, where each asks for half of its peak and grows while it is busy, instead of reserving the peak.
It pays for pods that are idle most of the time. Pods that are always busy lose by it.

The trace is openb, its pods that ask for a part of one card (all-fractional, drawn with the run's seed), on each {_EACH_NODE}th of its nodes.
"Offered" is what all peaks ask of the cards; pods come during a day, are placed or dropped, and never leave. The two days after it count. "With what they need": pods on average over these days
that are idle, or have their peak. The base is as many pods as run where each reserves its peak, with `spread` or `fgd`, whichever runs more.

Sizes are hundredths of a card, rounded up. A pod grows by the agent's own rules (domain/fractions/resize.py): on its card, into what is
free, as a whole. Otherwise it waits until others shrink or its busy time ends. Those that wait are tried in the order in which they
asked. New pods are placed by what is held then; of a node its processors count, not its memory. A wait is the time from the annotation until
the pod has grown, or until its busy time or the run ends. Placement is `spread`, unless a row says otherwise. Medians of the seeds {_SEEDS[0]} to {_SEEDS[-1]}."""


def _by_hours(drawn: random.Random, at: float) -> _Busy:
    while True:
        begin = at + drawn.expovariate(1 / 9)
        at = begin + drawn.expovariate(1)
        yield begin, at


def _by_day(drawn: random.Random, at: float) -> _Busy:
    for day in itertools.count():
        begin = 24 * day + 9 + drawn.uniform(-1, 1)
        if at < begin + 8:
            yield max(at, begin), begin + 8


def _always(_: random.Random, at: float) -> _Busy:
    yield at, _END


_USES: Mapping[str, Callable[[random.Random, float], _Busy]] = {
    "busy for an hour in ten": _by_hours,
    "all busy for the same 8 hours of a day": _by_day,
    "always busy": _always,
}
_POLICIES = {"spread": spread, "fgd": served_fgd()}
_Game = tuple[str, str, int]  # use ("" where each reserves its peak), policy, offered percent


async def measure() -> Chapter:
    """Play every use; without the trace, say so."""
    if not trace.FOLDER.is_dir():
        row = Row("the openb trace", "replayed", "not measured: ../shared/openb is not there")
        return Chapter(_TITLE, _METHOD, (row,))
    games = [
        *itertools.product(_USES, ("spread",), _OFFERED),
        (next(iter(_USES)), "fgd", _OFFERED[0]),
    ]
    bases = [*itertools.product(("",), _POLICIES, _OFFERED)]
    with ProcessPoolExecutor() as pool:
        played = dict(zip([*games, *bases], pool.map(_median, [*games, *bases]), strict=True))
    rows = []
    for use, policy, offered in games:
        base = max(played["", each, offered][0] for each in _POLICIES)
        running, served, had, waited, half, longest = played[use, policy, offered]
        by = "" if policy == "spread" else f", `{policy}`"
        more, better = (100 * pods / base - 100 for pods in (running, served))
        told = (
            f"{running:.0f} pods run instead of {base:.0f} ({more:+.0f} %), {served:.0f} ({better:+.0f} %) with what they need; "
            f"they have the peak for {100 * had:.0f} % of the busy time; {100 * waited:.0f} % of the wishes waited, for {half:.1f} h, p99 {longest:.1f} h"
        )
        rows.append(shown(f"{use}, {offered} % offered{by}", told))
    return Chapter(_TITLE, _METHOD, tuple(rows))


def _median(game: _Game) -> Sequence[float]:
    results = zip(*(_figures(_play(game, seed)) for seed in _SEEDS), strict=True)
    return [statistics.median(values) for values in results]


def _play(game: _Game, seed: int) -> Sequence[GrowingPod]:
    use, policy, offered = game
    nodes = [node.room for node in trace.nodes()[::_EACH_NODE]]
    shapes = [pod.shape for pod in trace.fractional(trace.pods(), seed)]
    capacity = sum(sum(room.cards) for room in nodes)
    asked = itertools.accumulate(shape.card_milli for shape in shapes)
    arriving = shapes[: sum(milli <= capacity * offered // 100 for milli in asked)]
    cluster = GrowingCluster(nodes, _POLICIES[policy], 0.5 if use else 1)
    for number, shape in enumerate(arriving):
        at, drawn = _FULL * number / len(arriving), random.Random(f"{seed} {number}")  # noqa: S311
        cluster.arrive(at, shape, _USES[use](drawn, at) if use else iter(()))
    cluster.run(_END)
    return cluster.pods


def _figures(pods: Sequence[GrowingPod]) -> tuple[float, ...]:
    """Pods that run, those with what they need, parts of the busy time with the peak and of wishes that waited, hours of waits."""
    wishes = [wish for pod in pods for wish in pod.wishes if wish.end > _FULL]
    wanted = sum(_counted(wish.begin, wish.end) for wish in wishes)
    had = sum(_counted(wish.had_from, wish.end) for wish in wishes)
    waits = [min(w.had_from, _END) - w.begin for w in wishes if w.had_from > w.begin] or [0.0]
    served = len(pods) - (wanted - had) / (_END - _FULL)
    parts = had / max(wanted, 1e-9), sum(wait > 0 for wait in waits) / max(len(wishes), 1)
    return len(pods), served, *parts, quantile(waits, 0.5), quantile(waits, 0.99)


def _counted(begin: float, end: float) -> float:
    return max(0.0, min(end, _END) - max(begin, _FULL))
