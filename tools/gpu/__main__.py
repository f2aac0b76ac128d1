"""`make gpu`: what only a real card can tell; says so, and ends well, where there is none.

`python3 -m tools.gpu [CHAPTER ...]` needs only pynvml, a C compiler and cuda.h of the machine
(PyTorch of PYTHON_GPU, else python3, where there is one). It reads the card's modes and clocks at
most: it changes none. All chapters take less than 25 minutes, each one at most 8; a run that is
interrupted goes on where it was. Ends with 1 when a check fails or a card cannot be asked. `--simulated` runs
the checks against the simulated driver, to prove the checks; nothing of it is written down.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.bench.machine import say
from tools.bench.report import DOCUMENT
from tools.bench.rows import Chapter, Row
from tools.gpu import (
    compute,
    cost,
    facts,
    first,
    frameworks,
    limits,
    memory,
    report,
    routing,
    slices,
)
from tools.gpu.card import CardError, NoCardError, find
from tools.gpu.kept import Kept, limited
from tools.gpu.place import ROOT, CheckError, Place, library_base, on_card
from tools.gpu.simulated import simulated_base

_CONTAINER = Path("/run/gpu-device-plugin/config")

Check = Callable[[Place], list[Row]]
Method = Callable[[Place], str]


def _fixed(text: str) -> Method:
    return lambda _: text


@dataclass(frozen=True, slots=True)
class Part:
    """A chapter: its title, how it measures, and its checks."""

    title: str
    method: Method
    checks: tuple[Check, ...]


# In the order of what a first half hour on a card has to answer.
CHAPTERS: Mapping[str, Part] = {
    "facts": Part("The card itself", _fixed(facts.METHOD), (facts.measure,)),
    "empties": Part("10⁶ empty kernels", _fixed(first.EMPTIES_METHOD), (first.empties,)),
    "beside": Part("Two tenants", _fixed(first.BESIDE_METHOD), (first.beside,)),
    "imports": Part("Imported memory", _fixed(first.IMPORTS_METHOD), (first.imports,)),
    "starting": Part("The cost of a start", _fixed(first.STARTING_METHOD), (first.starting,)),
    "graphs": Part("Graphs' memory", _fixed(first.GRAPHS_METHOD), (first.graphs,)),
    "models": Part("Models", _fixed(frameworks.MODELS_METHOD), (frameworks.models,)),
    "vllm": Part("vLLM", _fixed(frameworks.VLLM_METHOD), (frameworks.vllm,)),
    "routing": Part("Names", _fixed(routing.METHOD), (routing.measure,)),
    "memory": Part("The memory cap", _fixed(memory.METHOD), memory.CHECKS),
    "cost": Part("What a call costs", _fixed(cost.METHOD), (cost.measure,)),
    "compute": Part("The cap of the card's time", compute.method, (compute.measure,)),
    "limits": Part("The driver's own limits", _fixed(limits.METHOD), (limits.measure,)),
    "slices": Part("The agent's slices", _fixed(slices.METHOD), (slices.measure,)),
    "pytorch": Part("PyTorch", _fixed(frameworks.METHOD), (frameworks.measure,)),
}
CHAPTER_SECONDS, ALL_SECONDS = 8 * 60, 25 * 60


def main() -> int:
    """Looks for a card, runs the checks, writes the section; the exit status."""
    asked = _arguments()
    if _CONTAINER.exists():
        say(f"{_CONTAINER} is there: this is inside a slice already; run it outside")
        return 1
    with tempfile.TemporaryDirectory() as name:
        try:
            place = _place(Path(name), asked)
            if asked.program:
                shutil.copy(asked.program, place.program)
            else:
                place.compile()
        except NoCardError as none:
            say(f"no GPU: {none}. Nothing was measured, nothing was written.")
            return 0
        except (CardError, CheckError) as error:
            say(f"cannot measure: {error}")
            return 1
        return _run(place, asked)


def _run(place: Place, asked: argparse.Namespace) -> int:
    kind = "SIMULATED card" if place.is_simulated else "card"
    say(f"==> {kind} {place.card.name}, {place.card.uuid}, driver {place.card.driver}")
    if place.card.pids:
        say(
            f"    processes {sorted(place.card.pids)} use it too: figures of time and memory are not this run's alone"
        )
    kept = None if place.is_simulated else Kept(asked.keep, place.card, place.library)
    found, left = _all(place, asked, kept)
    parts = {name: CHAPTERS[name] for name in found}
    chapters = [
        Chapter(part.title, part.method(place), tuple(found[name])) for name, part in parts.items()
    ]
    if kept and not asked.chapters:
        report.write(asked.document, place.card, chapters, left)
        say(f"==> {asked.document}")
        if all(kept.rows(name) for name in CHAPTERS):
            kept.forget()
    if left:
        again = "the same command goes on with"
        say(f"==> {asked.minutes:g} minutes are over; {again} {', '.join(left)}")
    missed = report.missed(chapters)
    for line in [*missed, *report.not_run(chapters)]:
        say(f"    {line}")
    say(f"==> {len(missed)} checks failed" if missed else "==> no check failed")
    return 1 if missed else 0


def _all(
    place: Place, asked: argparse.Namespace, kept: Kept | None
) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows by chapter, those of an earlier run with them, and the chapters that have none yet."""
    end_seconds = time.monotonic() + asked.minutes * 60
    found: dict[str, list[Row]] = {}
    left = []
    for name in asked.chapters or CHAPTERS:
        rows = kept.rows(name) if kept and not asked.chapters else None
        left_seconds = end_seconds - time.monotonic()
        if rows is not None:
            say(f"==> {name}: measured before, {asked.keep}")
        elif left_seconds <= 0:
            left.append(name)
            continue
        else:
            rows = _measured(place, name, min(CHAPTER_SECONDS, left_seconds))
            if kept:
                kept.save(name, rows)
        found[name] = rows
    return found, left


def _measured(place: Place, name: str, seconds: float) -> list[Row]:
    """The chapter's rows; what it has after so many seconds, and a row that says so."""
    say(f"==> {name}")
    rows: list[Row] = []
    try:
        with limited(seconds):
            for check in CHAPTERS[name].checks:
                rows += check(place)
    except (CheckError, CardError, NoCardError) as error:
        rows.append(Row(f"{name}: the check itself", "runs to its end", str(error), is_met=False))
    for row in rows:
        bar = f" ({row.target}) {row.verdict}" if row.target else ""
        say(f"    {row.what}: {row.measured}{bar}")
    return rows


def _place(directory: Path, asked: argparse.Namespace) -> Place:
    library = asked.native / "libgpuslice.so"
    if not library.exists():
        raise CheckError(f"{library} is not built: make native")
    base = library_base()
    if asked.simulated:
        base = simulated_base(directory, base)
    card = find(base)
    if card.is_simulated != asked.simulated:
        raise CheckError("the driver here is the simulated one: only with --simulated")
    return Place(
        directory=directory,
        library=asked.library or library,
        base=on_card(base, card),
        card=card,
        seconds=asked.seconds,
        count=asked.count,
        python=os.environ.get("PYTHON_GPU", "python3"),
        is_simulated=asked.simulated,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu", description=__doc__)
    parser.add_argument("chapters", nargs="*", choices=[[], *CHAPTERS], metavar="CHAPTER")
    parser.add_argument("--simulated", action="store_true", help="prove the checks, without a card")
    parser.add_argument("--seconds", type=float, default=10.0, help="window of one share")
    parser.add_argument("--count", type=int, default=50_000, help="calls of one measured cost")
    parser.add_argument(
        "--minutes", type=float, default=ALL_SECONDS / 60, help="begin no chapter after this"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        default=ROOT / "build" / "gpu.json",
        help="chapters that are measured; the next run of all goes on behind them",
    )
    parser.add_argument("--document", type=Path, default=ROOT / DOCUMENT)
    parser.add_argument("--native", type=Path, default=ROOT / "build" / "native")
    parser.add_argument("--library", type=Path, help="preloaded instead of libgpuslice.so")
    parser.add_argument("--program", type=Path, help="card.c, built already")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
