"""Which cards a node counts that NVML does not offer: one that it cannot open, one that is gone.

The kubelet may still count such a card; it stays in the node's list, unhealthy.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.nvml_reports import Inventory


@dataclass(frozen=True, slots=True)
class CountedCards:
    """What NVML shows now, beside the cards of the last run."""

    inventory: Inventory
    remembered: Sequence[Card]

    def at_start(self, numbers: Mapping[str, CardNumber]) -> list[Card]:
        """Cards of the last run that NVML shows and cannot open.

        One whose number pods hold of another card, as the kubelet's checkpoint says, is none of them.
        """
        before = (card for card in self.remembered if numbers.get(card.uuid) == card.number)
        return [card for card in before if self._index_of(card) >= 0]

    def kept(self, known: Iterable[Card], offered: Collection[str]) -> list[Card]:
        """Those of the known cards that are not among the offered ones (UUIDs), as they stay in the list.

        One whose instances are offered no more does not, because a card in MIG mode is no device.
        """
        left_out = {report.uuid for report in self.inventory.cards}.difference(offered)
        return [
            replace(card, index=self._index_of(card))
            for card in known
            if card.uuid not in offered and not (card.hardware.is_mig and card.uuid in left_out)
        ]

    def _index_of(self, card: Card) -> CardIndex:
        """NVML's index of a card that it shows and cannot open; -1 of one that is gone, or is no card now."""
        unreadable = self.inventory.unreadable
        named = (slot.index for slot in unreadable if slot.uuid == card.uuid)
        # One that does not even tell its UUID is where this card was.
        nameless = {slot.index for slot in unreadable if not slot.uuid}
        before = (c.index for c in (card, *self.remembered) if c.uuid == card.uuid)
        last = (index for index in before if index in nameless)
        return next(chain(named, last), CardIndex(-1))
