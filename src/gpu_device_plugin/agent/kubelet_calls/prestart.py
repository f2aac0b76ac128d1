"""PreStart: a container starts only if its slice is its own and complete.

Who holds units, as the kubelet says it now: checked before they are given, and at a container's start.

PodResources Get and the kubelet's checkpoint tell. Both are harmless while an Allocate is in flight,
List is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.grants.caller import Call, Specs
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.snapshot_comparison import (
    KnownHolder,
    check_holder,
    complete_holder,
    rename_holder,
)
from gpu_device_plugin.domain.node.pods import ListedPod, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeState, StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import (
    ClusterError,
    DoesNotFitError,
    KubeletError,
    NodeError,
    RefusalError,
    StorageError,
    UnknownPodError,
)

_NOTHING: frozenset[str] = frozenset()
_log = structlog.get_logger("holders")


@dataclass(eq=False)
class HolderCheck:
    """Asks the kubelet who holds units; `is_behind` says whether the ledger may lack who was given some."""

    get_pod: Callable[[PodRef], Awaitable[ListedPod | None]]
    snapshots: SnapshotReader
    specs: Callable[[], Specs]
    is_behind: Callable[[], bool]

    async def check_free(self, rivals: Iterable[Grant], ids: frozenset[str]) -> None:
        """DoesNotFitError if a pod of these grants has any of `ids`, or the kubelet does not say."""
        for pod, held in (await self._held({grant.pod for grant in rivals})).items():
            if held is None or ids & held:
                raise _double_booked(pod)

    async def check_chosen(
        self,
        call: Call,
        devices: frozenset[str],
        holders: Sequence[Grant],
        sharing: Sequence[Grant],
    ) -> None:
        """DoesNotFitError if a grant's pod still has units or devices that the kubelet has chosen.

        Where neither Get nor the checkpoint answers, the kubelet's call itself counts. `sharing`
        are grants of other schemes on the same devices: of a claim, which only its own calls end,
        the kubelet knows nothing.
        """
        asked = [(grant, call.must_include) for grant in holders]
        asked += [(grant, grant.all_ids) for grant in sharing if not grant.holder.claim]
        noted = self._pods_in_checkpoint(call.must_include)
        answers = await self._held({*(grant.pod for grant, _ in asked), *noted})
        for pod in noted:
            if call.must_include & (answers[pod] or _NOTHING):
                raise _double_booked(pod)
        if None in answers.values():
            told = self._told_by_checkpoint()
            answers = {p: told.get(p.uid, _NOTHING) if a is None else a for p, a in answers.items()}
        confirmed = {g.slice_id for g, ids in asked if ids & (answers[g.pod] or _NOTHING)}
        for grant in holders:
            if grant.slice_id in confirmed:
                raise _double_booked(grant.pod)
        for grant in sharing:
            if grant.holder.claim or grant.slice_id in confirmed:
                shared = ", ".join(sorted(devices.intersection(grant.devices)))
                raise DoesNotFitError(
                    f"{shared} is not free: pod {grant.pod} holds a part of it "
                    f"that is no {call.resource}; create the pod again, or use another node",
                    reason="NoRoom",
                )

    async def check_start(self, grant: Grant, resource: str) -> None:
        """UnknownPodError if the kubelet says that another container holds the grant's units."""
        listed = await self._listed(grant.pod) if grant.pod.name else None
        check_holder(grant, resource, listed, self.snapshots.readable_entries())

    def named(self, grant: Grant) -> KnownHolder:
        """The holder of a grant, as far as it is known."""
        return complete_holder(grant, self.snapshots.readable_entries())

    def _pods_in_checkpoint(self, ids: frozenset[str]) -> set[PodRef]:
        """Pods that have any of these units by the checkpoint, as far as the ledger may lack them.

        The checkpoint alone proves nothing: they may have ended, or be handed on by an init container.
        """
        if not self.is_behind():
            return set()
        uids = {e.pod_uid for e in self.snapshots.readable_entries() if not ids.isdisjoint(e.ids)}
        return {spec.ref for spec in self.specs().values() if spec.ref.uid in uids}

    async def _held(self, pods: Iterable[PodRef]) -> dict[PodRef, frozenset[str] | None]:
        """The units that each pod holds by Get; None where the kubelet does not say.

        All at once: the call as a whole has to be answered within seconds.
        """
        asked = list(pods)
        return dict(zip(asked, await asyncio.gather(*map(self._held_by, asked)), strict=True))

    async def _held_by(self, pod: PodRef) -> frozenset[str] | None:
        listed = await self._listed(pod)
        held = listed.held.values() if listed else ()
        units = _NOTHING.union(*(ids for by_name in held for ids in by_name.values()))
        return units if listed else None

    async def _listed(self, pod: PodRef) -> ListedPod | None:
        """What Get says, of a pod that is gone that it holds nothing; None where it does not answer."""
        try:
            return await self.get_pod(pod) or ListedPod(pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(pod), error=str(error))
            return None

    def _told_by_checkpoint(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for entry in self.snapshots.readable_entries():
            found[entry.pod_uid] = found.get(entry.pod_uid, _NOTHING).union(entry.ids)
        return found


def _double_booked(pod: PodRef) -> DoesNotFitError:
    return DoesNotFitError(
        f"the kubelet gives units that pod {pod} still holds (kubernetes issue 137534); create the "
        f"pod again",
        reason="DoubleBooked",
    )


@dataclass(eq=False)
class PreStart:
    """Checks grants at container start. It runs beside admissions, so it never calls List."""

    ledger_store: LedgerStore
    setup: ContainerSetup
    holders: HolderCheck
    recorder: EventRecorder
    state: StateReader
    schemes: Schemes
    fetch_spec: Callable[[str, str], Awaitable[PodRequest | None]]
    adopt: Callable[[], Awaitable[bool]]

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        """Return when the container that holds `ids` may start. RefusalError: it may not."""
        try:
            grants = await self._grants(resource, frozenset(ids))
            for grant in grants:
                await self.holders.check_start(grant, resource)
                await self._check(grant)
        except RefusalError as error:
            pod = next((g.pod for g in self.ledger_store.ledger.holders(ids)), None)
            self.recorder.start_refused(pod, resource, error)
            raise

    async def _grants(self, resource: str, ids: frozenset[str]) -> list[Grant]:
        """The grants of exactly these units: an app container may reuse its init container's."""
        found = self._exact(resource, ids)
        if not found and await self.adopt():
            found = self._exact(resource, ids)
        if not found:
            raise UnknownPodError(
                f"no grant of node {self.state().node} holds exactly these {len(ids)} units of "
                f"{resource}; the container's slice is not known, create the pod again",
                reason="NoGrant",
            )
        return found

    def _exact(self, resource: str, ids: frozenset[str]) -> list[Grant]:
        holders = self.ledger_store.ledger.holders(ids)
        return [grant for grant in holders if frozenset(grant.ids(resource)) == ids]

    async def _check(self, grant: Grant) -> None:
        state = self.state()
        grant = await self._check_late(self._current(grant), state)
        try:  # the grant's own version of the library counts, whatever new containers get
            if await self.setup.make_files(grant, is_start=True):
                _log.warning("slice repaired", pod=str(grant.pod), slice=grant.slice_id)
        except StorageError as error:
            raise NodeError(str(error), reason=error.reason) from error
        self._current(grant)

    def _current(self, grant: Grant) -> Grant:
        """The grant as it is now. UnknownPodError: a reconcile pass has ended it during the check."""
        now = self.ledger_store.ledger.grants.get(grant.slice_id)
        if now is None:
            raise UnknownPodError(
                f"the slice of pod {grant.pod}, container {grant.container or '(not known)'}, was "
                f"released while its start was checked; create the pod again",
                reason="NoGrant",
            )
        return now

    async def _check_late(self, grant: Grant, state: NodeState) -> Grant:
        """Rules that need the pod spec, for a grant made while the API was away."""
        while not grant.is_checked:
            checked_grant = await self._check_spec(grant, state)
            if self.ledger_store.replace(grant, checked_grant):
                return checked_grant
            grant = self._current(grant)
        return grant

    async def _check_spec(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with what is known now; without the pod spec it stays unchecked."""
        uid, name = self.holders.named(grant)
        named = rename_holder(grant, uid, name)
        scheme, spec = self.schemes.of_grant(grant), await self._spec(named.pod)
        if spec is not None and spec.container(name) is not None:
            named = scheme.check_spec(named, spec, state)
        decider = self.schemes.decider(named)
        if decider is not None:
            decider.check_shape(named, state)
        return named

    async def _spec(self, pod: PodRef) -> PodRequest | None:
        try:
            return await self.fetch_spec(pod.namespace, pod.name)
        except ClusterError:
            return None
