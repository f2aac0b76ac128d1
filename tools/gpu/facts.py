"""What the simulated card assumes of turns, events, queues and copies, and what this card does."""

from collections.abc import Sequence

from tools.bench.rows import Row, shown
from tools.gpu.compute import rate
from tools.gpu.place import Place, Told, answer, end, start

_TURNS_NS = 400_000_000
_COPY_SECONDS = 2.0
_BESIDE = ("work", "stream")

METHOD = """\
Turns: two processes, each with one kernel that looks at the card's clock for 0.4 s; where it jumps, the other one was there.
Events: 64 of them, or empty kernels with and without one behind each, queued behind a long kernel.
Copies: 32,000,000 bytes from pinned memory, each waited for, alone and beside another process's stream of kernels of 100 µs."""


def measure(place: Place) -> list[Row]:
    """Nothing here has a bar: these are the card's own figures."""
    one, other = _together(place, [["turns", str(_TURNS_NS)]] * 2)
    change_us = (one["away_ns"] - other["there_ns"]) / 2e3
    events = place.tell(place.base, "events")
    copies = ["copies", str(_COPY_SECONDS)]
    turns = str(place.tell(place.base, "calibrate", "100000")["turns"])
    kernels = [*_BESIDE, turns, str(2 * _COPY_SECONDS)]
    alone = rate(place.tell(place.base, *copies))
    beside, _ = _together(place, [copies, kernels])
    return [
        shown("a process's turn beside another", f"{one['there_ns'] / 1e3:.0f} µs"),
        shown("a change of process", f"{change_us:.0f} µs"),
        shown("event to event", f"{events['event_ns']:.0f} ns"),
        shown("an event between two kernels", f"{events['between_kernels_ns']:.0f} ns"),
        shown("an empty kernel of a stream", f"{events['kernel_ns']:.0f} ns"),
        shown("launches in a queue before one blocks", f"{events['queue']}"),
        shown("copies of 32,000,000 bytes", f"{alone:.0f} a second"),
        shown("… beside another process's kernels", f"{rate(beside):.0f} a second"),
    ]


def _together(place: Place, commands: Sequence[Sequence[str]]) -> list[Told]:
    started = [start(place.base, [str(place.program), *words]) for words in commands]
    try:
        return [answer(process) for process in started]
    finally:
        for process in started:
            end(process)
