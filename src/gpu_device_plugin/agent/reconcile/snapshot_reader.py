"""What the kubelet knows, List and checkpoint read together.

The kubelet's calls and our List must never overlap (kubernetes #137534).
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.cards.card import CardNumber
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.node.pods import ListedPod
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import KubeletError

_log = structlog.get_logger("reconcile")


@dataclass(eq=False)
class SnapshotReader:
    """Takes snapshots of what the kubelet knows of our units."""

    list_pods: Callable[[], Awaitable[Sequence[ListedPod]]]
    checkpoint: Callable[[], Sequence[CheckpointEntry] | None]

    async def take(self) -> KubeletSnapshot:
        """Read both now. Call it only while none of our Allocates is in flight.

        KubeletError: one of them does not answer, and nothing may be concluded from the other.
        """
        listed, entries = await self.list_pods(), self.checkpoint()
        return KubeletSnapshot(listed, entries or (), has_checkpoint=entries is not None)

    def entries(self) -> Sequence[CheckpointEntry]:
        """The checkpoint alone, which may be read at any time."""
        return self.checkpoint() or ()

    def readable_entries(self) -> Sequence[CheckpointEntry]:
        """The same; none, and a line in the log, where it cannot be read."""
        try:
            return self.entries()
        except KubeletError as error:
            _log.info("the kubelet's checkpoint cannot be read", error=str(error))
            return ()

    def held_numbers(self, granted: LedgerStore, schemes: Schemes) -> frozenset[CardNumber] | None:
        """Numbers of cards of which units are held, by grants or checkpoint; None: not known."""
        with suppress(KubeletError):
            kept = [text for entry in self.entries() for text in entry.ids]
            return schemes.card_numbers([*granted.ledger.ids(), *kept])
        return None
