"""How full a cluster gets: the openb trace with our policy, beside what the paper measured."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bench.openb import trace
from tools.bench.openb.chart import svg
from tools.bench.openb.players import Player, play
from tools.bench.openb.replay import Policy, at_random, best_fit, paper_fgd, replay
from tools.bench.openb.scheduler import schedule
from tools.bench.openb.served import served
from tools.bench.openb.trace import Node, Pod
from tools.bench.rows import Chapter, Row, shown

CHART = Path("docs/placement.svg")
_SEEDS, _SERVED_SEEDS = range(42, 52), range(42, 47)
_FRACTIONAL_SEED = 7
_POLICIES: Mapping[str, Policy] = {"Random": at_random, "BestFit": best_fit, "FGD": paper_fgd}
_TITLE = "Placement over a cluster"
_METHOD = """\
How much of a cluster's cards is allocated after pods of all sizes have come; more is better. "Served" is this project's controller with
`--placement fgd`. The trace is openb (Alibaba: 1,213 nodes, 6,212 cards, 8,152 pods), as in "Beware of Fragmentation" (USENIX ATC 2023).
![allocated against arrived](placement.svg)

The list is filled up with draws from itself to 130 % of the cluster's cards, and shuffled. Pods are placed or dropped, and never leave. The figures, when 100 % and 130 % have arrived, are medians of the seeds 42 to 51, which are
Python's and not the paper's. Random, BestFit and FGD are written again here.

The controller is a process of its own, asked over HTTP as kube-scheduler asks it: filter and prioritize for each pod, then bind. kube-scheduler is simulated: to the controller's points (weight 1) it adds LeastAllocated and
BalancedAllocation of processor and memory, and draws from the nodes of the highest sum at random. It places a pod without cards by these
alone.

"FGD asked so" is the paper's FGD, which knows which pods come, with the same arrivals and the same kube-scheduler: medians of
the seeds 42 to 46. All-fractional:
the pods of the list that ask for a part of one card, drawn again (seed 7) to the same demand.

The rows of 2026-11-24 were measured with 13 processor cores a card in the controller's mix; today it counts [11](#other-schedulers)."""


async def measure() -> Chapter:
    """Replay every policy; without the trace, say so."""
    if not trace.FOLDER.is_dir():
        row = Row("the openb trace", "replayed", "not measured: ../shared/openb is not there")
        return Chapter(_TITLE, _METHOD, (row,))
    nodes, pods = trace.nodes(), trace.pods()
    parts = trace.fractional(pods, _FRACTIONAL_SEED)
    published = trace.published()
    curves = {name: _curve(_replayed(nodes, pods, policy)) for name, policy in _POLICIES.items()}
    ours, theirs = await _served(nodes, pods), _fgd(nodes, pods)
    our_parts, their_parts = await _served(nodes, parts), _fgd(nodes, parts)
    every = await _served(nodes, pods, _SERVED_SEEDS[:1], "--filter-keeps", "all")
    CHART.write_text(
        svg(
            {"served": ours, "FGD, this replay": curves["FGD"]}
            | {f"published {name}": curve for name, curve in published.items()}
        ),
        encoding="utf-8",
    )
    fgd = max(curves["FGD"][100], theirs[100])
    rows = [
        _near("Random", curves, published, 0.8),
        _near("BestFit", curves, published, 0.5),
        shown("FGD, this replay, at 100 % and 130 %", _two(curves["FGD"])),
        shown("FGD, published, at 100 % and 130 %", _two(published["FGD"])),
        shown("FGD asked so, at 100 % and 130 %", _two(theirs)),
        shown("served, at 100 % and 130 %", _two(ours)),
        shown(f"the same with `--filter-keeps all`, seed {_SERVED_SEEDS[0]}", _two(every)),
        _at_least("served at 100 %, against the better FGD", ours[100], fgd + 0.5),
        shown("all-fractional: FGD asked so, at 100 % and 130 %", _two(their_parts)),
        _at_least("all-fractional: served at 130 %", our_parts[130], their_parts[130] + 0.3),
    ]
    return Chapter(_TITLE, _METHOD, tuple(rows))


def _replayed(nodes: Sequence[Node], pods: Sequence[Pod], policy: Policy) -> list[list[float]]:
    found = []
    for seed in _SEEDS:
        chooser, is_random = policy(pods)
        arriving = _arriving(nodes, pods, seed)
        found.append(replay(nodes, arriving, chooser, seed if is_random else None))
    return found


async def _served(
    nodes: Sequence[Node], pods: Sequence[Pod], seeds: Sequence[int] = _SERVED_SEEDS, *flags: str
) -> list[float]:
    curves = []
    for seed in seeds:
        async with served(nodes, *flags) as extender:
            curves.append(await schedule(nodes, _arriving(nodes, pods, seed), extender, seed))
    return _curve(curves)


def _fgd(nodes: Sequence[Node], pods: Sequence[Pod]) -> list[float]:
    fgd = paper_fgd(pods)[0]
    return _curve(
        [
            play(nodes, _arriving(nodes, pods, s), (fgd, fgd), Player.TODAY, s, draws=True)
            for s in _SERVED_SEEDS
        ]
    )


def _arriving(nodes: Sequence[Node], pods: Sequence[Pod], seed: int) -> list[Pod]:
    return trace.arrivals(pods, sum(sum(node.room.cards) for node in nodes), seed)


def _curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """The median of the runs at each percent that all have reached."""
    return [statistics.median(values) for values in zip(*curves, strict=False)]


def _near(
    name: str,
    curves: Mapping[str, Sequence[float]],
    published: Mapping[str, Sequence[float]],
    bar: float,
) -> Row:
    mine, theirs = curves[name][100], published[name][100]
    return Row(
        f"{name} at 100 %, against the published {theirs:.2f} %",
        f"within {bar:g} points",
        f"{mine:.2f} %",
        abs(mine - theirs) <= bar,
    )


def _at_least(what: str, value: float, bar: float) -> Row:
    return Row(what, f"≥ {bar:.2f} %", f"{value:.2f} %", value >= bar)


def _two(curve: Sequence[float]) -> str:
    return f"{curve[100]:.2f} %, {curve[130]:.2f} %"
