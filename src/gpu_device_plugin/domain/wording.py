"""Numbers and lists in texts for people."""

from collections.abc import Iterable

_NAMED = 5


def count_noun(number: int, noun: str) -> str:
    """The number with its noun, in the plural unless it is one.

    >>> count_noun(1, "node"), count_noun(0, "node")
    ('1 node', '0 nodes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(names: Iterable[str]) -> str:
    """The first names, and how many there are besides.

    >>> few("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
