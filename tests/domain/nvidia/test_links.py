"""The promise: whole cards are given as NVIDIA's best-effort policy gives them, in time."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.domain.nvidia import links
from gpu_device_plugin.domain.nvidia.links import best_linked, points_of

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


def points_in(matrix: Matrix, chosen: Iterable[int]) -> int:
    return sum(matrix[i][j] for i, j in combinations(chosen, 2))


def tried(matrix: Matrix, cards: Sequence[int], required: Sequence[int], size: int) -> list[int]:
    """What is to be given, after trying every division: the first with the most points counts."""
    must = set(required)
    allowed = [
        division
        for division in divisions(cards, size)
        if all(
            must <= {*each} if len(each) == size and must & {*each} else not must & {*each}
            for each in division
        )
    ]
    best = max(allowed, key=lambda division: sum(points_in(matrix, each) for each in division))
    given = [each for each in best if len(each) == size and must <= {*each}]
    return sorted(max(given, key=lambda each: points_in(matrix, each)))


@st.composite
def machines(draw: st.DrawFn) -> list[list[int]]:
    """Up to eight cards: linked at random, or behind switches that stand behind others, in any order."""
    count = draw(st.integers(1, 8))
    if draw(st.booleans()):
        below, above = draw(st.sampled_from([(1, 2), (2, 4), (2, 6), (3, 6), (4, 8)]))
        places = draw(st.permutations(range(count)))
        near, middle, far = draw(st.sampled_from([(50, 30, 10), (60, 60, 10), (600, 600, 600)]))
        return [
            [
                near if i // below == j // below else middle if i // above == j // above else far
                for j in places
            ]
            for i in places
        ]
    levels = draw(st.sampled_from([(10, 100), (10, 20, 50, 100, 200)]))
    points = {pair: draw(st.sampled_from(levels)) for pair in combinations(range(count), 2)}
    return [[points.get((min(i, j), max(i, j)), 0) for j in range(count)] for i in range(count)]


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


@given(machines(), st.data())
def test_the_choice_is_that_of_trying_every_division(matrix: Matrix, data: st.DataObject) -> None:
    """The same cards, not only as many points; of the free ones, with those that the pod has already."""
    cards = data.draw(st.lists(st.sampled_from(range(len(matrix))), min_size=1, unique=True))
    size = data.draw(st.integers(1, len(cards)))
    required = data.draw(st.lists(st.sampled_from(cards), max_size=min(size, 2), unique=True))
    if size > 1:
        assert choose(matrix, sorted(cards), required, size) == tried(
            matrix, sorted(cards), required, size
        )


def linked_by_pci(i: int, j: int) -> int:
    """16 cards: pairs on one switch, fours on two, eights below one host bridge."""
    return points_of(
        10 if i // 2 == j // 2 else 20 if i // 4 == j // 4 else 30 if i // 8 == j // 8 else 50, 0
    )


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("taken", [0, 3])
def test_of_sixteen_cards_the_best_division_is_found_before_the_search_is_cut_short(
    size: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the kubelet does not wait; how long that takes is measured in docs/nvidia.md."""
    matrix = [[linked_by_pci(i, j) for j in range(16)] for i in range(16)]
    chosen = choose(matrix, range(taken, 16), (), size)

    monkeypatch.setattr(links, "MOST_TRIED", 10**9)
    assert chosen == choose(matrix, range(taken, 16), (), size)


@pytest.mark.parametrize("most", [0, 1000])
def test_a_search_that_is_cut_short_gives_what_is_asked_all_the_same(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 cards that are linked at random, as no machine has them, would take more than a second."""
    monkeypatch.setattr(links, "MOST_TRIED", most)
    rng = random.Random(1)  # noqa: S311 - a machine to try, not a secret
    matrix = [[0] * 16 for _ in range(16)]
    for i, j in combinations(range(16), 2):
        matrix[i][j] = matrix[j][i] = rng.randint(1, 1000)

    for size in range(2, 16):
        chosen = choose(matrix, range(16), (4, 9), size)
        assert len(chosen) == size
        assert {4, 9} <= {*chosen}


def test_a_remainder_is_never_given_however_well_it_is_linked() -> None:
    """Of five cards, two have a bridge and three are on one switch: who asks three gets these."""
    bridged, switched = {0, 1}, {2, 3, 4}
    matrix = [
        [1200 if {i, j} <= bridged else 50 if {i, j} <= switched else 10 for j in range(5)]
        for i in range(5)
    ]

    assert choose(matrix, range(5), (), 3) == [2, 3, 4]


def test_equal_links_go_to_the_lowest() -> None:
    """Behind a switch every pair is alike."""
    alike = [[600] * 16 for _ in range(16)]

    assert choose(alike, range(2, 16), (), 4) == [2, 3, 4, 5]
    assert choose(alike, range(16), (), 3) == [0, 1, 2]


def test_unknown_links_are_none() -> None:
    """A driver that tells of none gives the first cards."""
    assert best_linked({}, ["GPU-4", "GPU-7", "GPU-9"], [], 2) == ("GPU-4", "GPU-7")
