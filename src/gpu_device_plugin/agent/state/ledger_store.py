"""The ledger in memory and on disk, changed in one place."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from gpu_device_plugin.agent.state.node_store import Signal
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.grant_file import GrantStore, Loaded
from gpu_device_plugin.domain.grants.call_budget import WRITE_SECONDS
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.errors import NodeError, StorageError


class LiveLedger:
    """The grants as they are now, which every part may read; `LedgerStore` writes them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.gone: frozenset[str] = frozenset()
        """Slices whose pods may be over by the last reconcile pass; their grants end later."""
        self.unshown: frozenset[str] = frozenset()
        """Those of them that neither List nor checkpoint shows."""

    @property
    def living(self) -> Ledger:
        """Grants of pods that were there at the last reconcile pass, and what was granted since."""
        return self.ledger.release(self.gone)

    @property
    def shown(self) -> Ledger:
        """Grants that keep a card as it is: also of pods that may be over, while List or checkpoint shows them."""
        return self.ledger.release(self.unshown)


class LedgerStore:
    """One writer, many readers: `ledger` is immutable, a change is a new one.

    A promise (`hold`, `exchange`), and the end of one by a call (`release`), is durable before it is
    seen. What is only learned from the kubelet and the API server (`amend`, `replace`) is seen at
    once and on the disk soon after: were it lost in a crash, it would be learned again.
    """

    def __init__(self, store: GrantStore, writer: Writer, live: LiveLedger | None = None) -> None:
        self._store = store
        self._writer = writer
        self.live = live or LiveLedger()
        self.changed = Signal[Ledger]()
        """Emitted after each change."""
        self._write_lock = asyncio.Lock()
        self._rewriting: asyncio.Task[None] | None = None
        self._is_behind = False
        self.being_written = 0
        """Grants of which it is not known yet whether they will be held."""
        self.disk_fault: str | None = None
        self.may_lack_grants = False
        """A damaged file of grants was set aside, now or before, and is still there."""

    @property
    def ledger(self) -> Ledger:
        return self.live.ledger

    def set_gone(self, over: frozenset[str], unshown: frozenset[str]) -> None:
        """What the last reconcile pass found of slices that end later: see `LiveLedger`."""
        self.live.gone, self.live.unshown = over, unshown

    async def load(self, now_seconds: float) -> Loaded:
        loaded = await self._writer.run(partial(self._store.load, now_seconds))
        self._set(loaded.ledger)
        self.may_lack_grants = loaded.may_lack
        return loaded

    async def hold(self, grant: Grant, superseded: Iterable[str] = ()) -> None:
        """Make `grant` durable, ending the superseded slices in the same write.

        NodeError: the disk refused or took too long; the caller must refuse the pod. A write that
        is finished all the same is rolled back.
        """
        ended = frozenset(superseded)
        self._store.forget(ended)
        self.being_written += 1
        try:
            await self._commit(lambda ledger: ledger.release(ended).hold(grant))
        finally:
            self.being_written -= 1

    async def exchange(self, before: Grant, after: Grant) -> bool:
        """As `replace`, and durable before it is seen. NodeError: the disk refused; it is held as before."""
        key = before.slice_id
        await self._commit(lambda now: now.hold(after) if now.grants.get(key) == before else now)
        return self.ledger.grants.get(key) == after

    async def release(self, ended: Iterable[str]) -> None:
        """End these slices durably. NodeError: the disk refused or is slow; they stay held."""
        over = frozenset(ended)
        self._store.forget(over)
        await self._commit(lambda ledger: ledger.release(over))

    async def _commit(self, change: Callable[[Ledger], Ledger]) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._write_lock:
                await self._write(change(self.live.ledger))
        except TimeoutError as error:
            self.disk_fault = f"the state directory took no write within {WRITE_SECONDS:.0f} s"
            self.rewrite()
            raise _not_durable(self.disk_fault) from error
        except asyncio.CancelledError:
            self.rewrite()
            raise
        except StorageError as error:
            raise _not_durable(str(error)) from error
        self._set(change(self.live.ledger))

    def replace(self, before: Grant, after: Grant) -> bool:
        """Replace `before`, unless it was changed or ended since; returns whether it was replaced.

        For callers that wait between reading a grant and writing it.
        """
        if self.live.ledger.grants.get(before.slice_id) != before:
            return False
        self.amend([after])
        return True

    def amend(self, grants: Iterable[Grant], ended: Iterable[str] = ()) -> None:
        """Change several grants at once, to what is known of them by now; those of `ended` pods end."""
        over = frozenset(ended)
        ledger = self.live.ledger.release(over)
        pods = {g.pod.uid for key, g in self.live.ledger.grants.items() if key in over}
        self._store.forget(over, pods - {g.pod.uid for g in ledger.grants.values()})
        for grant in grants:
            ledger = ledger.hold(grant)
        if ledger.grants != self.live.ledger.grants:
            self._set(ledger)
            self.rewrite()

    def find_disk_fault(self) -> str | None:
        """Why no grant can be given; a disk that refused one is tried again until a write succeeds."""
        if self.disk_fault is not None:
            self.rewrite()
        return self.disk_fault

    def rewrite(self) -> None:
        """Write the ledger again, soon; after a fault also learn whether there is room for more."""
        self._is_behind = True
        if self._rewriting is None or self._rewriting.done():
            self._rewriting = asyncio.get_running_loop().create_task(self._rewrite())

    async def close(self, seconds: float) -> None:
        """Write what is not written yet, but wait no longer than that."""
        if self._rewriting is not None:
            await asyncio.wait({self._rewriting}, timeout=seconds)

    async def _rewrite(self) -> None:
        try:
            while self._is_behind:
                async with self._write_lock:
                    self._is_behind = False
                    if self.disk_fault is not None:
                        # The ledger may fit into the blocks that it has had, the next grant not.
                        await self._writer.run(self._store.check_room)
                    await self._write(self.live.ledger)
        except StorageError as error:
            self.disk_fault = str(error)

    async def _write(self, ledger: Ledger) -> None:
        """Raises StorageError. Only under the lock."""
        try:
            await self._writer.run(partial(self._store.save, ledger))
        except StorageError as error:
            self.disk_fault = str(error)
            raise
        self.disk_fault = None

    def _set(self, ledger: Ledger) -> None:
        self.live.ledger = ledger
        self.changed.emit(ledger)


def _not_durable(text: str) -> NodeError:
    return NodeError(
        f"{text}; without a durable grant no slice is given", reason="StateNotWritable"
    )
