"""The files of slices and the library versions: made where a grant names them, removed late.

Before a removal it must be certain that the pod is gone: ledger, PodResources List and the
kubelet's checkpoint all have to be readable, and to agree (`domain.grants.lifetime.overdue`). What is missing is
made at once.
"""

import asyncio
from collections.abc import Mapping

import structlog

from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.disk.processes import holds_region
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.lifetime import Witnesses, overdue
from gpu_device_plugin.errors import NodeError, StorageError

_REPAIRS_A_TURN = 8
_TOLD_SECONDS = 60.0
_log = structlog.get_logger("reconcile")


class FileKeeper:
    """Makes the files on the node agree with the grants."""

    def __init__(
        self, ledger_store: LedgerStore, setup: ContainerSetup, recorder: EventRecorder
    ) -> None:
        self._ledger_store = ledger_store
        self._setup = setup
        self._recorder = recorder
        self._unnamed_since: Mapping[str, float] = {}
        self._is_waiting = False
        self._removable: set[str] = set()
        self._reported_at: dict[tuple[str, str], float] = {}
        setup.files.sizes.on_grown = self._file_grown
        self._mounted: frozenset[str] | None = None  # library versions; None is not certain

    @property
    def is_idle(self) -> bool:
        """Whether no files wait for the end of their pod to be certain."""
        return not self._is_waiting and not self._removable

    def find_removable(self, witnesses: Witnesses, ended: frozenset[str], now: float) -> bool:
        """Find what may be removed; returns whether the checkpoint names slices without grant.

        They may remain after a crash, but also after a ledger was lost whose containers are running.
        `ended` are slices whose grants ended in this pass; `now` is by the monotonic clock.
        """
        snapshot = witnesses.snapshot
        try:
            present = self._setup.files.present()
        except StorageError as error:
            _log.error("files without a grant are kept", error=str(error))
            return False
        grants = self._ledger_store.ledger.grants
        in_checkpoint = frozenset(units.slice_id for units in snapshot.held)
        is_known = snapshot.has_checkpoint and not self._ledger_store.may_lack_grants
        named = in_checkpoint | frozenset(grants) if is_known else None
        # What an earlier pass has found, and not removed yet; two passes may overlap.
        ended |= self._removable - (named or frozenset())
        missing = frozenset() if named is None else present - ended - named
        missing = frozenset(s for s in missing if not holds_region(self._setup.files.region(s)))
        over, self._unnamed_since = overdue(missing, self._unnamed_since, now, witnesses)
        self._removable = set((over | ended) & present)
        # If it cannot be known, do not wait: these files are left to `cleanup`.
        self._is_waiting = named is not None and not present <= named | self._removable
        is_blank = not (present or grants or snapshot.held)
        is_certain = snapshot.has_checkpoint or is_blank
        # Answers in the checkpoint too: a container that restarts gets the mounts of its first one.
        versions = frozenset(units.library_version for units in snapshot.held)
        self._mounted = versions if is_certain else None
        return not in_checkpoint.isdisjoint(present - frozenset(grants))

    async def repair(self) -> None:
        """Every file that a grant names is there, with room; nothing is removed.

        A few slices at a time, so that no call of the kubelet waits for all of them.
        """
        for number, slice_id in enumerate(tuple(self._ledger_store.ledger.grants), 1):
            # It may have ended while others were repaired: its files must not come back.
            grant = self._ledger_store.ledger.grants.get(slice_id)
            if grant is not None:
                await self._repair(grant)
            if number % _REPAIRS_A_TURN == 0:
                await asyncio.sleep(0)

    async def repair_and_remove(self) -> None:
        """The same, and what `find_removable` has found to be over is removed."""
        await self.repair()
        self._setup.files.sizes.cut_back()
        try:
            for slice_id in tuple(self._removable):
                # It may have been adopted meanwhile, or removed by a pass that overlaps this one.
                if slice_id in self._removable and slice_id not in self._ledger_store.ledger.grants:
                    self._setup.files.remove(slice_id)
                self._removable.discard(slice_id)
                await asyncio.sleep(0)
        except StorageError as error:
            _log.error("files without a grant are kept", error=str(error))
        if self._mounted is not None:
            grants = self._ledger_store.ledger.grants.values()
            granted = frozenset(grant.library_version for grant in grants)
            await self._setup.library.tidy(self._mounted | granted)

    async def _repair(self, grant: Grant) -> None:
        try:
            await self._setup.make_files(grant)
            newest = self._ledger_store.ledger.grants.get(grant.slice_id)
            if newest and newest.resized:  # meanwhile, perhaps: the newer number counts
                self._setup.files.tell(newest.slice_id, newest.resized.revision)
        except NodeError as error:
            self._recorder.slice_broken(grant, error)
        except StorageError as error:
            _log.error("no files of a slice", slice=grant.slice_id, error=str(error))

    def _file_grown(self, slice_id: str, file: str, size: int) -> None:
        """Told once a minute of each file, however often its container enlarges it."""
        grant = self._ledger_store.ledger.grants.get(slice_id)
        now = asyncio.get_running_loop().time()
        self._reported_at = {
            key: at for key, at in self._reported_at.items() if now - at < _TOLD_SECONDS
        }
        if grant is not None and (slice_id, file) not in self._reported_at:
            self._reported_at[slice_id, file] = now
            self._recorder.file_grown(grant, file, size)
