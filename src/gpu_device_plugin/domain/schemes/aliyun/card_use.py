"""What is held of each card, by the ids of units."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.schemes.aliyun.units import Resource, parse_unit_id


@dataclass(frozen=True, slots=True)
class CardUse:
    """What is held of one card.

    Attributes:
        mem_units: Distinct memory units held.
        core_percent: Distinct compute units held.
        pods: Pods that hold anything on it.
        exclusive: Those of them beside which no other pod may be.
    """

    mem_units: int = 0
    core_percent: int = 0
    pods: frozenset[PodRef] = frozenset()
    exclusive: frozenset[PodRef] = frozenset()


# Every decision adds up all grants, and few of them have changed since the last.
@lru_cache(maxsize=1024)
def _by_card(ids: tuple[str, ...]) -> tuple[tuple[int, Resource, tuple[str, ...]], ...]:
    """These ids by card and resource."""
    found: dict[tuple[int, Resource], list[str]] = {}
    for text in ids:
        unit = parse_unit_id(text)
        if unit is not None:
            found.setdefault((unit.card, unit.resource), []).append(text)
    return tuple((*key, tuple(texts)) for key, texts in found.items())


def card_use(ledger: Ledger) -> Mapping[int, CardUse]:
    """What is held of each card, by card number; a unit held twice by one pod counts once."""
    units: dict[int, dict[Resource, set[str]]] = {}
    pods: dict[int, set[PodRef]] = {}
    exclusive: dict[int, set[PodRef]] = {}
    for grant in ledger.grants.values():
        for ids in grant.units.values():
            for card, resource, texts in _by_card(ids):
                held = units.setdefault(card, {Resource.MEM: set(), Resource.CORE: set()})
                held[resource].update(texts)
                pods.setdefault(card, set()).add(grant.pod)
                if any(share.is_exclusive for share in grant.shares):
                    exclusive.setdefault(card, set()).add(grant.pod)
    return {
        card: CardUse(
            len(held[Resource.MEM]),
            len(held[Resource.CORE]),
            frozenset(pods[card]),
            frozenset(exclusive.get(card, ())),
        )
        for card, held in units.items()
    }
