"""How full a cluster gets: the openb trace with our policy, beside what the paper measured."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bench.openb import trace
from tools.bench.openb.chart import svg
from tools.bench.openb.replay import Policy, Run, at_random, best_fit, ours, paper_fgd, replay
from tools.bench.openb.trace import Node, Pod
from tools.bench.rows import Chapter, Row, at_most, quantile, shown

CHART = Path("docs/placement.svg")
_SEEDS = range(42, 52)
_FRACTIONAL_SEED = 7
_POLICIES: Mapping[str, Policy] = {
    "Random": at_random,
    "BestFit": best_fit,
    "FGD": paper_fgd,
    "ours": ours,
}
_TITLE = "Placement over a cluster"
_METHOD = """\
The openb trace (Alibaba, 1,213 nodes, 6,212 cards, 8,152 pods), as in "Beware of Fragmentation" (USENIX
ATC 2023): the list is filled up with draws from itself to 130 % of the cluster's cards and shuffled; pods
arrive one by one, are placed or dropped, and never leave. What is allocated when 100 % and 130 % have
arrived; medians of the seeds 42 to 51, which are Python's and not the paper's. Random, BestFit and FGD
are written again here, to see that this replay measures what the paper measured; "ours" is `fgd` as the
controller serves it: it knows what each node has free, processors too, and not which pods come, which the
other FGD knows (a test holds that the controller answers the same node and cards).
All-fractional: the pods of the list that ask for a part of one card, drawn again (seed 7) to the same
demand. Only the decision is timed, in one process, in Python.

![allocated against arrived](placement.svg)"""


async def measure() -> Chapter:
    """Replay every policy; without the trace, say so."""
    if not trace.FOLDER.is_dir():
        row = Row("the openb trace", "replayed", "not measured: ../shared/openb is not there")
        return Chapter(_TITLE, _METHOD, (row,))
    nodes, pods = trace.nodes(), trace.pods()
    published = trace.published()
    runs = {name: _runs(nodes, pods, policy) for name, policy in _POLICIES.items()}
    parts = trace.fractional(pods, _FRACTIONAL_SEED)
    part_runs = {name: _runs(nodes, parts, _POLICIES[name]) for name in ("FGD", "ours")}
    curves = {name: _curve(found) for name, found in runs.items()}
    CHART.write_text(
        svg(
            {"ours": curves["ours"], "FGD, this replay": curves["FGD"]}
            | {f"published {name}": curve for name, curve in published.items()}
        ),
        encoding="utf-8",
    )
    decisions = [second for run in runs["ours"] for second in run.seconds]
    rows = [
        _near("Random", curves, published, 0.8),
        _near("BestFit", curves, published, 0.5),
        shown("FGD, this replay, at 100 % and 130 %", _two(curves["FGD"])),
        shown("FGD, published, at 100 % and 130 %", _two(published["FGD"])),
        shown("ours at 100 % and 130 %", _two(curves["ours"])),
        shown(
            "when 70 % have arrived: FGD, ours",
            f"{curves['FGD'][70]:.2f} %, {curves['ours'][70]:.2f} %",
        ),
        _at_least("ours at 100 %", curves["ours"][100], max(95.2, curves["FGD"][100] + 0.2), "%"),
        _at_least(
            "ours, all-fractional, at 130 %",
            _curve(part_runs["ours"])[130],
            _curve(part_runs["FGD"])[130] + 0.5,
            "%",
        ),
        _at_least("decisions a second", len(decisions) / sum(decisions), 1300, "", 0),
        at_most("a decision, p99", 1000 * quantile(decisions, 0.99), 3, "ms"),
    ]
    return Chapter(_TITLE, _METHOD, tuple(rows))


def _runs(nodes: Sequence[Node], pods: Sequence[Pod], policy: Policy) -> list[Run]:
    capacity = sum(sum(node.room.cards) for node in nodes)
    found = []
    for seed in _SEEDS:
        chooser, is_random = policy(pods)
        arriving = trace.arrivals(pods, capacity, seed)
        found.append(replay(nodes, arriving, chooser, seed if is_random else None))
    return found


def _curve(runs: Sequence[Run]) -> list[float]:
    """The median of the runs at each percent that all have reached."""
    curves = [run.allocated for run in runs]
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


def _at_least(what: str, value: float, bar: float, unit: str, digits: int = 2) -> Row:
    gap = " " if unit else ""
    measured = f"{value:.{digits}f}{gap}{unit}"
    return Row(what, f"≥ {bar:.{digits}f}{gap}{unit}", measured, value >= bar)


def _two(curve: Sequence[float]) -> str:
    return f"{curve[100]:.2f} %, {curve[130]:.2f} %"
