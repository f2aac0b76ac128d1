"""Which of 16 linked cards go together: the time of one choice, by how the cards are linked."""

import random
import time
from collections.abc import Callable, Mapping

from tools.bench.rows import Chapter, Row, at_most

from gpu_device_plugin.domain.nvidia.links import best_linked, points_of

_CARDS, _SIZES, _REPEATS, _BAR_MS = range(16), range(5, 9), 3, 100
_METHOD = """\
How long the agent needs to find well linked cards for a pod that asks for 5, 6, 7 or 8 of 16 free ones.

The cards are on a PCI bus: pairs on one switch, fours on two, eights below one host bridge. Processor time of the choice in this process, the best of three, of the slowest of the four."""
_NVLINKS: Mapping[str, Callable[[int, int], int]] = {
    "none": lambda _i, _j: 0,
    "all through NVSwitches": lambda _i, _j: 12,
    "bridges between pairs": lambda i, j: 4 * (i // 2 == j // 2),
    "a ring": lambda i, j: 2 * (abs(i - j) in {1, 15}),
    "a hypercube": lambda i, j: (i ^ j).bit_count() == 1,
    "by chance": lambda i, j: random.Random(min(i, j) * 16 + max(i, j)).randint(0, 4),  # noqa: S311
}


async def measure() -> Chapter:
    """A row for each way to link them."""
    return Chapter("Choosing linked cards", _METHOD, tuple(map(_row, _NVLINKS)))


def _row(kind: str) -> Row:
    points = {
        str(i): {str(j): points_of(_level(i, j), _NVLINKS[kind](i, j)) for j in _CARDS if i != j}
        for i in _CARDS
    }
    slowest = max(min(_seconds(points, size) for _ in range(_REPEATS)) for size in _SIZES)
    return at_most(f"5 to 8 of 16 cards, NVLinks: {kind}", 1000 * slowest, _BAR_MS, "ms", 0)


def _level(i: int, j: int) -> int:
    """Their nvmlGpuTopologyLevel_t."""
    return next(
        (level for level, many in ((10, 2), (20, 4), (30, 8)) if i // many == j // many), 50
    )


def _seconds(points: Mapping[str, Mapping[str, int]], size: int) -> float:
    started = time.process_time()
    best_linked(points, tuple(points), (), size)
    return time.process_time() - started
