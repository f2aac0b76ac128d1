"""`make gpu`: what only a real card can tell; says so, and ends well, where there is none.

`python3 -m tests.gpu [CHAPTER ...]` needs only pynvml, a C compiler and cuda.h of the machine
(PyTorch of PYTHON_GPU, else python3, where there is one). It reads the card's modes and clocks at
most: it changes none. Ends with 1 when a check fails or a card cannot be asked. `--simulated` runs
the checks against the simulated driver, to prove the checks; nothing of it is written down.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench.machine import say
from tests.bench.report import DOCUMENT
from tests.bench.rows import Chapter, Row
from tests.gpu import compute, cost, frameworks, memory, report, routing
from tests.gpu.card import CardError, NoCardError, find
from tests.gpu.place import ROOT, CheckError, Place, library_base, on_card
from tests.gpu.simulated import simulated_base

_CONTAINER = Path("/run/gpu-device-plugin/config")

Check = Callable[[Place], list[Row]]
Method = Callable[[Place], str]


def _fixed(text: str) -> Method:
    return lambda _: text


CHAPTERS: Mapping[str, tuple[str, Method, tuple[Check, ...]]] = {
    "routing": ("Names", _fixed(routing.METHOD), (routing.measure,)),
    "memory": ("The memory cap", _fixed(memory.METHOD), memory.CHECKS),
    "cost": ("What a call costs", _fixed(cost.METHOD), (cost.measure,)),
    "compute": ("The cap of the card's time", compute.method, (compute.measure,)),
    "pytorch": ("PyTorch", _fixed(frameworks.METHOD), (frameworks.measure,)),
}


def main() -> int:
    """Looks for a card, runs the checks, writes the section; the exit status."""
    asked = _arguments()
    if _CONTAINER.exists():
        say(f"{_CONTAINER} is there: this is inside a slice already; run it outside")
        return 1
    with tempfile.TemporaryDirectory() as name:
        try:
            place = _place(Path(name), asked)
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
        say(f"    processes {place.card.pids} use it too: figures of time and memory are not ours")
    chapters = [_measured(place, chapter) for chapter in asked.chapters or CHAPTERS]
    failed = [row for chapter in chapters for row in chapter.rows if row.is_met is False]
    if not place.is_simulated and not asked.chapters:
        report.write(asked.document, place.card, chapters)
        say(f"==> {asked.document}")
    say(f"==> {len(failed)} checks failed" if failed else "==> no check failed")
    return 1 if failed else 0


def _measured(place: Place, name: str) -> Chapter:
    title, method, checks = CHAPTERS[name]
    say(f"==> {name}")
    rows: list[Row] = []
    for check in checks:
        try:
            rows += check(place)
        except (CheckError, CardError, NoCardError) as error:
            rows.append(
                Row(f"{name}: the check itself", "runs to its end", str(error), is_met=False)
            )
    for row in rows:
        bar = f" ({row.target}) {row.verdict}" if row.target else ""
        say(f"    {row.what}: {row.measured}{bar}")
    return Chapter(title, method(place), tuple(rows))


def _place(directory: Path, asked: argparse.Namespace) -> Place:
    library = asked.native / "libgpuslice.so"
    if not library.exists():
        raise CheckError(f"{library} is not built: make native")
    base = library_base()
    if asked.simulated:
        base = simulated_base(directory, asked.native, base)
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
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description=__doc__)
    parser.add_argument("chapters", nargs="*", choices=[[], *CHAPTERS], metavar="CHAPTER")
    parser.add_argument("--simulated", action="store_true", help="prove the checks, without a card")
    parser.add_argument("--seconds", type=float, default=10.0, help="window of one share")
    parser.add_argument("--count", type=int, default=50_000, help="calls of one measured cost")
    parser.add_argument("--document", type=Path, default=ROOT / DOCUMENT)
    parser.add_argument("--native", type=Path, default=ROOT / "build" / "native")
    parser.add_argument("--library", type=Path, help="preloaded instead of libgpuslice.so")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
