"""Two models on one card, each of which writes one token after another: what they get by each way to share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.bench.rows import Row, shown
from tools.gpu.compute import rate
from tools.gpu.place import Environment, Told, answer, started


@dataclass(frozen=True, slots=True)
class Way:
    """A way to share a card.

    Attributes:
        parts: Of each model, in percent; 0: without any limit.
        is_mps: NVIDIA's MPS keeps them, not a slice.
    """

    parts: Sequence[int]
    is_mps: bool = False


ALONE = "alone on the card"
WAYS: Mapping[str, Way] = {
    ALONE: Way((0,)),
    "native sharing": Way((0, 0)),
    "slices of 50 and 50 %": Way((50, 50)),
    "slices of 30 and 60 %": Way((30, 60)),
    "MPS, 50 and 50 %": Way((50, 50), is_mps=True),
    "MPS, 30 and 60 %": Way((30, 60), is_mps=True),
}
PUBLISHED = shown(
    "published by NVIDIA (Dynamo, Qwen3-4B, two models on an A100)",
    "MPS: together 60 to 88 % of one alone, p50 110 to 154 %; time-slicing: 45 to 73 %, p50 136 to 221 %",
)


def at_once(environment: Environment, commands: Sequence[Sequence[str]]) -> Sequence[Told]:
    """What programs tell that begin when all of them are ready."""
    with started([(environment, command) for command in commands]) as processes:
        for process in processes:
            answer(process)
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        return [answer(process) for process in processes]


def rows(way: str, alone: Told, told: Sequence[Told]) -> Sequence[Row]:
    """Rate, time between tokens, and whether the tokens are those of a model that has the card for itself."""
    part = sum(map(rate, told)) / rate(alone)
    rates = " and ".join(f"{rate(one):.1f}" for one in told)
    gaps = [f"{one['p50_ns'] / 1e6:.2f} / {one['p99_ns'] / 1e6:.2f} ms" for one in told]
    longer = ", ".join(f"{100 * one['p50_ns'] / alone['p50_ns']:.0f} %" for one in told)
    of_alone = f"; together {100 * part:.0f} % of one alone" if way != ALONE else ""
    of_its = f"; p50 {longer} of one alone" if way != ALONE else ""
    found = [
        shown(f"{way}: tokens a second", f"{rates}{of_alone}"),
        shown(f"{way}: p50 / p99 between tokens", f"{' and '.join(gaps)}{of_its}"),
    ]
    return found if way == ALONE else [*found, *(_same(way, alone, one) for one in told)]


def _same(way: str, alone: Told, told: Told) -> Row:
    pairs = zip(alone["tokens"], told["tokens"], strict=False)
    same = [mine == theirs for mine, theirs in pairs]
    measured = f"the same {len(same)}" if all(same) else f"another at {same.index(False)}"
    shared = WAYS[way]
    if shared.is_mps or not all(shared.parts):  # beside MPS a framework may choose other kernels
        return shown(f"{way}: tokens", measured)
    return Row(f"{way}: tokens", "those of one alone", measured, all(same) and bool(same))
