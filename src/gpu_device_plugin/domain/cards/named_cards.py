"""Lists of a node's cards as people write them: indexes, ranges of them, UUIDs, `all`."""

import re
from collections.abc import Mapping

_ALL = "all"
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_MOST_CHARACTERS = 4096


def list_entries(text: str) -> tuple[str, ...]:
    """The entries of a list; of one that is longer than any node's the first ones.

    >>> list_entries(" 0,3 , GPU-a,")
    ('0', '3', 'GPU-a')
    """
    return tuple(filter(None, re.split(r"[,\s]+", text[:_MOST_CHARACTERS])))


def named_cards(entry: str, indexes: Mapping[str, int]) -> frozenset[str]:
    """UUIDs of the cards, of these with their indexes, that an entry names; it may name none.

    >>> sorted(named_cards("0-1", {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}))
    ['GPU-a', 'GPU-b']
    """
    if entry.lower() == _ALL:
        return frozenset(indexes)
    if found := _RANGE.fullmatch(entry):
        first, last = int(found[1]), int(found[2] or found[1])
        return frozenset(uuid for uuid, index in indexes.items() if first <= index <= last)
    return frozenset(uuid for uuid in indexes if uuid.lower() == entry.lower())
