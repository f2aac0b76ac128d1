"""What the kubelet knows, List and checkpoint read together, and when a List may be read.

The kubelet's calls and our List must never overlap (kubernetes #137534).
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.cards.card import CardNumber
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.node.pods import ListedPod
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import KubeletError

QUIET_SECONDS = 6.0
"""So long a List waits at most for a moment between two containers."""
_BETWEEN_SECONDS = 5.0  # the kubelet's Allocate follows at once, or never
_NOTING_SECONDS = 0.1  # after our answer the kubelet notes the units down
_log = structlog.get_logger("reconcile")


class CallGate:
    """Held over every call and over every List."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._busy_until = -math.inf

    def expect_allocate(self) -> None:
        """The kubelet was told units, and is about to ask for them."""
        self._busy_until = asyncio.get_running_loop().time() + _BETWEEN_SECONDS

    def expect_noting(self) -> None:
        """The kubelet has its answer, and is about to note it down."""
        self._busy_until = asyncio.get_running_loop().time() + _NOTING_SECONDS

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """A moment for a List: between two calls of one container there is none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIET_SECONDS
        while True:
            async with self.lock:
                now = loop.time()
                if now >= self._busy_until or now > deadline:
                    yield
                    return
            await asyncio.sleep(0.02)


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
