"""What was found in an installation: how bad it is, and its cure."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Level(StrEnum):
    """How bad it is."""

    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is seen, and what to do about it or what it means."""

    level: Level
    what: str
    cure: str


problem, note = partial(Finding, Level.PROBLEM), partial(Finding, Level.NOTE)
"""Something that has to be mended, and something to know."""
