"""What NVIDIA's driver does with memory limits of its own: questions that only a card of driver 615 answers."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.bench.rows import Row, shown
from tools.gpu.memory import OUT_OF_MEMORY, limit_bytes
from tools.gpu.place import MIB, PROGRAMS, CheckError, Place, Told, answer, end, start

FIRST_DRIVER = 615
_NONE = 2**64 - 1
_STEP_BYTES = 16 * MIB
_TREES = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_QUESTIONS = (
    "what a limited container is shown (NVML, CUDA, nvidia-smi)",
    "what of the card managed memory takes beside a limit",
    "who is charged for imported memory, and after the exporter's end",
    "what is left of limits after 1,000 ends of containers",
    "limits while nobody uses the card",
    "whether a limit is set without CAP_SYS_ADMIN",
    "the smallest limit in which a context opens",
    "whether limits add up to the card's memory",
    "MPS: whose cgroup is charged",
    "MPS: a namespace's percentage beside a client's variable",
    "what a limit adds to an allocation",
    "limits of the driver branches 610 and 595",
    "whether every cgroup from the root to a container has dmem files",
    "a limit above the card's total",
    "limits after a reset, an XID and a reload",
)

METHOD = """\
Whether NVIDIA's driver (615 or later) keeps programs to the memory limit of their cgroup.

Cgroups of this chapter's own below /sys/fs/cgroup, with no soft limit; programs are started in them, without the library.
Codes are NVML's and CUDA's own. A card is neither reset nor taken out of any mode, and MPS is not started: what needs that stays
open, and is named at the end."""

_Answers = dict[int, list[Row]]


class _Group:
    """A cgroup of its own."""

    def __init__(self, place: Place, path: Path) -> None:
        self._place, self.path = place, path
        path.mkdir()

    def limit(self, *limits: int, before: Sequence[str] = ()) -> Told:
        """The soft and the hard limit set, if given, and what is read then."""
        words = [sys.executable, str(PROGRAMS / "limit.py"), self._place.card.uuid, str(self.path)]
        process = start(self._place.base, [*before, *words, *map(str, limits)])
        try:
            return answer(process)
        finally:
            end(process)

    def words(self, *words: str) -> list[str]:
        """The command that runs in it."""
        return ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs; exec "$@"', "sh", *words]

    def running(self, *words: str) -> contextlib.AbstractContextManager[Told]:
        """A command of card.c in it, until the block ends."""
        program = str(self._place.program)
        return self._place.running(self._place.base, self.words(program, *words))


def measure(place: Place) -> list[Row]:
    """Every question that this machine can answer, and which these were."""
    if reason := missing(place):
        return [Row("the driver's own memory limits", "set and held", f"not run: {reason}")]
    answers: _Answers = {}
    for number, check in _CHECKS.items():
        with _groups(place) as (one, other):
            answers[number] = check(place, one, other)
    closed = [
        n
        for n, rows in answers.items()
        if not any(row.measured.startswith("not run") for row in rows)
    ]
    rows = [shown("limits by cgroup", f"in driver {place.card.driver}")]
    rows += [row for number in sorted(answers) for row in answers[number]]
    left = [text for n, text in enumerate(_QUESTIONS, 1) if n not in closed]
    return [
        *rows,
        shown("questions answered", f"{len(closed)}"),
        shown("still open", "; ".join(left)),
    ]


def missing(place: Place) -> str:
    """Why limits by this driver cannot be tried here; empty: they can."""
    if int(place.card.driver.partition(".")[0]) < FIRST_DRIVER:
        return f"driver {place.card.driver} has none, {FIRST_DRIVER} is the first"
    if os.geteuid() != 0:
        return "only root sets them"
    if not (_tree() / "cgroup.procs").exists() or (
        _tree() != Path(_TREES[0]) and not place.is_simulated
    ):
        return f"{_TREES[0]} is not cgroup v2"
    return ""


def _tree() -> Path:
    return next((Path(t) for t in _TREES if Path(t, "cgroup.procs").exists()), Path(_TREES[0]))


@contextlib.contextmanager
def _groups(place: Place) -> Iterator[tuple[_Group, _Group]]:
    paths = [_tree() / f"gpu-check-{os.getpid()}-{name}" for name in ("one", "other")]
    try:
        one, other = (_Group(place, path) for path in paths)
        yield one, other
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                path.rmdir()


def _shown(place: Place, one: _Group, _: _Group) -> list[Row]:
    limit = limit_bytes(place)
    one.limit(0, limit)
    with one.running("fill", "linear", str(limit)) as told:
        smi = _smi(place, one)
        used = one.limit()["used"]
    totals = {name: told[f"{name}_total"] // MIB for name in ("cuda", "device", "nvml")}
    return [
        Row(
            "above the driver's limit",
            "CUDA_ERROR_OUT_OF_MEMORY (2)",
            str(told["refusal"]),
            told["refusal"] == OUT_OF_MEMORY,
        ),
        Row(
            "taken below it",
            f"≤ {limit // MIB} MiB",
            f"{told['taken'] // MIB} MiB",
            told["taken"] <= limit,
        ),
        Row("counted by the driver", f"≤ {limit // MIB} MiB", f"{used // MIB} MiB", used <= limit),
        shown(
            "total in MiB: cuMemGetInfo, cuDeviceTotalMem, NVML v1",
            ", ".join(map(str, totals.values())),
        ),
        shown("total as nvidia-smi shows it", smi),
    ]


def _smi(place: Place, one: _Group) -> str:
    if shutil.which("nvidia-smi") is None:
        return "not run: no nvidia-smi on this machine"
    words = [
        "nvidia-smi",
        "-i",
        place.card.uuid,
        "--query-gpu=memory.total",
        "--format=csv,noheader",
    ]
    done = subprocess.run(
        one.words(*words), env=dict(place.base), capture_output=True, text=True, check=False
    )
    return (done.stdout or done.stderr).strip()


def _managed(place: Place, one: _Group, _: _Group) -> list[Row]:
    limit = limit_bytes(place) // 2
    one.limit(0, limit)
    with one.running("fill", "managed", str(limit)) as told:
        return [
            shown("managed memory beside a limit", f"{told['taken'] // MIB} of {limit // MIB} MiB")
        ]


def _imports(place: Place, one: _Group, other: _Group) -> list[Row]:
    wanted = 256 * MIB
    before = [group.limit(0, limit_bytes(place) // 2)["used"] for group in (one, other)]
    with contextlib.ExitStack() as stack:
        with one.running("export", str(wanted)) as told:
            stack.enter_context(other.running("import", told["handle"]))
            during = [group.limit()["used"] for group in (one, other)]
        after = [group.limit()["used"] for group in (one, other)]
    figures = [
        " and ".join(f"{(now - then) // MIB}" for now, then in zip(each, before, strict=True))
        for each in (during, after)
    ]
    return [shown("MiB of exporter and importer, and after the exporter's end", "; ".join(figures))]


def _ends(place: Place, one: _Group, _: _Group) -> list[Row]:
    """Set, removed, made again: what a new cgroup has, perhaps at the same address, and the parent's sum."""
    left, ends = 0, place.count // 50  # 1,000 unless asked for otherwise
    for _number in range(ends):
        leaf = _Group(place, one.path / "leaf")
        leaf.limit(0, limit_bytes(place))
        leaf.path.rmdir()
        again = _Group(place, one.path / "leaf")
        left += again.limit().get("hard", 0) not in {0, _NONE}
        again.path.rmdir()
    least = one.path / "dmem.min"
    told = least.read_text().strip() if least.exists() else "no dmem"
    return [
        Row("cgroups made again that had a limit", "0", f"{left} of {ends}", left == 0),
        shown("soft limit that is left in the parent", told),
    ]


def _idle(place: Place, one: _Group, _: _Group) -> list[Row]:
    limit = limit_bytes(place)
    one.limit(0, limit)
    kept = one.limit().get("hard") == limit
    return [shown("a limit after the last process closed the card", "kept" if kept else "lost")]


def _rights(place: Place, one: _Group, _: _Group) -> list[Row]:
    if shutil.which("setpriv") is None:
        return [shown("a limit set without CAP_SYS_ADMIN", "not run: no setpriv on this machine")]
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    code = one.limit(0, limit_bytes(place), before=without)["set"]
    return [Row("a limit set without CAP_SYS_ADMIN", "no permission (4)", str(code), code == 4)]


def _smallest(place: Place, one: _Group, _: _Group) -> list[Row]:
    low, high = 0, limit_bytes(place) // _STEP_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        one.limit(0, middle * _STEP_BYTES)
        try:
            with one.running("hold"):
                high = middle
        except CheckError:
            low = middle
    return [
        shown("the smallest limit in which a context opens", f"{high * _STEP_BYTES // MIB} MiB")
    ]


def _sum(place: Place, one: _Group, other: _Group) -> list[Row]:
    half = place.card.total_bytes // 2 // MIB * MIB
    for group in (one, other):
        group.limit(0, half)
    with one.running("fill", "linear", str(half)), other.running("fill", "linear", str(half)):
        used = [group.limit()["used"] // MIB for group in (one, other)]
    told = f"{used[0]} + {used[1]} of {place.card.total_bytes // MIB} MiB"
    return [shown("two limits of half the card each, both filled", told)]


def _cost(place: Place, one: _Group, _: _Group) -> list[Row]:
    words = [str(place.program), "allocations", str(place.count)]
    free = place.tell(place.base, *words[1:])
    one.limit(0, limit_bytes(place))
    with one.running(*words[1:]) as told:
        added = told["alloc_p50"] - free["alloc_p50"]
    return [shown("added to an allocation by a limit, p50", f"{added:.0f} ns")]


def _chain(_place: Place, _one: _Group, _other: _Group) -> list[Row]:
    what, found = "levels of kubepods without dmem files", sorted(_tree().glob("kubepods*/**/"))
    if not found:
        return [shown(what, "not run: no kubelet on this machine")]
    return [
        shown(what, f"{sum(not (path / 'dmem.max').exists() for path in found)} of {len(found)}")
    ]


def _above(place: Place, one: _Group, _: _Group) -> list[Row]:
    total = place.card.total_bytes
    codes = [one.limit(0, hard)["set"] for hard in (total + MIB, total)]
    met = codes == [2, 0]
    return [
        Row(
            "a limit of 1 MiB above the total, and of the total",
            "2 and 0",
            f"{codes[0]} and {codes[1]}",
            met,
        )
    ]


_CHECKS: Mapping[int, Callable[[Place, _Group, _Group], list[Row]]] = {
    1: _shown,
    2: _managed,
    3: _imports,
    4: _ends,
    5: _idle,
    6: _rights,
    7: _smallest,
    8: _sum,
    11: _cost,
    13: _chain,
    14: _above,
}
