"""Admission: a holder gets a grant, durable first, then the files of its slice; or gives it back.

An allocation API that lets us decide by amounts (claims) calls `reserve` and `release`. That of the device
plugin API gives units as well, one resource a call: it calls `grant` with its own decision.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.grants.call_state import Pending
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.grant import Demand, Grant, Holder, NewGrant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.memory_enforcer import (
    EnforcerChoice,
    MemoryEnforcer,
    why_library,
)
from gpu_device_plugin.domain.node.state import NodeState, StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import NodeError, StorageError

_SLICE_ID_BYTES = 8


@dataclass(eq=False)
class Admission:
    """Turns decisions into grants."""

    ledger_store: LedgerStore
    setup: ContainerSetup
    recorder: EventRecorder
    state: StateReader
    schemes: Schemes
    wall_seconds: Callable[[], float]
    _reserving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ledger(self) -> Ledger:
        return self.ledger_store.ledger

    @property
    def may_lack_grants(self) -> bool:
        """Whether grants may have been lost with a damaged file."""
        return self.ledger_store.may_lack_grants

    async def reserve(
        self,
        holder: Holder,
        demand: Demand,
        devices: Collection[str] = (),
        slice_id: str = "",
        *,
        is_shared: bool = False,
    ) -> Grant:
        """The grant of a holder; the same one again if it has it already.

        `devices` are UUIDs that somebody has chosen already; without them the scheme chooses. With
        `slice_id` its containers run already. `is_shared`: several of them at once.
        """
        async with self._reserving:  # of two at once the second must see what the first took
            held = self.ledger.of_holder(holder)
            if held:
                return await self.answer_again(held[0])
            state = self.state()
            scheme, view = self.schemes.fractions, self.schemes.dividing_view(state)
            chosen = scheme.reserve(holder, demand, self.ledger, view, devices)
            new_id = slice_id or secrets.token_hex(_SLICE_ID_BYTES)
            new = NewGrant(new_id, self.wall_seconds(), state.isolates)
            grant = scheme.with_size(scheme.grant(chosen, new, view), view)
            if slice_id:
                grant = self.setup.with_enforcer_found(grant)
            else:
                grant = _with_enforcer(grant, state, is_shared=is_shared)
            _check_library(grant, state)
            failpoint("allocate.before-grant")
            await self.ledger_store.hold(grant)
            self.recorder.decided(Caller(holder.pod), chosen)
            self.recorder.reserved(grant)
            return await self.answer_again(grant)

    async def release(self, holder: Holder) -> None:
        """End the holder's grant, if any, with its files. NodeError: it is held as before."""
        async with self._reserving:
            held = self.ledger.of_holder(holder)
            if not held:
                return
            await self.ledger_store.release(grant.slice_id for grant in held)
            for grant in held:
                self.setup.files.remove(grant.slice_id)
                self.recorder.released(grant)

    async def grant(self, pending: Pending, call: Call, view: NodeState) -> Grant:
        """The container's grant, now holding the call's units as well."""
        scheme = self.schemes.fractions
        known = self.ledger_store.ledger.grants.get(pending.slice_id)
        first = known or scheme.grant(pending.chosen, self._new(pending, view), view)
        is_known = pending.caller.container is not None
        grant = scheme.give(first, call, view, is_known=is_known)
        if grant.all_ids != (known.all_ids if known else frozenset()):  # no container runs yet
            grant = _with_enforcer(grant, view)
        _check_library(grant, view)
        failpoint("allocate.before-grant")
        await self.ledger_store.hold(grant, self._find_superseded(grant, call.must_include))
        return await self.answer_again(grant)

    async def answer_again(self, grant: Grant) -> Grant:
        try:
            await self.setup.make_files(grant)
        except StorageError as error:
            raise NodeError(
                f"{error}; free the disk, or use another node", reason=error.reason
            ) from error
        return grant

    def _new(self, pending: Pending, state: NodeState) -> NewGrant:
        container = pending.caller.container
        wants_none = container is not None and container.wants_no_isolation
        if wants_none and state.isolates and not state.honors_disable:
            self.recorder.ignored_disable(pending.caller)
        request = pending.caller.request
        if request and request.compute_policy is not None and not state.honors_pod_policy:
            self.recorder.ignored_policy(pending.caller)
        isolated = state.isolates and not (wants_none and state.honors_disable)
        return NewGrant(secrets.token_hex(_SLICE_ID_BYTES), self.wall_seconds(), isolated)

    def _find_superseded(self, grant: Grant, ids: frozenset[str]) -> set[str]:
        """Grants that end with this one.

        Those of pods that are gone but not reconciled yet, whose units the kubelet gives again;
        and what this container held of fractions before, if the kubelet admits it again. A grant without
        uid and container, made while the API server was away, is of a pod of this name before, or of an init container.
        """
        mine = self.ledger.of_pod(grant.pod, grant.container) if grant.container else ()
        before = {g.slice_id for g in mine if self.schemes.is_fraction(g)}
        others = {g.slice_id for g in self.ledger.rivals(grant.pod, ids)}
        if grant.pod.uid:
            alike = self.ledger.holders(ids)
            others |= {g.slice_id for g in alike if not (g.pod.uid or g.container)}
        return (others | before) - {grant.slice_id}


def _with_enforcer(grant: Grant, state: NodeState, *, is_shared: bool = False) -> Grant:
    """NodeError: the operator wants the driver, and it cannot; never silently less."""
    if not grant.is_isolated:
        return grant
    sizes = {share.device: share.memory_bytes or 0 for share in grant.shares}
    why = why_library(state.memory_choice, state.driver_limits, sizes, is_shared=is_shared)
    if why and state.memory_choice is EnforcerChoice.DRIVER:
        raise NodeError(
            f"NVIDIA's driver cannot limit the memory of this slice, as --memory-enforcer asks: {why}",
            reason="DriverLimitsMissing",
        )
    enforcer = MemoryEnforcer.LIBRARY if why else MemoryEnforcer.DRIVER
    return replace(grant, memory_enforcer=enforcer)


def _check_library(grant: Grant, state: NodeState) -> None:
    if grant.is_isolated and not grant.library_version:
        raise NodeError(
            f"the isolation library is missing on node {state.node}, so the slice could not be "
            f"enforced; install it (see the node's Events), or use another node",
            reason="IsolationLibraryMissing",
        )
