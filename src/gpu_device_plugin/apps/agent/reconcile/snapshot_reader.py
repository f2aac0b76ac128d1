"""PodResources List and the kubelet's checkpoint, read together."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.devices import CardNumber
from gpu_device_plugin.domain.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.pods import ListedPod
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.errors import KubeletError


class SnapshotReader:
    """Takes snapshots of what the kubelet knows of our units."""

    def __init__(
        self,
        list_pods: Callable[[], Awaitable[Sequence[ListedPod]]],
        checkpoint: Callable[[], Sequence[CheckpointEntry] | None],
    ) -> None:
        self._list_pods = list_pods
        self._checkpoint = checkpoint

    async def take(self) -> KubeletSnapshot:
        """Read both now. Call it only while no Allocate of ours is in flight.

        Raises:
            KubeletError: One of them does not answer; nothing may be concluded from the other.
        """
        listed, entries = await self._list_pods(), self._checkpoint()
        return KubeletSnapshot(listed, entries or (), has_checkpoint=entries is not None)

    def entries(self) -> Sequence[CheckpointEntry]:
        """The checkpoint alone, which may be read at any time.

        Raises:
            KubeletError: It cannot be read.
        """
        return self._checkpoint() or ()

    def held_numbers(self, granted: LedgerStore, schemes: Schemes) -> frozenset[CardNumber] | None:
        """Numbers of cards of which units are held, by grants or checkpoint; None: not known."""
        with suppress(KubeletError):
            kept = [text for entry in self.entries() for text in entry.ids]
            return schemes.card_numbers([*granted.ledger.ids(), *kept])
        return None
