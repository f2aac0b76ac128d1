"""Calls for resources of which the kubelet's own choice stands: whole devices, and their replicas.

No pod has to be known and nothing is written inside such a call. A reconcile pass soon after reads
from List and checkpoint who holds what.
"""

from collections.abc import Callable, Sequence

import structlog

from gpu_device_plugin.apps.agent.device_plugin.session import CallParts
from gpu_device_plugin.apps.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.schemes.recording import Records
from gpu_device_plugin.errors import DoesNotFitError, KubeletError, RefusalError

_log = structlog.get_logger("recorded")


class RecordedCalls:
    """Answers GetPreferredAllocation and Allocate for schemes that record."""

    def __init__(
        self,
        parts: CallParts,
        snapshots: SnapshotReader,
        note_answer: Callable[[], None],
    ) -> None:
        """Args.

        parts: What the calls are answered with.
        snapshots: Where the checkpoint is read.
        note_answer: Called before an answer: somebody is about to hold what no grant tells yet, and
            a reconcile pass has to find out who.
        """
        self._parts = parts
        self._state = parts.state
        self._schemes = parts.schemes
        self._recorder = parts.recorder
        self._gate = parts.gate
        self._snapshots = snapshots
        self._note_answer = note_answer

    def prefer(
        self,
        scheme: Records,
        resource: str,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> Sequence[str]:
        """The units that are best given together."""
        call = Call(resource, size, frozenset(must))
        view = self._schemes.view(scheme, self._state())
        return scheme.prefer(call, frozenset(available) | call.must_include, view)

    async def allocate(self, scheme: Records, resource: str, ids: Sequence[str]) -> ContainerEdits:
        """The answer for whichever container gets these units.

        Raises:
            RefusalError: They cannot be given; the text says why.
        """
        call = Call(resource, len(ids), frozenset(ids))
        async with self._gate.lock:
            try:
                edits = await self._answer(scheme, call)
            except RefusalError as error:
                self._gate.expect_noting()
                explained = self._explained(call, error)
                asked = scheme.asked_text(resource, call.size, self._state())
                self._recorder.refused(None, call, asked, explained)
                raise explained from error
            self._gate.expect_noting()
        self._recorder.given(call)
        return edits

    async def _answer(self, scheme: Records, call: Call) -> ContainerEdits:
        await self._check_holders(scheme, call, self._checked(scheme, call))
        view = self._checked(scheme, call)  # as it is after waiting for the kubelet
        self._note_answer()
        return self._parts.admission.recorded(scheme, call, view)

    def _checked(self, scheme: Records, call: Call) -> NodeState:
        _, view = self._schemes.serving(call.resource, self._state())
        scheme.check_call(call, view)
        return view

    async def _check_holders(self, scheme: Records, call: Call, view: NodeState) -> None:
        ledger = self._parts.admission.ledger
        for grant in ledger.holders(call.must_include):
            if await self._is_confirmed(grant, call.must_include):
                raise DoesNotFitError(
                    f"the kubelet gives units that pod {grant.pod} still holds (kubernetes issue "
                    f"137534); create the pod again",
                    reason="DoubleBooked",
                )
        devices = scheme.devices(call, view)
        for grant in self._schemes.scope(scheme).others(ledger).grants.values():
            shared = devices.intersection(grant.devices)
            # The kubelet knows nothing of a claim, which only its own front ends.
            if shared and (grant.holder.claim or await self._is_confirmed(grant, grant.all_ids)):
                raise DoesNotFitError(
                    f"{', '.join(sorted(shared))} is not free: pod {grant.pod} holds a part of it "
                    f"that is no {call.resource}; create the pod again, or use another node",
                    reason="NoRoom",
                )

    async def _is_confirmed(self, grant: Grant, ids: frozenset[str]) -> bool:
        """Whether the kubelet says now that the recorded holder has any of these units.

        By Get, or by the checkpoint where there is no Get. Never by List, which must not be read
        while an Allocate is in flight; where neither answers, the kubelet's call itself counts.
        """
        try:
            entry = await self._parts.identifier.sources.get_pod(grant.pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(grant.pod), error=str(error))
            return self._is_in_checkpoint(grant, ids)
        held = entry.held.values() if entry is not None else ()
        return any(not ids.isdisjoint(units) for by_name in held for units in by_name.values())

    def _is_in_checkpoint(self, grant: Grant, ids: frozenset[str]) -> bool:
        try:
            entries = self._snapshots.entries()
        except KubeletError:
            return False
        return any(e.pod_uid == grant.pod.uid and not ids.isdisjoint(e.ids) for e in entries)

    def _explained(self, call: Call, error: RefusalError) -> RefusalError:
        """The refusal with node and what was asked; which pod asks is not known here."""
        state = self._state()
        text = f"a pod on node {state.node} (mode {state.mode}) asks {call}: {error}"
        return type(error)(text, reason=error.reason)
