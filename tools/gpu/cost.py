"""What the library adds to a call: native and in a slice, in turn, in one run."""

from tools.bench.rows import Row, shown
from tools.gpu.memory import limit_bytes
from tools.gpu.place import Environment, Place, Told

ROUNDS = 11

METHOD = """\
What the library adds to a call of the driver.

A C program calls the driver through the pointers that dlsym gave, without the library and in a slice with a memory cap, in turn, 11 rounds.
Then the same with a cap of 99 % of the card's time too. The least of the rounds' medians counts.
- Launches: an empty kernel in batches of 500, the queue empty before each batch.
- Allocations: 4 KiB, each call timed."""


def measure(place: Place) -> list[Row]:
    """Launches, allocations and starts."""
    limit = limit_bytes(place)
    memory = place.inside("cost-memory", memory_bytes=limit)
    both = place.inside("cost-both", memory_bytes=limit, core_percent=99)
    # In this order: for a while beside a neighbour that is measured, a slice without a cap is too.
    launches = _rounds(place, memory, "launches")
    allocations = _rounds(place, memory, "allocations")
    starts = _rounds(place, memory, "hold")
    measured = _rounds(place, both, "launches")
    return [
        _added("a launch, memory cap", launches, "p50", 100),
        _added("a launch, both caps (events with it)", measured, "p50", 300),
        shown("a launch, native", f"{_least(launches['native'], 'p50'):.0f} ns"),
        _added("an allocation, p50", allocations, "alloc_p50", 500),
        _added("a free, p50", allocations, "free_p50", 500),
        *(_spread(allocations, name) for name in ("native", "slice")),
        # cuInit takes a real driver a hundred times what we may add.
        _added("cuInit", starts, "init_ns", 5_000_000),
        shown("cuInit, native", f"{_least(starts['native'], 'init_ns') / 1e6:.1f} ms"),
    ]


def _rounds(place: Place, inside: Environment, command: str) -> dict[str, list[Told]]:
    words = [command] if command == "hold" else [command, str(place.count)]
    told: dict[str, list[Told]] = {"native": [], "slice": []}
    for _ in range(ROUNDS):
        told["native"].append(place.tell(place.base, *words))
        told["slice"].append(place.tell(inside, *words))
    return told


def _least(told: list[Told], key: str) -> float:
    return min(float(one[key]) for one in told)


def _added(what: str, told: dict[str, list[Told]], key: str, bar_ns: float) -> Row:
    added = _least(told["slice"], key) - _least(told["native"], key)
    return Row(f"added to {what}", f"≤ {bar_ns:g} ns", f"{added:.0f} ns", added <= bar_ns)


def _spread(told: dict[str, list[Told]], name: str) -> Row:
    figures = [
        f"{call} {_least(told[name], f'{call}_p50') / 1e3:.2f} / "
        f"{_least(told[name], f'{call}_p99') / 1e3:.2f} µs"
        for call in ("alloc", "free")
    ]
    what = "native" if name == "native" else "in a slice"
    return shown(f"4 KiB, {what}, p50 / p99", "; ".join(figures))
