"""The promise: whole cards are given as NVIDIA's best-effort policy gives them, in time."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest

from gpu_device_plugin.domain.schemes.nvidia.links import best_linked, points_of

# NVLinks between the cards of a DGX-1 with V100s, as `nvidia-smi topo -m` shows them.
DGX1 = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
Matrix = Sequence[Sequence[int]]


def dgx1() -> list[list[int]]:
    """NVLinks, and the PCI bus: pairs on one switch, fours below one host bridge."""

    def level(i: int, j: int) -> int:
        return 10 if i // 2 == j // 2 else 30 if i // 4 == j // 4 else 50

    return [[points_of(level(i, j), n) for j, n in enumerate(row)] for i, row in enumerate(DGX1)]


def choose(
    matrix: Matrix, available: Sequence[int], required: Sequence[int], size: int
) -> list[int]:
    points = {
        f"GPU-{i}": {f"GPU-{j}": n for j, n in enumerate(row) if j != i}
        for i, row in enumerate(matrix)
    }
    names = [f"GPU-{i}" for i in available]
    chosen = best_linked(points, names, [f"GPU-{i}" for i in required], size)
    return [int(name.removeprefix("GPU-")) for name in chosen]


def divisions(cards: Sequence[int], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to divide the cards into sets of that size, one set smaller if need be."""
    if not cards:
        yield []
        return
    first, others = cards[0], cards[1:]
    sizes = [size, *([len(cards) % size] if len(cards) % size else [])]
    for more in sizes:
        for rest in combinations(others, more - 1):
            chosen = (first, *rest)
            for division in divisions([card for card in others if card not in rest], size):
                yield [chosen, *division]


def tried(matrix: Matrix, cards: Sequence[int], required: Sequence[int], size: int) -> int:
    """Most points of a division in which one full set has all that is required."""

    def points(chosen: Sequence[int]) -> int:
        return sum(matrix[i][j] for i, j in combinations(chosen, 2))

    return max(
        sum(map(points, division))
        for division in divisions(cards, size)
        if any(len(each) == size and set(required) <= set(each) for each in division)
    )


def test_two_of_a_dgx_1_are_0_and_3() -> None:
    """Two NVLinks; so have 0 and 4, whose division has as many points and comes later."""
    assert choose(dgx1(), range(8), (), 2) == [0, 3]


@pytest.mark.parametrize(
    ("available", "required", "size", "wanted"),
    [
        (range(8), (), 1, [0]),
        (range(8), (5,), 1, [5]),
        (range(8), (), 4, [0, 1, 2, 3]),
        (range(8), (5,), 2, [5, 6]),
        ([1, 2, 4, 5, 6, 7], (), 2, [1, 2]),
        (range(8), (), 8, list(range(8))),
        (range(8), (), 9, []),
        (range(8), (0, 1), 1, []),
        ([0, 1], (2,), 2, []),
    ],
)
def test_what_is_required_is_given_and_what_is_impossible_is_not(
    available: Sequence[int], required: Sequence[int], size: int, wanted: list[int]
) -> None:
    """On the same machine."""
    assert choose(dgx1(), available, required, size) == wanted


@pytest.mark.parametrize("seed", range(40))
def test_the_division_is_the_best_of_all(seed: int) -> None:
    """Against trying every one, on cards that are linked at random or many of them alike."""
    rng = random.Random(seed)  # noqa: S311 - a machine to try, not a secret
    count, size = rng.randint(3, 8), rng.randint(2, 4)
    size = min(size, count)
    levels = rng.choice([(10, 100), (10, 20, 50, 100, 200), (600,)])
    matrix = [[0] * count for _ in range(count)]
    for i, j in combinations(range(count), 2):
        matrix[i][j] = matrix[j][i] = rng.choice(levels)
    required = rng.sample(range(count), rng.randint(0, min(1, size)))
    chosen = choose(matrix, range(count), required, size)

    def points(each: Sequence[int]) -> int:
        return sum(matrix[i][j] for i, j in combinations(each, 2))

    others = [card for card in range(count) if card not in chosen]
    best_rest = max(sum(map(points, each)) for each in divisions(others, size))
    assert set(required) <= set(chosen)
    assert points(chosen) + best_rest == tried(matrix, range(count), required, size)


def test_equal_links_go_to_the_lowest() -> None:
    """Behind a switch every pair is alike."""
    alike = [[600] * 16 for _ in range(16)]

    assert choose(alike, range(2, 16), (), 4) == [2, 3, 4, 5]
    assert choose(alike, range(16), (), 3) == [0, 1, 2]


def test_unknown_links_are_none() -> None:
    """A driver that tells of none gives the first cards."""
    assert best_linked({}, ["GPU-4", "GPU-7", "GPU-9"], [], 2) == ("GPU-4", "GPU-7")
