"""Mixes of tenants that no constant of the library was fitted to: random, and the same in each run.

`python -m tools.bench.heldout` prints each tenant of each mix. Anyone who changes a constant looks
at tests/isolation/test_compute.py, not at these; they say how well that carries over.
"""

import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tools.bench.rows import Row, shown
from tools.harness.isolation.box import Box, Node
from tools.harness.isolation.compile import compile_programs
from tools.harness.isolation.shares import CARD_TURN_US, SHORT_TURN_US, shares, tenant

SEED, VARIED_SEED, MIXES = 280_735_030, 499_503_183, 30
SECONDS, LONG_SECONDS = 5.0, 20.0
POINTS = 3.0
UNCAPPED = 100
STOPPED_MS = 40  # of each 100
SHORTEST_NS, LONGEST_NS = 5_000, 50_000_000


@dataclass(frozen=True, slots=True)
class Mix:
    """Tenants of one card: cap in percent and kind of work each; how long a turn is."""

    tenants: tuple[tuple[int, str], ...]
    turn_us: int
    is_stopped: bool = False  # the first one's thread, now and then
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one tenant of a mix had, in percent of the card; `free`: where nobody had a cap."""

    cap: int
    kind: str
    had: float
    free: float

    @property
    def off(self) -> float:
        """Points beyond its cap; or, below 0, short of what it could have."""
        wanted = min(float(self.cap), self.free)
        return max(0.0, self.had - self.cap) or min(0.0, self.had - wanted)


def mixes(*, varied: bool = False) -> Iterator[Mix]:
    """The same thirty in every run: caps are steps of 5 that fill at most the card.

    `varied`: each tenant's kernels, of one function and grid, have two lengths, or rise from one
    to the other; some tenants use three streams at once. In half of the mixes the first tenant, or
    one more, is odd (`_odd`).
    """
    draw = random.Random(VARIED_SEED if varied else SEED)  # noqa: S311 - the same in each run
    kind = _varied_kind if varied else _kind
    for _ in range(MIXES):
        count = draw.randint(2, 4)
        caps, left = [], 20
        for others in reversed(range(count)):
            caps.append(draw.randint(1, left - others))
            left -= caps[-1]
        tenants = tuple((5 * cap, kind(draw)) for cap in caps)
        yield _odd(draw, Mix(tenants, draw.choice((CARD_TURN_US, SHORT_TURN_US))))


def _odd(draw: random.Random, mix: Mix) -> Mix:
    """In a tenth of the mixes each: works now and then, very long or short, stands still, no cap."""
    (cap, _), *others = mix.tenants
    paced = f"paced@{_length(draw, 50_000, 4_000_000)}"
    long = f"{draw.choice(('sync', 'graph'))}@{_length(draw, 100_000_000, 300_000_000)}"
    short = f"stream@{_length(draw, 2_000, 20_000)}"
    return {
        0: replace(mix, tenants=((cap, paced), *others)),
        1: replace(mix, tenants=((cap, long), *others), seconds=LONG_SECONDS),
        2: replace(mix, tenants=((cap, short), *others)),
        3: replace(mix, is_stopped=True),
        4: replace(mix, tenants=(*mix.tenants, (UNCAPPED, paced))),
    }.get(draw.randrange(10), mix)


def _kind(draw: random.Random) -> str:
    each_ns = _length(draw, SHORTEST_NS, LONGEST_NS)
    return f"{draw.choice(('sync', 'stream'))}@{each_ns}"


def _length(draw: random.Random, shortest_ns: int, longest_ns: int) -> int:
    each_ns: float = shortest_ns * (longest_ns / shortest_ns) ** draw.random()
    return int(round(each_ns, -3))


def _varied_kind(draw: random.Random) -> str:
    """Mostly short ones and a longer one, in turn or each 50th; or a decode loop's rising ones."""
    short = _length(draw, SHORTEST_NS, LONGEST_NS // 20)
    longer = _length(draw, 2 * short, 20 * short)
    lengths = draw.choice(("{0}/{1}", "{1}/{0}/50", "{0}/{1}/50", "{0}-{1}"))
    return f"{draw.choice(('sync', 'stream', 'streams'))}@{lengths.format(short, longer)}"


def run(directory: Path, mix: Mix) -> list[Outcome]:
    """What each tenant had, with caps and without any."""
    capped, free = (_shares(directory, mix, is_capped=way) for way in (True, False))
    return [
        Outcome(cap, kind, had, unbound)
        for (cap, kind), had, unbound in zip(mix.tenants, capped, free, strict=True)
        if cap < UNCAPPED
    ]


def _shares(directory: Path, mix: Mix, *, is_capped: bool) -> list[float]:
    room = Path(tempfile.mkdtemp(dir=directory))
    node = Node.create(room)
    boxes = [
        tenant(
            lambda name, library: Box(room / name, node, directory, library),
            f"t{index}",
            cap if is_capped else UNCAPPED,
            turn_us=mix.turn_us,
        )
        for index, (cap, _) in enumerate(mix.tenants)
    ]
    if mix.is_stopped:
        boxes[0].variables["GPU_SIMULATOR_STOPPED_MS"] = str(STOPPED_MS)
    try:
        kinds = (kind for _, kind in mix.tenants)
        return shares(*zip(boxes, kinds, strict=True), seconds=mix.seconds)
    finally:
        for box in boxes:
            box.close()


def rows(directory: Path) -> tuple[Row, ...]:
    """What holds for all, and one row for each tenant that misses; first where lengths are one."""
    return _rows(directory, varied=False) + _rows(directory, varied=True)


def _rows(directory: Path, *, varied: bool) -> tuple[Row, ...]:
    found = [(mix, each) for mix in mixes(varied=varied) for each in run(directory, mix)]
    missed = [(mix, each) for mix, each in found if abs(each.off) > POINTS]
    short = sum(each.cap - each.had > POINTS >= -each.off for _, each in found)
    offs = [each.off for _, each in found]
    which = "kernels that vary, several streams" if varied else "one length, one stream"
    what = f"{MIXES} mixes held out ({which}), {len(found)} tenants: within {POINTS:g} points"
    return (
        Row(what, str(len(found)), str(len(found) - len(missed)), not missed),
        shown(
            "… most beyond a cap, most short of one", f"{max(offs):+.1f}, {min(offs):+.1f} points"
        ),
        shown("… short of their cap, and no less than without any caps", f"{short} tenants"),
        *(_missed(mix, each) for mix, each in missed),
    )


def _missed(mix: Mix, each: Outcome) -> Row:
    others = [_described(*other) for other in mix.tenants if other != (each.cap, each.kind)]
    return Row(
        f"… {_described(each.cap, each.kind)} beside {', '.join(others)}; turns of {mix.turn_us} µs"
        f"{'; the first stands still' if mix.is_stopped else ''}",
        f"{min(float(each.cap), each.free):.1f} %",
        f"{each.had:.1f} %",
        is_met=False,
    )


def _described(cap: int, kind: str) -> str:
    """`30 % (5 µs sync)`, `30 % (5/50 µs streams)`."""
    name, _, lengths = kind.partition("@")
    rare = lengths.endswith("/50")
    in_us = re.sub(r"\d+", lambda found: f"{int(found[0]) / 1000:g}", lengths.removesuffix("/50"))
    return f"{cap} % ({in_us} µs{', each 50th' if rare else ''} {name})"


def main() -> None:
    """Prints every tenant."""
    directory = Path(tempfile.mkdtemp())
    try:
        compile_programs(directory)
        for number, mix in enumerate((*mixes(), *mixes(varied=True))):
            for each in run(directory, mix):
                sys.stdout.write(
                    f"{number:2} {mix.turn_us} {'stopped' if mix.is_stopped else ''} {each.cap:3} "
                    f"{each.kind:<26} had {each.had:5.1f} "
                    f"free {each.free:5.1f} off {each.off:+5.1f}"
                    f"{'  MISSED' if abs(each.off) > POINTS else ''}\n"
                )
            sys.stdout.flush()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
