"""Numbers in texts for people."""


def counted(number: int, noun: str) -> str:
    """The number with its noun, in the plural unless it is one.

    >>> counted(1, "node"), counted(0, "node")
    ('1 node', '0 nodes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
