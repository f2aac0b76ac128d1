"""Calls for resources of which the kubelet's own choice stands: whole devices, and their replicas.

No pod has to be known and nothing is written inside such a call. A reconcile pass soon after reads
from List and checkpoint who holds what.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import structlog

from gpu_device_plugin.apps.agent.device_plugin.session import CallParts, cut_off
from gpu_device_plugin.apps.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.schemes.recording import Records
from gpu_device_plugin.errors import DoesNotFitError, KubeletError, RefusalError

_NOTHING: frozenset[str] = frozenset()
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
                raise self._refused(scheme, call, error) from error
            except asyncio.CancelledError:
                self._refused(scheme, call, cut_off())
                raise
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
        ledger, devices = self._parts.admission.ledger, scheme.devices(call, view)
        holders = ledger.holders(call.must_include)
        beside = self._schemes.scope(scheme).others(ledger).grants.values()
        sharing = [grant for grant in beside if devices.intersection(grant.devices)]
        # The kubelet knows nothing of a claim, which only its own front ends.
        asked = [(grant, call.must_include) for grant in holders]
        asked += [(grant, grant.all_ids) for grant in sharing if not grant.holder.claim]
        confirmed = await self._confirmed(asked)
        for grant in holders:
            if grant.slice_id in confirmed:
                raise DoesNotFitError(
                    f"the kubelet gives units that pod {grant.pod} still holds (kubernetes issue "
                    f"137534); create the pod again",
                    reason="DoubleBooked",
                )
        for grant in sharing:
            if grant.holder.claim or grant.slice_id in confirmed:
                shared = ", ".join(sorted(devices.intersection(grant.devices)))
                raise DoesNotFitError(
                    f"{shared} is not free: pod {grant.pod} holds a part of it "
                    f"that is no {call.resource}; create the pod again, or use another node",
                    reason="NoRoom",
                )

    async def _confirmed(self, asked: Sequence[tuple[Grant, frozenset[str]]]) -> frozenset[str]:
        """Slices of which the kubelet says now that the recorded holder has any of these units.

        By one Get a pod, all at once: the call as a whole has to be answered within seconds. By the
        checkpoint where there is no Get. Never by List, which must not be read while an Allocate is
        in flight; where neither answers, the kubelet's call itself counts.
        """
        pods = list({grant.pod for grant, _ in asked})
        answers = dict(zip(pods, await asyncio.gather(*map(self._held_by, pods)), strict=True))
        if None in answers.values():
            told = self._told_by_checkpoint()
            answers = {p: told.get(p.uid, _NOTHING) if a is None else a for p, a in answers.items()}
        return frozenset(
            grant.slice_id for grant, ids in asked if ids & (answers[grant.pod] or _NOTHING)
        )

    async def _held_by(self, pod: PodRef) -> frozenset[str] | None:
        """The units that a pod holds by Get; None where the kubelet does not say."""
        try:
            entry = await self._parts.identifier.sources.get_pod(pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(pod), error=str(error))
            return None
        held = entry.held.values() if entry is not None else ()
        return _NOTHING.union(*(ids for by_name in held for ids in by_name.values()))

    def _told_by_checkpoint(self) -> Mapping[str, frozenset[str]]:
        """Pod uid -> the units that it holds."""
        found: dict[str, frozenset[str]] = {}
        with suppress(KubeletError):
            for entry in self._snapshots.entries():
                found[entry.pod_uid] = found.get(entry.pod_uid, _NOTHING).union(entry.ids)
        return found

    def _refused(self, scheme: Records, call: Call, error: RefusalError) -> RefusalError:
        """Reported, with node and what was asked; which pod asks is not known here."""
        state = self._state()
        text = f"a pod on node {state.node} (mode {state.mode}) asks {call}: {error}"
        explained = type(error)(text, reason=error.reason)
        self._gate.expect_noting()
        asked = scheme.asked_text(call.resource, call.size, state)
        self._recorder.refused(None, call, asked, explained)
        return explained
