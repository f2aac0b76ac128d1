"""Numbers and lists in texts for people."""

from collections.abc import Iterable

_NAMED = 5
NODE_STATES = ("unhealthy", "closed", "free", "full", "waiting")
"""What nodes are selected by: with an unhealthy card, taking nothing, with room, without, with pods that wait for a card."""


def count_noun(number: int, noun: str) -> str:
    """The number with its noun, in the plural unless it is one.

    >>> count_noun(1, "node"), count_noun(0, "node")
    ('1 node', '0 nodes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def wanted_number(least: float | None, most: float | None, *, is_whole: bool) -> str:
    """Which numbers are valid.

    >>> wanted_number(1, 9, is_whole=True), wanted_number(0, None, is_whole=False)
    ('wanted a whole number from 1 to 9', 'wanted a number of at least 0')
    """
    to = (
        ""
        if least is None
        else f" of at least {least}"
        if most is None
        else f" from {least} to {most}"
    )
    return f"wanted a {'whole ' if is_whole else ''}number{to}"


def few(names: Iterable[str]) -> str:
    """The first names, and how many there are besides.

    >>> few("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
