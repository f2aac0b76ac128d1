"""Which pods live: by the kubelet's List and checkpoint, and by the API server.

The kubelet's calls and our List must never overlap (kubernetes #137534).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.cards.card import CardNumber
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.grants.lifetime import Witnesses, is_over, is_settled
from gpu_device_plugin.domain.node.pods import ListedPod, PodRef
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import KubeletError

_log = structlog.get_logger("reconcile")


@dataclass(eq=False)
class SnapshotReader:
    """Asks kubelet and API server which pods live, and what they hold of our units."""

    list_pods: Callable[[], Awaitable[Sequence[ListedPod]]]
    checkpoint: Callable[[], Sequence[CheckpointEntry] | None]
    specs: Callable[[], Specs]
    is_synced: Callable[[], bool]  # whether the API watch has ever had all of them
    kubelet_identity: Callable[[], object | None]  # by its sockets
    runs: Callable[[Grant], bool]  # whether a process of it lives
    ended: frozenset[PodRef] = frozenset()
    """Pods with grants of which the API server's first list or its watch has told that they are gone."""
    at_start: frozenset[PodRef] = frozenset()
    """Pods that had grants before this process began, until the first list is there."""
    _kubelet: tuple[object | None, float | None] = (None, None)

    async def take(self) -> Witnesses:
        """Read all of them now. Call it only while none of our Allocates is in flight.

        KubeletError: List or checkpoint does not answer, and nothing may be concluded from the other.
        """
        listed, entries = await self.list_pods(), self.checkpoint()
        return self._witnesses(listed, entries, self.specs())

    def witnesses(
        self, listed: Sequence[ListedPod], specs: Specs, ended: frozenset[PodRef]
    ) -> Witnesses:
        """The same of a List that has just been read, with the checkpoint while List may be short.

        Each of the kubelet's calls asks. A checkpoint that cannot be read is none. `ended` are pods of
        whose end a GET has told, or the loss of their grants.
        """
        entries: Sequence[CheckpointEntry] | None = None
        with suppress(KubeletError):
            entries = None if self.is_settled() else self.checkpoint()
        return self._witnesses(listed, entries, specs, ended)

    def _witnesses(
        self,
        listed: Sequence[ListedPod],
        entries: Sequence[CheckpointEntry] | None,
        specs: Specs,
        ended: frozenset[PodRef] = frozenset(),
    ) -> Witnesses:
        snapshot, ended = KubeletSnapshot.of(listed, entries), self._ended() | ended
        is_up = self.is_settled()
        return Witnesses(snapshot, dict(specs), self.is_synced(), is_up, ended, self.runs)

    def _ended(self) -> frozenset[PodRef]:
        """With those that had a grant before the first list, and are not in it."""
        if self.at_start and self.is_synced():
            specs = self.specs()
            self.ended |= {pod for pod in self.at_start if pod.name and is_over(pod, specs)}
            self.at_start = frozenset()
        return self.ended

    def is_settled(self) -> bool:
        """Whether the kubelet is up for long enough that List has all pods."""
        identity, now = self.kubelet_identity(), asyncio.get_running_loop().time()
        if identity != self._kubelet[0]:
            self._kubelet = identity, None if identity is None else now
        return is_settled(self._kubelet[1], now)

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
