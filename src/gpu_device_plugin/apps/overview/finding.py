"""One thing that is wrong with an installation, with its cure."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing.

    Attributes:
        level: How bad it is.
        what: What is seen.
        cure: What to do, or what it means.
    """

    level: Level
    what: str
    cure: str


def problem(what: str, cure: str) -> Finding:
    """Something that has to be mended."""
    return Finding(Level.PROBLEM, what, cure)


def note(what: str, cure: str) -> Finding:
    """Something to know."""
    return Finding(Level.NOTE, what, cure)
