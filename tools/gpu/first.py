"""The first half hour on a card: what the simulated card had to assume."""

from pathlib import Path

from tools.bench.rows import Row, median, shown
from tools.gpu import compute
from tools.gpu.frameworks import missing_torch
from tools.gpu.memory import limit_bytes
from tools.gpu.place import MIB, PROGRAMS, Environment, Place, Told, together

EMPTIES = 1_000_000
_EMPTIES_SIMULATED = 50_000
IMPORTED_BYTES = 10 * 1024 * MIB
GRAPHS = 100
POINTS = 2.0
BESIDE_POINTS = 3.0
START_ROUNDS = 3

EMPTIES_METHOD = """\
10⁶ empty kernels, launched as fast as the host can, without the library and at 50 %. How long the card is
busy with each is measured by events behind a long kernel. The bar is the cap, or what they keep the card busy without one. What the
library charged is read from the container's region."""

BESIDE_METHOD = """\
Two slices at the same moment, kernels of 100 µs in one and of 20 ms in the other, each kernel waited for;
shares as in the chapter on the card's time. A tenant that waits for each short kernel may get one for each of the
neighbour's turns and no more: its bar is its cap, or what it gets where neither has one."""

IMPORTS_METHOD = """\
One process allocates 10 GiB (or half of what is free) and tells an IPC handle, another opens it. NVML, asked from outside,
says how much each pid has; the importer, in a slice of 2 GiB, says how much is free before and after."""

STARTING_METHOD = """\
Exec to the first tensor on the card with PyTorch, and to a context with a C program, without the library and in
a slice, in turn, 3 rounds; medians."""

GRAPHS_METHOD = """\
100 executable graphs of ten kernels: made, launched once each, destroyed. What the program sees as used, without the
library, where that is the driver's word, and in a slice."""


def empties(place: Place) -> list[Row]:
    """Card time of kernels that are shorter than their launch."""
    count = _EMPTIES_SIMULATED if place.is_simulated else EMPTIES
    free = place.tell(place.base, "empties", str(count))
    inside = place.inside("empties", core_percent=50)
    capped = place.tell(inside, "empties", str(count))
    each_ns = free["each_ns"]
    reached, had = (100 * count * each_ns / told["took_ns"] for told in (free, capped))
    bar = min(50.0, reached)
    # The simulated card's kernels take a tenth of their launch, and run by the clock of a machine that
    # does other things: what is charged is the time between launches (docs/isolation.md), and no share.
    least = 0.0 if place.is_simulated else bar
    rows = [
        shown("an empty kernel: card time", f"{each_ns / 1000:.2f} µs"),
        shown(f"{count} of them, native: the card's time", f"{reached:.1f} %"),
        near(f"{count} of them at 50 %: the card's time", least, had, POINTS, most=bar),
    ]
    # Here, where `place` has made our package importable: it need not be installed.
    from gpu_device_plugin.disk.region import read_region

    (use,) = read_region(Path(inside["GPUSLICE_ROOT"]) / "state" / "region").values()
    charged = use.busy_ns / (count * each_ns)
    return [*rows, shown("… what was charged, of what they took", f"{charged:.2f}")]


def beside(place: Place) -> list[Row]:
    """30 and 60 %, short kernels beside long ones, both ways."""
    units = {"100 µs": 100_000, "20 ms": 20_000_000}
    turns = {name: place.turns(ns) for name, ns in units.items()}
    solo_seconds = {
        name: place.tell(place.base, "solo", "sync", turns[name])["piece_ns"] / 1e9
        for name in units
    }
    rows: list[Row] = []
    for caps in ((30, 60), (60, 30)):
        tenants = list(zip(units, caps, strict=True))
        free, had = (
            [
                100 * rate * solo_seconds[name]
                for (name, _), rate in zip(
                    tenants, _rates(place, tenants, turns, is_capped=way), strict=True
                )
            ]
            for way in (False, True)
        )
        for (name, cap), reached, share in zip(tenants, free, had, strict=True):
            other = next(f"{each} at {its} %" for each, its in tenants if each != name)
            what = f"{name} sync at {cap} % beside {other}: the card's time"
            rows.append(near(what, min(float(cap), reached), share, BESIDE_POINTS, most=float(cap)))
    return rows


def _rates(
    place: Place, tenants: list[tuple[str, int]], turns: dict[str, str], *, is_capped: bool
) -> list[float]:
    """Kernels a second of each, at the same moment."""
    commands = []
    for name, cap in tenants:
        room = f"beside-{turns[name]}-{cap if is_capped else 'free'}"
        environment = place.inside(room, core_percent=cap) if is_capped else place.base
        seconds = str(max(place.seconds, compute.FEWEST_SECONDS))
        commands.append((environment, [str(place.program), "work", "sync", turns[name], seconds]))
    return [compute.rate(told) for told in together(commands)]


def imports(place: Place) -> list[Row]:
    """Whose memory an import is, as the driver counts and as the slice does."""
    wanted = min(IMPORTED_BYTES, place.card.free_bytes // 2 // MIB * MIB)
    inside = place.inside("importer", memory_bytes=2048 * MIB)
    program = str(place.program)
    with place.running(place.base, [program, "hold"]):
        context = max(place.look().pids.values(), default=0)
        others = place.look().pids
        exporting = place.running(place.base, [program, "export", str(wanted)])
        with exporting as told, place.running(inside, [program, "import", told["handle"]]) as found:
            listed = place.look().pids
    used = sorted(bytes_ for pid, bytes_ in listed.items() if pid not in others)
    grew = (found["free_before"] - found["free"]) / MIB
    return [
        shown(
            f"pids that NVML lists while {wanted // MIB} MiB are exported and imported",
            ", ".join(f"{each / MIB:.0f} MiB" for each in used) or "none",
        ),
        shown("… with a context alone", f"{context / MIB:.0f} MiB"),
        Row(
            "an import in a slice of 2 GiB succeeds",
            "0",
            str(found["result"]),
            found["result"] == 0,
        ),
        Row("… and takes of the slice", "≤ 2 MiB", f"{grew:.0f} MiB", grew <= 2),
    ]


def starting(place: Place) -> list[Row]:
    """What the library adds to a start."""
    inside = place.inside("starting", memory_bytes=limit_bytes(place), core_percent=50)
    rows = _start_rows(place, inside, "exec to a context", [str(place.program), "hold"], 50)
    missing = missing_torch(place)
    if missing is not None:
        return [
            *rows,
            Row("exec to the first tensor (.cuda())", "≤ 300 ms more", f"not run: {missing}"),
        ]
    command = [place.python, str(PROGRAMS / "torch_start.py")]
    return [*rows, *_start_rows(place, inside, "exec to the first tensor (.cuda())", command, 300)]


def _start_rows(
    place: Place, inside: Environment, what: str, command: list[str], most_ms: float
) -> list[Row]:
    took: dict[str, list[float]] = {"native": [], "slice": []}
    for _ in range(START_ROUNDS):
        for name, environment in (("native", place.base), ("slice", inside)):
            took[name].append(place.timed(environment, command) * 1000)
    native = median(took["native"])
    added = median(took["slice"]) - native
    return [
        shown(f"{what}, native", f"{native:.0f} ms"),
        Row("… added in a slice", f"≤ {most_ms:g} ms", f"{added:.0f} ms", added <= most_ms),
    ]


def graphs(place: Place) -> list[Row]:
    """What executable graphs take, and whether it comes back."""
    native = place.tell(place.base, "graphs", str(GRAPHS))
    inside = place.inside("graphs", memory_bytes=limit_bytes(place))
    ours = place.tell(inside, "graphs", str(GRAPHS))
    apart = max(
        abs(_grown(native, key) - _grown(ours, key)) for key in ("made", "launched", "after")
    )
    return [
        shown(f"{GRAPHS} executable graphs, native: made", f"{_grown(native, 'made'):.0f} MiB"),
        shown("… launched once each", f"{_grown(native, 'launched'):.0f} MiB"),
        shown("… destroyed", f"{_grown(native, 'after'):.0f} MiB"),
        Row("the slice shows the same to", "≤ 8 MiB", f"{apart:.0f} MiB", apart <= 8),
    ]


def _grown(told: Told, key: str) -> float:
    return float(told[key] - told["before"]) / MIB


def near(what: str, wanted: float, had: float, points: float, most: float | None = None) -> Row:
    """A share against its bar; more is allowed up to `most`."""
    upper = max(wanted, most or 0.0)
    bar = (
        f"{wanted:.1f} ± {points:g} %"
        if upper == wanted
        else f"{wanted:.1f} to {upper:.1f} ± {points:g} %"
    )
    return Row(what, bar, f"{had:.1f} %", wanted - points <= had <= upper + points)
