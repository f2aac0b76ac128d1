"""Reconcile: compare grants and slices' files with a kubelet snapshot, and correct them.

The kubelet does not report when a pod's units are free again. A grant ends when both List and
the checkpoint lack its pod, or show its container with other units, twice, 30 s apart. Until then
its units count as held here, and as free at admission if the kubelet offers them again. At once ends
only one without files whose units another pod holds, and one that its container has twice.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.publish.device_lists import Registrations
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.reconcile.file_keeper import FileKeeper
from gpu_device_plugin.agent.reconcile.holders import Holders
from gpu_device_plugin.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.agent.state.node_store import Signal
from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import Witnesses, overdue
from gpu_device_plugin.domain.grants.snapshot_comparison import (
    complete_holder,
    corrected_uid,
    drift,
    fill_units,
    find_doubles,
    find_given_away,
    find_unknown,
    pass_on_units,
    rename_holder,
)
from gpu_device_plugin.domain.node.pods import HeldUnits, PodRef
from gpu_device_plugin.domain.node.state import StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes, Scope
from gpu_device_plugin.errors import KubeletError, RequestError, StorageError

PASS_SECONDS = 30.0
WAITING_SECONDS = 3.0
_log = structlog.get_logger("reconcile")


@dataclass(eq=False)
class Reconciler:
    """A pass every 30 s, sooner when a pod has gone, a mode switch waits or a pass failed."""

    ledger_store: LedgerStore
    setup: ContainerSetup
    snapshots: SnapshotReader
    recorder: EventRecorder
    state: StateReader
    gate: CallGate
    on_listed: Callable[[frozenset[PodRef], frozenset[PodRef]], None]
    """Called with the pods of a pass, and with those that the one before listed too."""
    holders: Holders
    registrations: Registrations  # by which the kubelet is made to write its checkpoint again
    wall_seconds: Callable[[], float]
    schemes: Schemes

    def __post_init__(self) -> None:
        self._absent_since: Mapping[str, float] = {}
        self._absent: frozenset[str] = frozenset()
        self._left: frozenset[str] = frozenset()  # of whose pods only a process is there
        self._listed: frozenset[PodRef] = frozenset()
        self._unadopted: Sequence[
            HeldUnits
        ] = ()  # of which no grant could be made, for instance while their card is away
        # The inputs of the last pass, if it had nothing to do and nothing to wait for.
        self._inputs_without_work: tuple[object, ...] = ()
        self._reported = ""
        self.files = FileKeeper(self.ledger_store, self.setup, self.recorder)
        """The files of slices, also between two passes."""
        self.drift = 0
        self.compared = Signal[None]()
        """Emitted when a pass knows who holds what, before it has mended any file."""
        self.passed = Signal[None]()
        """Emitted after each pass."""
        self.checkpoint_stale = Signal[None]()
        """Emitted when the kubelet's checkpoint names pods that its List lacks."""

    def request_pass(self) -> None:
        """Run a pass soon, because a pod is gone or something waits for the last slice to end."""
        self.holders.requested.set()

    def pod_gone(self, pod: PodRef) -> None:
        """A pod has ended; most hold nothing, and refused ones come by the hundred."""
        ledger = self.ledger_store.ledger
        if ledger.of_pod(pod):
            self.snapshots.ended = frozenset(filter(ledger.of_pod, {*self.snapshots.ended, pod}))
            self.request_pass()

    @property
    def is_idle(self) -> bool:
        """Whether no grant and no file waits for its end, or its holder, to be certain."""
        return not self.holders.unreconciled_allocations and not self._absent and self.files.is_idle

    async def run(self, is_waited_for: Callable[[], bool] = lambda: False) -> None:
        """Run passes, until cancelled; more often while something waits until no pod holds a slice."""
        while True:
            # What asked for a pass that failed, for instance a new holder, still waits for one.
            is_due_soon = not await self.run_pass() or is_waited_for()
            seconds = WAITING_SECONDS if is_due_soon else PASS_SECONDS
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it loses a cancellation that comes with a request.
                async with asyncio.timeout(seconds):
                    await self.holders.requested.wait()
                # Pods often end together: one pass serves them all.
                await asyncio.sleep(1.0)
            self.holders.requested.clear()

    async def run_pass(self) -> bool:
        """One reconcile pass; whether the kubelet answered."""
        try:
            async with self.gate.quiet():
                begun = _now()
                witnesses = self._current(await self.snapshots.take())
                self.holders.unreconciled_allocations.were_read(begun)
                self._correct(witnesses)
            self.holders.has_passed = True
            self.compared.emit(None)
            await self.files.repair_and_remove()
            self.passed.emit(None)
        except (KubeletError, StorageError) as error:
            if str(error) != self._reported:
                _log.warning("reconcile pass failed", error=str(error))
            self._reported = str(error)
            return False
        self._reported = ""
        return True

    def _current(self, witnesses: Witnesses) -> Witnesses:
        """Without pods that the checkpoint would name for ever.

        Where we offer nothing the kubelet may not write it again: List and the API server decide.
        """
        is_certain = witnesses.is_synced and witnesses.is_settled
        return witnesses.as_noted() if is_certain and not self.registrations.is_any else witnesses

    def _correct(self, witnesses: Witnesses) -> None:
        listed = frozenset(entry.pod for entry in witnesses.snapshot.listed)
        self.on_listed(listed, listed & self._listed)
        self._listed = listed
        ledger, state = self.ledger_store.ledger, self.state()
        present: object = None
        with contextlib.suppress(StorageError):
            present = self.setup.files.present()
        inputs = (witnesses, ledger, state, present)
        if inputs == self._inputs_without_work:
            return  # as nearly always; whatever there is to do follows from one of these
        self._inputs_without_work = ()
        is_waiting = self._compare(witnesses) or self._absent or self._absent_since or self._left
        is_done = self.ledger_store.ledger is ledger and self.files.is_idle and not state.mark
        is_done &= witnesses.is_settled and not (is_waiting or self._unadopted)
        self._inputs_without_work = inputs if is_done else ()

    def _compare(self, witnesses: Witnesses) -> bool:
        """Correct the grants; whether any ended, or the checkpoint is known to be old."""
        store, now = self.ledger_store, _now()
        missing = witnesses.unshown(store.ledger) | witnesses.superseded(store.ledger)
        over, self._absent_since = overdue(missing, self._absent_since, now, witnesses)
        over |= find_given_away(store.ledger, witnesses.snapshot)
        failpoint("reconcile.before-release")
        left = store.ledger.release(over)
        completed = self._complete(left, witnesses)
        whole = Ledger({**left.grants, **{grant.slice_id: grant for grant in completed}})
        over |= find_doubles(whole, witnesses.snapshot.mounted_by)
        kept = [grant for grant in completed if grant.slice_id not in over]
        store.amend([*kept, *self._adopt(whole, witnesses)], ended=over)
        for slice_id in over:
            _log.info("slice ended", slice=slice_id)
        ledger = store.ledger
        self._absent = witnesses.over(ledger)
        if witnesses.is_synced:
            ledger = self._give_back(self._absent)
        self.holders.note(witnesses.holders(ledger), self._absent, witnesses.unshown(ledger))
        self._left = self._tell_left(witnesses.left_running(ledger))
        self.drift = drift(ledger.release(self._absent | self._left), witnesses.snapshot.listed)
        is_stale = self.files.find_removable(witnesses, over, now) or bool(witnesses.stale)
        if is_stale:
            self.checkpoint_stale.emit(None)
        return bool(over) or is_stale

    def _give_back(self, slice_ids: frozenset[str]) -> Ledger:
        """The ledger in which they have no more than the kubelet gave; beyond that it has given nobody anything."""
        store, state = self.ledger_store, self.state()
        grown = [g for key in slice_ids if (g := store.ledger.grants[key]).extra_ids]
        if grown:  # seldom
            store.amend([self.schemes.fractions.without_growth(g, state) for g in grown])
        return store.ledger

    def _tell_left(self, slice_ids: frozenset[str]) -> frozenset[str]:
        for slice_id in slice_ids - self._left:
            self.recorder.left_running(self.ledger_store.ledger.grants[slice_id])
        return slice_ids

    def _complete(self, ledger: Ledger, witnesses: Witnesses) -> list[Grant]:
        """Grants about which more is known now than when they were made."""
        snapshot = witnesses.snapshot
        specs = {spec.ref.uid: spec for spec in witnesses.specs.values() if spec.ref.uid}
        there = ledger.release(witnesses.displaced(ledger))
        schemes, state = self.schemes, self.state()
        parts = {
            scheme: (own.pods(snapshot.listed), own.ledger(ledger), own.entries)
            for scheme in (schemes.fractions, schemes.nvidia)
            for own in (Scope(scheme.resources),)
        }
        found = []
        for grant in ledger.grants.values():
            named = rename_holder(grant, *complete_holder(grant, snapshot))
            uid = corrected_uid(named, snapshot.uids_by_holding, ledger)
            named = rename_holder(named, replace(named.pod, uid=uid), named.container)
            listed, own, of_scheme = parts[schemes.of_grant(grant)]
            named = pass_on_units(named, listed, own, snapshot.mounted_by)
            entries = of_scheme(snapshot.of_container(named.pod.uid, named.container))
            named = fill_units(named, entries, there)
            spec = specs.get(named.pod.uid)
            if not named.is_checked and spec is not None:
                try:
                    named = schemes.of_grant(named).check_spec(named, spec, state)
                except RequestError as error:
                    # It runs already, and stays unchecked: PreStart refuses the next start.
                    self.recorder.found_against_rules(named, error)
            is_more = named.units != grant.units and not schemes.is_fraction(grant)
            if is_more or not named.is_sized:
                named = schemes.of_grant(named).with_size(named, state)
            if named != grant:
                found.append(named)
        return found

    def _adopt(self, ledger: Ledger, witnesses: Witnesses) -> list[Grant]:
        state = self.state()
        self._unadopted = ()
        unknown = find_unknown(ledger.release(witnesses.displaced(ledger)), witnesses.held)
        if not unknown:
            return []  # as nearly always
        specs = [spec for spec in witnesses.specs.values() if not spec.is_finished]
        there = state if state.mode is not None else replace(state, cards=())
        adopted = self.schemes.adopt(unknown, specs, there)
        known = frozenset().union(*(grant.all_ids for grant in adopted))
        self._unadopted = [units for units in unknown if units.ids.isdisjoint(known)]
        for grant in filter(self.schemes.is_fraction, adopted):
            self.recorder.adopted(grant)  # of whole devices this is the usual way
        now = self.wall_seconds()
        found = map(self.setup.with_enforcer_found, adopted)
        return [replace(grant, created_seconds=now) for grant in found]


def _now() -> float:
    return asyncio.get_running_loop().time()
