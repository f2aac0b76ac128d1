"""Which units of the cards that a container gets."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from gpu_device_plugin.domain.devices import Card, CardNumber
from gpu_device_plugin.domain.schemes.aliyun.units import parse_unit_id


def pick_units(
    resource: str,
    available: Iterable[str],
    must: Collection[str],
    cards: Sequence[Card],
    size: int,
) -> tuple[str, ...] | None:
    """Exactly `size` unit ids of `resource` in equal parts on `cards`, or None.

    Those of `must` come first, then the lowest, so that equal nodes give equal units.

    Args:
        resource: Of what.
        available: Ids that the kubelet has free, those of `must` included.
        must: Ids that the kubelet will give in any case.
        cards: The cards decided on.
        size: How many ids.
    """
    by_card: dict[CardNumber, list[tuple[bool, int, str]]] = {card.number: [] for card in cards}
    for text in frozenset(available) | frozenset(must):
        unit = parse_unit_id(text)
        if unit is not None and unit.resource == resource and unit.card in by_card:
            by_card[unit.card].append((text not in must, unit.unit, text))
    each, rest = divmod(size, len(cards))
    chosen = [text for units in by_card.values() for _, _, text in sorted(units)[:each]]
    is_whole = rest == 0 and len(chosen) == size and frozenset(must) <= frozenset(chosen)
    return tuple(chosen) if is_whole else None


def follows(ids: Iterable[str], cards: Sequence[Card]) -> bool:
    """Whether units are on exactly these cards, in equal parts.

    Without asking first, the kubelet reuses an init container's units at random: of two cards it
    may pick three and one, which would not be the slice that was asked for.
    """
    found = Counter(unit.card for text in ids if (unit := parse_unit_id(text)) is not None)
    is_there = found.keys() == {card.number for card in cards}
    return is_there and len(set(found.values())) <= 1
