"""Which whole cards go together, by their links, as NVIDIA's best-effort policy chooses.

All cards that are free are divided into sets of the size asked for, so that the links inside the
sets have the most points in sum; of the sets of that division the one with the most points is
given. So a pod gets well linked cards, and leaves well linked ones for the next. NVIDIA's
go-gpuallocator tries every division; here remainders that are linked alike are solved once, and so
are cards, which gives the same choice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

Points = Mapping[str, Mapping[str, int]]
"""UUID -> UUID of another card -> the points of their links."""

MOST_TRIED = 17_000
"""So many sets are tried for the best division, less than a tenth of a second; then the first one counts.

16 cards behind switches and bridges need fewer, and up to 12 cards however they are linked; 16 that
are linked at random need more.
"""

NVLINK_POINTS = 100
"""Points of each NVLink."""
PCI_POINTS: Mapping[int, int] = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
"""Points by nvmlGpuTopologyLevel_t: one board, one switch, switches, host bridge, NUMA node, system."""


def points_of(level: int, nvlinks: int) -> int:
    """The points of two cards' links. `level` is an nvmlGpuTopologyLevel_t, -1 unknown."""
    return PCI_POINTS.get(level, 0) + nvlinks * NVLINK_POINTS


def best_linked(
    points: Points, available: Sequence[str], required: Sequence[str], size: int
) -> tuple[str, ...]:
    """The cards to give; ties go to the first in `available`.

    None if that is not possible. `available` is by index, those of `required` among them.
    """
    if not 0 < size <= len(available) or len(required) > size:
        return ()
    if not set(required) <= set(available):
        return ()
    search = _Search(points, available, required, size)
    # The smaller set of a division may have the most points: a bridged pair beside three cards on a bus.
    sets = [each for each in search.sets() if each.bit_count() == size]
    chosen = max(sets, key=search.points_of) if sets else 0
    return tuple(card for place, card in enumerate(available) if chosen >> place & 1)


class _Search:
    """Divisions of `available` into sets; sets are bit masks of places in it."""

    def __init__(
        self, points: Points, available: Sequence[str], required: Sequence[str], size: int
    ) -> None:
        self._size = size
        self._must = sum(1 << available.index(card) for card in required)
        self._pair = [
            [points.get(one, {}).get(other, 0) if one != other else 0 for other in available]
            for one in available
        ]
        self._all = (1 << len(available)) - 1
        self._lower_twins = {1 << n: self._twins_before(n) for n in range(len(available))}
        self._shape = _Shapes(self._pair, self._must).of(range(len(available)))
        self._solved: dict[int, int] = {}
        self._points = {0: 0}
        self._tried = 0

    def sets(self) -> Iterator[int]:
        """The sets of the best division that may be given."""
        if self._size == 1:
            yield self._must or 1
            return
        rest = self._all
        while rest:
            chosen = self._first_of_best(rest)
            if chosen & self._must == self._must:
                yield chosen
            rest &= ~chosen

    def points_of(self, chosen: int) -> int:
        found = self._points.get(chosen)
        if found is None:
            first, others = chosen & -chosen, chosen & (chosen - 1)
            row = self._pair[first.bit_length() - 1]
            found = self.points_of(others) + sum([row[other] for other in _places(others)])
            self._points[chosen] = found
        return found

    def _first_of_best(self, rest: int) -> int:
        """The first set of the best division of `rest`; all of it where it cannot be divided."""
        best = self._solve(rest)
        of_best = (
            chosen
            for chosen, points in self._first_sets(rest)
            if (after := self._solve(rest & ~chosen)) >= 0 and points + after == best
        )
        return next(of_best, rest)

    def _solve(self, rest: int) -> int:
        """The best points of dividing `rest`, -1 where it cannot be."""
        if not rest:
            return 0
        shape = self._shape(rest)
        if shape in self._solved:
            return self._solved[shape]
        best = -1
        for chosen, points in self._first_sets(rest):
            self._tried += 1
            after = self._solve(rest & ~chosen)
            if after >= 0:
                best = max(best, points + after)
                if self._tried > MOST_TRIED:
                    break
        self._solved[shape] = best
        return best

    def _first_sets(self, rest: int) -> Iterator[tuple[int, int]]:
        """Sets with the first card of `rest`, in order; one set of a division may be smaller."""
        for chosen, points in self._grow(rest, self._size - 1):
            if chosen & self._must in {0, self._must}:
                yield chosen, points
        short = rest.bit_count() % self._size
        if short:
            for chosen, points in self._grow(rest, short - 1):
                if not chosen & self._must:
                    yield chosen, points

    def _grow(self, rest: int, more: int) -> Iterator[tuple[int, int]]:
        """Sets of the first card of `rest` and `more` others; of cards that are linked alike the lower first."""
        grown = [(rest & -rest, rest & (rest - 1), more)]
        while grown:
            chosen, later, more = grown.pop()
            if not more:
                yield chosen, self.points_of(chosen)
            elif later.bit_count() >= more:
                card = later & -later
                later ^= card
                grown.append((chosen, later, more))
                if not self._lower_twins[card] & rest & ~chosen:
                    grown.append((chosen | card, later, more - 1))

    def _twins_before(self, place: int) -> int:
        """Cards before this one that could be exchanged with it: linked alike to every other."""
        mine = self._pair[place]
        found = 0
        for other in range(place):
            theirs = self._pair[other]
            is_alike = all(
                a == b
                for k, (a, b) in enumerate(zip(mine, theirs, strict=True))
                if k not in {place, other}
            )
            if is_alike and bool(self._must >> place & 1) == bool(self._must >> other & 1):
                found |= 1 << other
        return found


class _Shapes:
    """Numbers of shapes: sets of one shape have the same links, so their best divisions score alike.

    Cards form a tree: those whose links have more points than the weakest between any two are one
    branch, and so on below. So it is with switches, bridges and sockets. Where cards cannot be
    told apart like this (a mesh of NVLinks), only the same set has the same shape.
    """

    def __init__(self, pair: Sequence[Sequence[int]], must: int) -> None:
        self._pair = pair
        self._must = must
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, cards: Sequence[int]) -> Callable[[int], int]:
        """A function that tells the shape of what a set has of these cards; 0 is nothing."""
        mask = sum(1 << card for card in cards)
        if len(cards) == 1:
            leaf = self._number("card", bool(mask & self._must))
            return lambda rest: leaf if rest & mask else 0
        weakest = min(self._pair[i][j] for i, j in combinations(cards, 2))
        branches = self._branches(cards, weakest)
        if len(branches) == 1:
            return lambda rest: self._number("mesh", rest & mask) if rest & mask else 0
        below = [self.of(branch) for branch in branches]
        known = {0: 0}

        def shape(rest: int) -> int:
            mine = rest & mask
            if mine not in known:
                parts = sorted(part for each in below if (part := each(mine)))
                known[mine] = parts[0] if len(parts) == 1 else self._number(weakest, *parts)
            return known[mine]

        return shape

    def _branches(self, cards: Sequence[int], weakest: int) -> list[list[int]]:
        """The cards, apart where nothing but the weakest links them."""
        branches: list[list[int]] = []
        for card in cards:
            linked = [b for b in branches if any(self._pair[card][c] > weakest for c in b)]
            others = [b for b in branches if b not in linked]
            branches = [*others, [*(c for b in linked for c in b), card]]
        return branches

    def _number(self, *shape: object) -> int:
        return self._numbers.setdefault(shape, len(self._numbers) + 1)


def _places(chosen: int) -> Iterator[int]:
    while chosen:
        card = chosen & -chosen
        yield card.bit_length() - 1
        chosen ^= card
