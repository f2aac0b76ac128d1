"""What the library adds to a call: native and in a slice, alternating, in one run."""

from tools.bench.rows import Row, median, shown
from tools.gpu.memory import limit_bytes
from tools.gpu.place import Environment, Place, Told

ROUNDS = 5
# cuInit takes a real driver a hundred times what we may add.
START_ROUNDS = 11

METHOD = """\
A C program calls the driver through the pointers that dlsym gave, without the library, in a slice
with a memory cap, and in one with a cap of the card's time too (99 %: measured, hardly ever held
back), in turn, 5 rounds (11 for cuInit); medians of the rounds. Launches: an empty kernel in batches of 500, the queue empty before each batch.
Allocations: 4 KiB, each call timed, with the cost of the clock in it both times."""


def measure(place: Place) -> list[Row]:
    """Launches, allocations and starts."""
    limit = limit_bytes(place)
    environments: dict[str, Environment] = {
        "native": place.base,
        "memory": place.inside("cost-memory", memory_bytes=limit),
        "both": place.inside("cost-both", memory_bytes=limit, core_percent=99),
    }
    launches = _rounds(place, environments, "launches")
    allocations = _rounds(place, environments, "allocations")
    del environments["both"]
    starts = _rounds(place, environments, "hold", START_ROUNDS)
    return [
        _added("a launch, memory cap", launches, "memory", "p50", 100),
        _added("a launch, both caps (events with it)", launches, "both", "p50", 300),
        shown("a launch, native", f"{_middle(launches['native'], 'p50'):.0f} ns"),
        _added("an allocation, p50", allocations, "memory", "alloc_p50", 500),
        _added("a free, p50", allocations, "memory", "free_p50", 500),
        *(_spread(allocations, name) for name in ("native", "memory")),
        _added("cuInit", starts, "memory", "init_ns", 5_000_000),
        shown("cuInit, native", f"{_middle(starts['native'], 'init_ns') / 1e6:.1f} ms"),
    ]


def _rounds(
    place: Place, environments: dict[str, Environment], command: str, rounds: int = ROUNDS
) -> dict[str, list[Told]]:
    words = [command] if command == "hold" else [command, str(place.count)]
    told: dict[str, list[Told]] = {name: [] for name in environments}
    for _ in range(rounds):
        for name, environment in environments.items():
            told[name].append(place.tell(environment, *words))
    return told


def _middle(told: list[Told], key: str) -> float:
    return median([one[key] for one in told])


def _added(what: str, told: dict[str, list[Told]], name: str, key: str, bar_ns: float) -> Row:
    added = _middle(told[name], key) - _middle(told["native"], key)
    return Row(f"added to {what}", f"≤ {bar_ns:g} ns", f"{added:.0f} ns", added <= bar_ns)


def _spread(told: dict[str, list[Told]], name: str) -> Row:
    figures = [
        f"{call} {_middle(told[name], f'{call}_p50') / 1e3:.2f} / "
        f"{_middle(told[name], f'{call}_p99') / 1e3:.2f} µs"
        for call in ("alloc", "free")
    ]
    what = "native" if name == "native" else "in a slice"
    return shown(f"4 KiB, {what}, p50 / p99", "; ".join(figures))
