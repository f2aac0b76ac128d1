"""The resources of each mode, the unit ids under which the kubelet counts them, and which units a container gets.

An id tells resource, card and unit: a letter (m memory, c compute, n count), one
base-36 digit for the card's number, the unit in base 36. So ids of two resources never
meet, an id alone says which card it belongs to, and none is longer than 8 characters
(from Kubernetes 1.36 on, the pod's status contains every id of a container).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import count, islice, product, repeat

from gpu_device_plugin.domain.cards.card import Card, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.node.modes import NodeMode

CORE_UNITS_PER_CARD = 100
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Resource(StrEnum):
    """The three extended resources, by the names the kubelet knows."""

    MEM = "aliyun.com/gpu-mem"
    CORE = "aliyun.com/gpu-core.percentage"
    COUNT = "aliyun.com/gpu-count"


_RESOURCES: Mapping[NodeMode, tuple[Resource, ...]] = {
    NodeMode.CORE_MEM: (Resource.MEM, Resource.CORE, Resource.COUNT),
    NodeMode.CGPU: (Resource.MEM, Resource.COUNT),
    NodeMode.SHARE: (Resource.MEM, Resource.COUNT),
}
_LETTERS: Mapping[str, str] = {Resource.MEM: "m", Resource.CORE: "c", Resource.COUNT: "n"}
_BY_LETTER = {_LETTERS[resource]: resource for resource in Resource}


@dataclass(frozen=True, slots=True, order=True)
class UnitId:
    """One unit of one resource on one card, as the kubelet counts it."""

    resource: Resource
    card: CardNumber
    unit: int


def resources_of(mode: NodeMode) -> tuple[Resource, ...]:
    """What a node in `mode` offers; nothing in `disabled` and in modes that are not served."""
    return _RESOURCES.get(mode, ())


# A decision reads every id of the node, and they are the same each time.
@lru_cache(maxsize=16384)
def parse_unit_id(text: str) -> UnitId | None:
    """The unit that an id names, or None for any other id."""
    resource = _BY_LETTER.get(text[:1])
    digits = text[1:]
    if resource is None or not 2 <= len(digits) <= 7 or digits.strip(_DIGITS):
        return None
    return UnitId(resource, CardNumber(_DIGITS.index(digits[0])), int(digits[1:], 36))


# Lists are published again and again, and the ids of a card stay the same.
@lru_cache(maxsize=256)
def unit_ids(resource: str, card: CardNumber, units: int) -> tuple[str, ...]:
    """The ids of the first `units` units of a card, in order."""
    prefix = f"{_LETTERS[resource]}{_DIGITS[card]}"
    return tuple(prefix + text for text in islice(_count_up(), units))


def foreign_ids(resource: str, ids: Iterable[str]) -> list[str]:
    """Those that are no units of this resource as this project names them: gpushare has ids of its own for the same name."""
    return [t for t in ids if (unit := parse_unit_id(t)) is None or unit.resource != resource]


def cards_of(ids: Iterable[str]) -> frozenset[CardNumber]:
    """The numbers of the cards that these ids belong to; foreign ids count for none."""
    parsed = (parse_unit_id(text) for text in ids)
    return frozenset(unit.card for unit in parsed if unit is not None)


def pick_units(
    resource: str, available: Iterable[str], must: Collection[str], cards: Sequence[Card], size: int
) -> tuple[str, ...] | None:
    """Exactly `size` unit ids of `resource` in equal parts on `cards`, or None.

    Those of `must` come first, then the lowest, so that equal nodes give equal units.
    """
    by_card: dict[CardNumber, list[tuple[bool, int, str]]] = {card.number: [] for card in cards}
    prefixes = tuple(_LETTERS[resource] + _DIGITS[number] for number in by_card)
    for text in frozenset(available) | frozenset(must):
        # Of the node's ids those of a card are few.
        unit = parse_unit_id(text) if text.startswith(prefixes) else None
        if unit is not None:
            by_card[unit.card].append((text not in must, unit.unit, text))
    each, rest = divmod(size, len(cards))
    chosen = [text for units in by_card.values() for _, _, text in sorted(units)[:each]]
    is_whole = rest == 0 and len(chosen) == size and frozenset(must) <= frozenset(chosen)
    return tuple(chosen) if is_whole else None


def lie_equally_on(cards: Sequence[Card], ids: Iterable[str]) -> bool:
    """Whether units are on exactly these cards, in equal parts.

    Without asking first, the kubelet reuses an init container's units at random: of two cards it
    may pick three and one, which would not be the slice that was asked for.
    """
    found = Counter(unit.card for text in ids if (unit := parse_unit_id(text)) is not None)
    is_there = found.keys() == {card.number for card in cards}
    return is_there and len(set(found.values())) <= 1


def _count_up() -> Iterator[str]:
    """0, 1, 2 … in base 36, endless; much faster than a division for each digit."""
    yield from _DIGITS
    for length in count(1):
        for digits in product(_DIGITS[1:], *repeat(_DIGITS, length)):
            yield "".join(digits)


def units_of(card: Card, resource: str, unit: MemoryUnit) -> int:
    """Units of `resource` that a card has; none where it has less memory than a unit."""
    memory = card.capacity(unit)
    if resource == Resource.MEM or not memory:
        return memory
    return CORE_UNITS_PER_CARD if resource == Resource.CORE else 1
