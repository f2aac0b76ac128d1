"""`make histories`: plays random histories, and shows the first that fails as short as it can be made.

    python -m tests.histories [--count N] [--seed FIRST] [--jobs N] [--story]

Each history is made from its own number, so one command plays one again:
`python -m tests.histories --seed 4711 --count 1 --story`.
"""

import argparse
import dataclasses
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from tests.histories.explored import Explored
from tests.histories.history import Outcome, play, shortened
from tests.histories.making import made
from tests.histories.steps import Step

_A_BATCH = 10
_BATCHES_A_PROCESS = 20
_TOLD_EVERY = 500


def main() -> int:
    """Play; the exit code."""
    parser = argparse.ArgumentParser(prog="tests.histories")
    parser.add_argument("--count", type=int, default=10_000, help="how many histories")
    parser.add_argument("--seed", type=int, default=0, help="number of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--story", action="store_true", help="tell what happened in the last one")
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set must not be left to chance
        os.environ["PYTHONHASHSEED"] = "0"
        again = [sys.executable, "-m", "tests.histories", *sys.argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606 - this very program
    seeds = range(chosen.seed, chosen.seed + chosen.count)
    if chosen.story:
        _tell("\n".join(play(made(seeds[-1]), seeds[-1]).story))
    explored, failed = _play(seeds, min(chosen.jobs, chosen.count))
    if failed is not None:
        _explain(failed)
        return 1
    _tell("\n".join(explored.story()))
    if lacking := tuple(explored.too_little(len(seeds))):
        _tell("explored too little of: " + "; ".join(lacking))
    _tell(explored.line(len(seeds)))
    return 1 if lacking else 0


def _play(seeds: Sequence[int], jobs: int) -> tuple[Explored, int | None]:
    """What was explored, and the first seed that fails, in the order in which they are played."""
    # Looking for rings of objects took a sixth of the time; what is imported by now has none that end.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    began, explored, uncapped_seconds = time.monotonic(), Explored(), 0.0
    with multiprocessing.get_context("fork").Pool(
        jobs, maxtasksperchild=_BATCHES_A_PROCESS
    ) as pool:
        played = pool.imap_unordered(_played, seeds, chunksize=min(_A_BATCH, len(seeds)))
        for number, (seed, outcome) in enumerate(played, 1):
            explored.update(outcome.explored)
            uncapped_seconds += outcome.uncapped_seconds
            if outcome.violation:
                return explored, seed
            if number % _TOLD_EVERY == 0 or number == len(seeds):
                seconds = time.monotonic() - began
                _tell(
                    f"{number} histories in {seconds:.0f} s, {number / seconds:.1f} a second; "
                    f"{uncapped_seconds:.0f} s of containers that had lost their limit"
                )
    return explored, None


def _played(seed: int) -> tuple[int, Outcome]:
    outcome = play(made(seed), seed)
    return seed, dataclasses.replace(outcome, story=())


def _explain(seed: int) -> None:
    steps = made(seed)
    first = play(steps, seed)
    kind = _kind(first)

    def is_bad(shorter: Sequence[Step]) -> bool:
        return _kind(play(shorter, seed)) == kind

    steps = shortened(steps, is_bad)
    outcome = play(steps, seed)
    _tell(f"\nhistory {seed} fails: {first.violation}\n\nshortened, with seed {seed}:\n")
    _tell("".join(f"    {step},\n" for step in steps))
    _tell("\n".join(outcome.story))
    _tell(f"\n{outcome.violation}\n\nagain: make histories SEED={seed} HISTORIES=1")


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _kind(outcome: Outcome) -> str:
    """What sort of failure it is: a shorter history must fail in the same way."""
    return "".join(c for c in outcome.violation if c.isalpha() or c.isspace())[:40]


if __name__ == "__main__":
    sys.exit(main())
