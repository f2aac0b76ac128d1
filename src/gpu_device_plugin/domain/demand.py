"""What one container needs of a node's devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """What one container needs, checked: `mem_units` over `cards` cards in equal parts.

    Attributes:
        mem_units: Memory units in all; 0 only while it is not known how many.
        core_percent: Percent of one card's compute; 0 is no cap, or not known yet.
        cards: Number of cards, at least 1; divides `mem_units`.
    """

    mem_units: int
    core_percent: int = 0
    cards: int = 1

    @property
    def units_per_card(self) -> int:
        """Memory units on each of its cards."""
        return self.mem_units // self.cards
