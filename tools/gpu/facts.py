"""What the simulated card assumes of turns, events, queues and copies, and what this card does."""

from tools.bench.rows import Row, shown
from tools.gpu.compute import rate
from tools.gpu.place import Place, together

_TURNS_NS = 400_000_000
_COPY_SECONDS = 2.0
_BESIDE = ("work", "stream")

METHOD = """\
What the simulated card copies from a real one.

Each is asked directly.
- Turns: two processes, each with one kernel that looks at the card's clock for 0.4 s; where it jumps, the other one was there.
- Events: 64 of them, or empty kernels with and without one behind each, queued behind a long kernel.
- Copies: 32,000,000 bytes from pinned memory, each waited for, alone and beside another process's stream of kernels of 100 µs."""


def measure(place: Place) -> list[Row]:
    """Nothing here has a bar: these are the card's own figures."""
    program = str(place.program)
    one, other = together([(place.base, [program, "turns", str(_TURNS_NS)])] * 2)
    change_us = (one["away_ns"] - other["there_ns"]) / 2e3
    events = place.tell(place.base, "events")
    copies = ["copies", str(_COPY_SECONDS)]
    kernels = [*_BESIDE, place.turns(100_000), str(2 * _COPY_SECONDS)]
    alone = rate(place.tell(place.base, *copies))
    beside, _ = together([(place.base, [program, *words]) for words in (copies, kernels)])
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
