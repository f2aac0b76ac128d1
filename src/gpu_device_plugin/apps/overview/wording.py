"""Words that several answers use."""

from collections.abc import Iterable

_NAMED = 5


def few(names: Iterable[str]) -> str:
    """The first names, and how many there are besides.

    >>> few("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
