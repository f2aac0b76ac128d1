"""Which whole cards go together, by their links, as NVIDIA's best-effort policy chooses.

All cards that are free are divided into sets of the size asked for, so that the links inside the
sets have the most points in sum; of the sets of that division the one with the most points is
given. So a pod gets well linked cards, and leaves well linked ones for the next. NVIDIA's
go-gpuallocator tries every division; here each remainder is solved once, and cards that are
linked alike are tried once, which gives the same choice.
"""

from collections.abc import Iterator, Mapping, Sequence

Points = Mapping[str, Mapping[str, int]]
"""UUID -> UUID of another card -> the points of their links."""

NVLINK_POINTS = 100
"""Of each NVLink."""
PCI_POINTS: Mapping[int, int] = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
"""By nvmlGpuTopologyLevel_t: one board, one switch, switches, host bridge, NUMA node, system."""


def points_of(level: int, nvlinks: int) -> int:
    """The points of two cards' links.

    Args:
        level: nvmlGpuTopologyLevel_t of what they have in common, -1 unknown.
        nvlinks: Active NVLinks between them.

    >>> points_of(30, 2)
    230
    """
    return PCI_POINTS.get(level, 0) + nvlinks * NVLINK_POINTS


def best_linked(
    points: Points, available: Sequence[str], required: Sequence[str], size: int
) -> tuple[str, ...]:
    """The cards to give; ties go to the first in `available`.

    Args:
        points: Links of every card.
        available: Cards to choose from, those of `required` among them, by index.
        required: Cards that must be given.
        size: How many to give.

    Returns:
        The cards; none if that is not possible.
    """
    if not 0 < size <= len(available) or len(required) > size:
        return ()
    if not set(required) <= set(available):
        return ()
    search = _Search(points, available, required, size)
    sets = list(search.sets())
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
        self._lower_twins = [self._twins_before(place) for place in range(len(available))]
        self._solved: dict[int, tuple[int, int]] = {0: (0, 0)}

    def sets(self) -> Iterator[int]:
        """The sets of the best division that may be given."""
        if self._size == 1:
            yield self._must or 1
            return
        rest = self._all
        while rest:
            chosen = self._solve(rest)[1]
            if chosen & self._must == self._must:
                yield chosen
            rest &= ~chosen

    def points_of(self, chosen: int) -> int:
        """The points of the links inside a set."""
        places = [place for place in range(len(self._pair)) if chosen >> place & 1]
        return sum(self._pair[i][j] for i in places for j in places if i < j)

    def _solve(self, rest: int) -> tuple[int, int]:
        """The best points of dividing `rest`, -1 where it cannot be, and the first set of that."""
        known = self._solved.get(rest)
        if known is not None:
            return known
        best = (-1, rest)
        for chosen, points in self._first_sets(rest):
            if chosen & self._must not in {0, self._must}:
                continue
            after = self._solve(rest & ~chosen)[0]
            if after >= 0 and points + after > best[0]:
                best = (points + after, chosen)
        self._solved[rest] = best
        return best

    def _first_sets(self, rest: int) -> Iterator[tuple[int, int]]:
        """Sets with the first card of `rest`, in order; one set of a division may be smaller."""
        first = (rest & -rest).bit_length() - 1
        yield from self._grown(rest, 1 << first, first, 0, self._size - 1)
        short = rest.bit_count() % self._size
        if short:
            for chosen, points in self._grown(rest, 1 << first, first, 0, short - 1):
                if not chosen & self._must:
                    yield chosen, points

    def _grown(
        self, rest: int, chosen: int, last: int, points: int, more: int
    ) -> Iterator[tuple[int, int]]:
        """The set with `more` cards after `last`; of cards that are linked alike the lower first."""
        if not more:
            yield chosen, points
            return
        for place in range(last + 1, len(self._pair)):
            if not rest >> place & 1 or self._lower_twins[place] & rest & ~chosen:
                continue
            row = self._pair[place]
            added = sum(row[other] for other in range(place) if chosen >> other & 1)
            yield from self._grown(rest, chosen | 1 << place, place, points + added, more - 1)

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
