"""What claims hold of a node's cards, as the node's agent tells it in its annotation of cards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from gpu_device_plugin.domain.devices import CardIndex
from gpu_device_plugin.errors import StateError

_MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class Claimed:
    """What prepared claims hold of a card.

    Attributes:
        index: The card's NVML index.
        pods: Pods that have them.
        units: Memory units.
        percent: Compute.
    """

    index: CardIndex
    pods: int
    units: int
    percent: int


def parse_claimed(entries: Iterable[Mapping[str, object]]) -> tuple[Claimed, ...]:
    """What the entries of cards say that claims hold of them; nothing of a card whose entry does not say.

    Raises:
        StateError: One says what no agent writes.
    """
    return tuple(_claimed(entry) for entry in entries if "claimed" in entry)


def _claimed(entry: Mapping[str, object]) -> Claimed:
    index, plain = entry["index"], entry["claimed"]
    told = plain if isinstance(plain, dict) else {}
    pods, units, percent = (told.get(key) for key in ("pods", "units", "percent"))
    if _is_amount(index) and _is_amount(pods) and _is_amount(units) and _is_amount(percent):
        return Claimed(CardIndex(index), pods, units, percent)
    raise StateError(f"annotation of cards has {plain!r:.64} as what claims hold of card {index}")


def _is_amount(plain: object) -> TypeGuard[int]:
    """A switch is a number too in Python, and no amount."""
    return type(plain) is int and 0 <= plain <= _MOST
