"""The ledger in memory and on disk, changed in one place."""

import contextlib
from collections.abc import Iterable, Sequence

from gpu_device_plugin.apps.agent.state.signal import Signal
from gpu_device_plugin.domain.ledger import Grant, Ledger
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.errors import NodeError, StorageError
from gpu_device_plugin.store.grants import GrantStore, Loaded


class LedgerStore:
    """One writer, many readers: `ledger` is immutable, a change is durable before it is seen."""

    def __init__(self, store: GrantStore) -> None:
        self._store = store
        self._ledger = Ledger()
        self._gone: frozenset[str] = frozenset()
        self.changed = Signal[Ledger]()
        """Emitted after each change."""
        self.disk_fault: str | None = None

    @property
    def ledger(self) -> Ledger:
        """All grants, now."""
        return self._ledger

    @property
    def living(self) -> Ledger:
        """Grants of pods that were there at the last reconcile pass, and what was granted since."""
        return self._ledger.release(self._gone)

    @property
    def holders(self) -> Sequence[PodRef]:
        """Pods that hold slices now."""
        return tuple(dict.fromkeys(grant.pod for grant in self.living.grants.values()))

    def set_gone(self, slice_ids: frozenset[str]) -> None:
        """The last reconcile pass found the pods of these slices gone; their grants end later."""
        self._gone = slice_ids

    def load(self, now_seconds: float) -> Loaded:
        """Read the grants from disk."""
        loaded = self._store.load(now_seconds)
        self._ledger = loaded.ledger
        self.changed.emit(self._ledger)
        return loaded

    def hold(self, grant: Grant, superseded: Iterable[str] = ()) -> None:
        """Make `grant` durable, ending the superseded slices in the same write.

        Raises:
            NodeError: The disk refused; nothing changed, the caller must refuse the pod.
        """
        try:
            self._replace(self._ledger.release(superseded).hold(grant))
        except StorageError as error:
            raise NodeError(
                f"{error}; without a durable grant no slice is given", reason="StateNotWritable"
            ) from error

    def replace(self, before: Grant, after: Grant) -> bool:
        """Replace `before` by `after`, unless `before` was changed or ended since.

        For callers that wait between reading a grant and writing it.

        Returns:
            Whether `before` was still there.

        Raises:
            NodeError: The disk refused; nothing changed.
        """
        if self._ledger.grants.get(before.slice_id) != before:
            return False
        if after != before:
            self.hold(after)
        return True

    def amend(self, grants: Iterable[Grant], ended: Iterable[str] = ()) -> None:
        """Change several grants at once, for reconciling.

        Raises:
            StorageError: The disk refused; nothing changed.
        """
        ledger = self._ledger.release(ended)
        for grant in grants:
            ledger = ledger.hold(grant)
        if ledger.grants != self._ledger.grants:
            self._replace(ledger)

    def probe(self) -> None:
        """Write the ledger again, and more, to learn whether the disk takes grants now."""
        try:
            # The ledger alone may fit into the blocks that the file has, and the next grant not.
            self._store.check_room()
            self._replace(self._ledger)
        except StorageError:
            return

    def _replace(self, ledger: Ledger) -> None:
        try:
            self._store.save(ledger)
            with contextlib.suppress(StorageError):  # a copy; the grants themselves are written
                self._store.save_former()
        except StorageError as error:
            self.disk_fault = str(error)
            raise
        self.disk_fault = None
        self._ledger = ledger
        self.changed.emit(ledger)
