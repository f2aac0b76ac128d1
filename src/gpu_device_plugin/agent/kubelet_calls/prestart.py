"""PreStart: a container starts only if its slice is its own and complete."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.kubelet_calls.holder_check import HolderCheck
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.snapshot_comparison import rename_holder
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeState, StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import (
    ClusterError,
    NodeError,
    RefusalError,
    StorageError,
    UnknownPodError,
)

_log = structlog.get_logger("holders")


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
            found = await self._grants(resource, frozenset(ids))
            for grant in await self.holders.find_starting(found, resource):
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
        pod, name = self.holders.named(grant)
        named = rename_holder(grant, pod, name)
        scheme, spec = self.schemes.of_grant(grant), await self._spec(named.pod)
        if spec is not None and spec.container(name) is not None:
            named = scheme.check_spec(named, spec, state)
        if self.schemes.is_fraction(named):
            self.schemes.fractions.check_shape(named, state)
        return named

    async def _spec(self, pod: PodRef) -> PodRequest | None:
        try:
            return await self.fetch_spec(pod.namespace, pod.name)
        except ClusterError:
            return None
