"""Other projects' names for fractions of cards, in this scheme's (R-590)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.units import Resource

_MEBI = 1 << 20
_WHOLE_CARD = 100


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one project.

    Attributes:
        memory: Counts memory, each of `memory_bytes`.
        ratio: Percent of a card's memory.
        core: Percent of a card's compute.
        cards: Number of cards.
        is_each: Whether amounts are of each card (HAMi), and not of all together (Koordinator).
        both: Percent of memory and compute together.
        dropped: What has no meaning for a slice; it is left out, and a warning says so.
    """

    memory: str
    memory_bytes: int
    ratio: str
    core: str
    cards: str
    is_each: bool
    both: str = ""
    dropped: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        found = (self.memory, self.ratio, self.core, self.cards, self.both, self.dropped)
        return tuple(filter(None, found))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of which a slice needs one."""
        return tuple(filter(None, (self.memory, self.ratio, self.core, self.both)))

    def is_spoken(self, limits: Collection[str]) -> bool:
        """Whether a container asks by it: HAMi's number of cards alone is of whole cards."""
        is_alone = bool(self.both) and (self.cards in limits or bool(self.rest(limits)))
        return is_alone or any(name in limits for name in self.parts)

    def rest(self, limits: Collection[str]) -> Sequence[str]:
        """Names of the project for cards that are not translated."""
        prefix = self.both or self.cards
        return sorted(name for name in limits if name.startswith(prefix) and name not in self.names)


_K = "koordinator.sh/gpu"
KOORDINATOR = Dialect(
    f"{_K}-memory", 1, f"{_K}-memory-ratio", f"{_K}-core", f"{_K}.shared", is_each=False, both=_K
)
_N = "nvidia.com/gpu"
HAMI = Dialect(
    *(f"{_N}mem", _MEBI, f"{_N}mem-percentage", f"{_N}cores", _N),
    is_each=True,
    dropped="nvidia.com/priority",
)


@dataclass(frozen=True, slots=True)
class Translated:
    """What a container asks by our names: resources, and on how many cards; or why that cannot be said."""

    amounts: Mapping[str, int]
    cards: int = 1
    refusal: str = ""


def translate_amounts(
    dialect: Dialect,
    amounts: Mapping[str, int],
    unit: MemoryUnit,
    sizes: Callable[[], Collection[int]],
) -> Translated:
    """What a container asks by a dialect; a part of a unit counts as a whole one.

    `sizes` are the different numbers of units that cards of the cluster have: a ratio is of these.
    """
    memory, ratio, core, cards = _of_all_cards(dialect, amounts)
    parts = [name for name in dialect.parts if name in amounts]
    is_mixed = dialect.both in amounts and len(parts) > 1
    there = sorted(sizes()) if ratio else [0]
    units = ", ".join(map(str, there)) or "no"
    written = dialect.both if dialect.both in amounts else dialect.ratio
    least, name = min(((amount, name) for name, amount in amounts.items()), default=(0, ""))
    rules = (
        (
            not amounts.keys() & set(dialect.parts),
            f"a slice needs one of {', '.join(dialect.parts)}",
        ),
        (least < 0, f"{name}: {least} is negative"),
        (is_mixed, f"{dialect.both} and {', '.join(parts[:-1])} exclude each other"),
        (memory and ratio, f"{dialect.memory} and {dialect.ratio} exclude each other"),
        (core > _WHOLE_CARD or (core and cards > 1), _compute_text(dialect, core, cards)),
        (ratio > cards * _WHOLE_CARD, f"{written} is more than {cards} cards have"),
        (
            len(there) != 1,
            f"{written} is a part of one card, and cards of this cluster have {units} units: "
            f"ask {dialect.memory}",
        ),
    )
    if wrong := next((text for is_broken, text in rules if is_broken), ""):
        return Translated({}, refusal=wrong)
    each = _parts(memory * dialect.memory_bytes, cards * unit.mib * _MEBI)
    each += _parts(there[0] * ratio, cards * _WHOLE_CARD)
    found = {str(Resource.MEM): cards * each, str(Resource.CORE): core}
    return Translated({name: amount for name, amount in found.items() if amount}, cards)


def _of_all_cards(dialect: Dialect, amounts: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Memory and ratio of all cards together, percent of compute, and the number of cards."""
    names = (dialect.memory, dialect.ratio, dialect.core, dialect.cards)
    memory, ratio, core, cards = (amounts.get(name, 0) for name in names)
    both = amounts.get(dialect.both, 0)
    # Whole cards need no part of their compute: nobody else has memory there.
    ratio, core = ratio + both, core + (both if both <= _WHOLE_CARD else 0)
    if dialect.is_each:
        # HAMi gives all of a card's memory where none is asked.
        ratio = ratio if memory or ratio else _WHOLE_CARD
        memory, ratio = memory * max(1, cards), ratio * max(1, cards)
    elif not cards and ratio % _WHOLE_CARD == 0:
        cards = ratio // _WHOLE_CARD
    return memory, ratio, core, max(1, cards)


def _compute_text(dialect: Dialect, core: int, cards: int) -> str:
    return (
        f"{dialect.core}: {core} on {cards} cards is not translated: compute is divided on one "
        f"card, ask at most {_WHOLE_CARD} there"
    )


def _parts(whole: int, part: int) -> int:
    """How many parts hold all of it."""
    return -(-whole // part)
