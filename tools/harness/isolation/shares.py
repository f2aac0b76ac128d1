"""Shares of a card's time, measured in simulated time that moves in steps.

It stands still while a program or the library computes (src/simulator/cuda/steps.h), so a slow or
loaded machine changes nothing, and 10 seconds take a fraction of one.
"""

import re
from collections.abc import Callable

from tools.harness.isolation.box import MIB, Box, Program

MakeBox = Callable[..., Box]

SECONDS = 10.0
POINTS = 2.0
OF_SHARE = 0.95
WORK = {"sync": 20_000_000, "stream": 100_000, "graph": 1_000_000}
BURST_NS = 100_000  # kernels of the kind "burst": 50 of them, then 4 ms of work on the host
# What a copy of 32,000,000 bytes takes by itself on the simulated bus (src/simulator/cuda/copy.c).
COPY_NS = 2_668_667
STEPPING = "libgpuslice-testing.so"  # whose timers run on the simulated clock
CARD_TURN_US = 2090  # how long a process is on a card at a time, as measured on an H100
SHORT_TURN_US = 1024  # the other setting
BESIDE_POINTS = 3.0  # beside neighbours in turns
BESIDE_OF_SHARE = 0.88  # what waits for each of its kernels leaves the card some microseconds
FULL_POINTS = 4.0  # where caps fill the card: changes of process take 2 to 4 % of it


def in_turns(box: Box, turn_us: int = CARD_TURN_US) -> Box:
    """The same, on cards where a turn lasts so many microseconds."""
    box.variables["GPU_SIMULATOR_TIMESLICE_US"] = str(turn_us)
    # Pieces of work tell of time only where each takes what it says, whatever else goes on.
    box.variables["GPU_SIMULATOR_CLOCK_PERMILLE"] = "0"
    box.variables["GPU_SIMULATOR_OVERLAP_PERCENT"] = "0"
    return box


def tenant(
    make_box: MakeBox, name: str, percent: int, policy: str = "fixed", turn_us: int = CARD_TURN_US
) -> Box:
    """A container with a share of card 0, and its place beside the others of that card."""
    box = in_turns(make_box(name, library=STEPPING), turn_us)
    uuid = box.node.uuids[0]
    box.write(
        f"version=1\nslice={name}\npolicy={policy}\n"
        f"device={uuid} memory_bytes={2000 * MIB} core_percent={percent}\n"
    )
    cards = box.root.parent / "cards"
    (cards / uuid).mkdir(parents=True, exist_ok=True)
    (cards / uuid / name).write_bytes(bytes(4096))
    (box.root / "cards").symlink_to(cards)
    return box


def alone(
    make_box: MakeBox, percent: int | None, name: str = "a", turn_us: int = CARD_TURN_US
) -> Box:
    """A container with a share and without cards/."""
    box = in_turns(make_box(name, library=STEPPING), turn_us)
    box.allow(2000 * MIB, percent)
    return box


def lengths_of(kind: str, unit_ns: int | None = None) -> tuple[str, str]:
    """Kind of work and lengths of its kernels in nanoseconds: "sync@100000" says both.

    "sync@20000/200000" takes them in turn, "/50" behind that every 50th, "20000-60000" rises, and
    "20000~200000~2000" is 2,000 of the one and then of the other (programs/client.c, `lengths`): all are launches of one function and grid.
    """
    name, _, own = kind.partition("@")
    return name, own or str(unit_ns or WORK[name])


def unit_of(kind: str, unit_ns: int | None = None) -> int:
    """Nanoseconds of a piece of work: of the first kernel."""
    return int(re.split("[/~-]", lengths_of(kind, unit_ns)[1])[0])


def ready(box: Box, kind: str, unit_ns: int | None = None) -> Program:
    """A program that can work, before the clock is shared: getting ready takes time too."""
    program = box.start()
    if kind.startswith("graph"):
        assert program(f"kernel_graph 0 {unit_of(kind, unit_ns) // 10} 10") == [0]
    return program


def shares(
    *tasks: tuple[Box, str],
    unit_ns: int | None = None,
    in_steps: bool = True,
    seconds: float = SECONDS,
) -> list[float]:
    """Percent of the card's time that programs had which worked side by side as hard as they may.

    Args:
        tasks: Containers, and the kind of work of each (programs/client.c, `kinds`), with its kernels'
            length where that is not the usual one: "sync@100000".
        unit_ns: How long a kernel, or a graph of ten, takes; by the kind of work if it is None.
        in_steps: On the clock that stands still while anything computes. Else in real time, which
            takes `seconds` and shows what the library does while a program computes ("burst").
        seconds: How long they work.
    """
    programs = [(ready(box, kind, unit_ns), kind) for box, kind in tasks]
    return work(*programs, unit_ns=unit_ns, in_steps=in_steps, seconds=seconds)


def work(
    *tasks: tuple[Program, str],
    unit_ns: int | None = None,
    in_steps: bool = True,
    seconds: float = SECONDS,
) -> list[float]:
    """The same of programs that are ready, and that may have worked before."""
    had = []
    for program, kind in tasks:
        name, lengths = lengths_of(kind, unit_ns)
        program.tell(f"work {name} {lengths} {seconds} {len(tasks) * in_steps}")
    for program, kind in tasks:
        result, pieces, took_ns = program.answer()
        assert result == 0
        had.append(100 * pieces * unit_of(kind, unit_ns) / took_ns)
    return had


def is_kept(had: float, percent: float, beside: int = 0) -> bool:
    """Within two points and no less than 0.95 of the share; four and 0.9 beside others who fill the card."""
    if beside:
        return abs(had - percent) <= FULL_POINTS and had >= BESIDE_OF_SHARE * percent
    return abs(had - percent) <= POINTS and had >= OF_SHARE * percent


def mix(tenants: int, percent: int, kind: str) -> list[tuple[int, str]]:
    """A tenant to be measured and those beside it, who have all the rest of the card."""
    rest = (100 - percent) // max(1, tenants - 1)
    return [(percent, kind), (rest, "sync"), (rest, kind)][:tenants]
