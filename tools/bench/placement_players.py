"""How much of the placement depends on the scheduler around it: the openb trace under four of them."""

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from tools.bench.openb import trace
from tools.bench.openb.players import Player, play, served_fgd
from tools.bench.openb.replay import paper_fgd
from tools.bench.openb.trace import Pod
from tools.bench.rows import Chapter, Row

_SEEDS = range(42, 47)
_FRACTIONAL_SEED = 7
_LEAD = 0.3
_LISTS = {"default": 100, "all-fractional": 130}
"""Which percent of each have arrived when it is judged."""
_TITLE = "Other schedulers"
_METHOD = """\
How much of the placement depends on who chooses among the nodes. The paper's FGD, which knows the mix of pods, is beside the controller's
`fgd` under each scheduler; the target is FGD's share of allocated cards and 0.3 points. What counts is the half of the pods that nothing was
chosen on; the whole list is in brackets.

Each row names the scheduler. "Best score" takes the best-scored node, the first of equals or any of them; pods without cards then go where
FGD puts them, or where LeastAllocated alone does. The controller names one best node, so equals are drawn only for FGD and for
pods without cards. kube-scheduler is the simulated one of the [chapter before](#placement-over-a-cluster). FGD falls where pods without cards are spread over nodes that it keeps whole.

The controller's rule and its arrivals are played in one process, without HTTP; with 13 cores a card that gave the controller's figures
over HTTP to the second digit. Medians of the seeds 42 to 46, when 100 % have arrived, of the all-fractional list 130 %. All-fractional: as in the chapter before.

The controller's mix has each tenth of a card equally often, with 11 processor cores a card, which is what the trace's pods with cards ask for.
8, 10, 11 and 13 were compared on one half of the pods (drawn with the seed 1; the other half is judged here), after a look at the whole list.
Another trace was not tried."""


async def measure() -> Chapter:
    """Play every list under every scheduler; without the trace, say so."""
    if not trace.FOLDER.is_dir():
        row = Row("the openb trace", "replayed", "not measured: ../shared/openb is not there")
        return Chapter(_TITLE, _METHOD, (row,))
    games = [*product(_LISTS, Player, (False, True), (False, True))]
    with ProcessPoolExecutor() as pool:
        percents = dict(zip(games, pool.map(_percent, games), strict=True))
    rows = []
    for name, player in product(_LISTS, Player):
        (whole, half), (fgd_whole, fgd_half) = (
            [percents[name, player, is_fgd, is_half] for is_half in (False, True)]
            for is_fgd in (False, True)
        )
        bar = fgd_half + _LEAD
        what = f"{name}, {player.value}: FGD {fgd_half:.2f} % ({fgd_whole:.2f} %)"
        told = f"{half:.2f} % ({whole:.2f} %)"
        rows.append(Row(what, f"≥ {bar:.2f} %", told, half >= bar))
    return Chapter(_TITLE, _METHOD, tuple(rows))


def _percent(game: tuple[str, Player, bool, bool]) -> float:
    """Of the cards that are allocated: a list, a scheduler, whether by FGD, and whether of the half alone."""
    name, player, is_fgd, is_half = game
    nodes, pods = trace.nodes(), _pods(name, is_half=is_half)
    capacity = sum(sum(node.room.cards) for node in nodes)
    fgd = paper_fgd(pods)[0]
    policies = (fgd if is_fgd else served_fgd(), fgd)
    curves = [
        play(nodes, trace.arrivals(pods, capacity, seed), policies, player, seed, draws=is_fgd)
        for seed in _SEEDS
    ]
    return statistics.median(curve[_LISTS[name]] for curve in curves)


def _pods(name: str, *, is_half: bool) -> Sequence[Pod]:
    pods = trace.halves(trace.pods())[1] if is_half else trace.pods()
    return trace.fractional(pods, _FRACTIONAL_SEED) if name == "all-fractional" else pods
