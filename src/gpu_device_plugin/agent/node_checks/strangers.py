"""Memory of cards that programs without a grant hold, for instance of pods that see every card."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.agent.publish.usage_reader import UsageReader
from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.domain.cards.memory_unit import MiB

LEAST_MIB = 1024
"""From here on: the driver's own part of a card is some hundred MiB."""
LOOKS = 4
"""In a row: what a card uses is some seconds older than what slices say, and a pod has ended meanwhile."""
_BYTES_PER_MIB = 1024 * 1024


@dataclass(eq=False)
class Strangers:
    """Notes such cards, so that new slices go elsewhere while they can."""

    node_store: NodeStore
    usage: UsageReader
    live: LiveLedger
    _seen: deque[Mapping[str, int]] = field(default_factory=lambda: deque(maxlen=LOOKS))

    def find(self) -> str | None:
        """The cards whose slices no longer fit beside what strangers hold; None if there is none."""
        state, use = self.node_store.read(), self.live.living.use()
        unexplained = self.usage.unexplained
        mib = {card.uuid: (unexplained(card) or 0) // _BYTES_PER_MIB for card in state.cards}
        self._seen.append(mib)
        least = {uuid: min(look.get(uuid, 0) for look in self._seen) for uuid in mib}
        is_sure = len(self._seen) == LOOKS
        found = {u: MiB(size) for u, size in least.items() if is_sure and size >= LEAST_MIB}
        if found != state.strangers:
            self.node_store.update(strangers=found)
            state = self.node_store.read()
        short = [
            f"card {card.index} ({card.uuid}): slices of {held} MiB and {found[card.uuid]} MiB that "
            f"programs without a grant hold are more than its {card.memory_mib} MiB"
            for card in state.cards
            for held in (use[card.uuid].memory_mib if card.uuid in use else 0,)
            if held and state.memory_short(card, held)
        ]
        return "; ".join(short) or None
