"""Admission of one request: which pod asks, which card and units it gets, and the grant.

The kubelet admits one container at a time and calls GetPreferredAllocation, then Allocate, for
each resource in random order, without naming the pod (docs/architecture.md). The first call for
a container decides for its whole request; every later call has to follow that decision.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpu_device_plugin.apps.agent.admission.admission import Admission
from gpu_device_plugin.apps.agent.device_plugin.caller_lookup import Identifier
from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.domain.caller import Asker, Call, who_allocates
from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.domain.decision import Offer, Pending, check_in_service
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeState, StateReader
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.schemes.protocol import Decides
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.errors import DoesNotFitError, NodeError, RefusalError, RequestError
from gpu_device_plugin.store.failpoints import failpoint

_SESSION_SECONDS = 10.0  # the calls of the kubelet for one container follow each other at once


@dataclass(frozen=True, slots=True)
class CallParts:
    """What the kubelet's calls are answered with.

    Attributes:
        identifier: Tells which pod a call is for.
        admission: Makes grants.
        recorder: Where events go.
        state: The node as of now.
        gate: Keeps a List away from the calls.
        schemes: The rules of what is shared.
    """

    identifier: Identifier
    admission: Admission
    recorder: EventRecorder
    state: StateReader
    gate: CallGate
    schemes: Schemes


class Session:
    """Answers GetPreferredAllocation and Allocate for the schemes that decide."""

    def __init__(self, parts: CallParts) -> None:
        self._identifier = parts.identifier
        self._recorder = parts.recorder
        self._state = parts.state
        self._admission = parts.admission
        self._gate = parts.gate
        self._schemes = parts.schemes
        self._pending: Pending | None = None
        self._scheme: Decides | None = None
        self._asker: Asker | None = None
        self._answered_at = -math.inf

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The units a container gets: exactly `size` ids.

        Raises:
            RefusalError: The pod cannot have what it asks for; the text says why.
        """
        call = Call(resource, size, frozenset(must_include))
        async with self._answering(call):
            return await self._prefer(call, frozenset(available) | call.must_include)

    @asynccontextmanager
    async def _answering(self, call: Call) -> AsyncIterator[None]:
        """One call at a time; one that is refused or cut off ends its decision, and is reported."""
        is_begun = False
        try:
            async with self._gate.lock:
                is_begun, self._asker = True, None
                try:
                    yield
                except RefusalError as error:
                    explained = self._explained(call, error)
                    self._refuse(call, explained)
                    raise explained from error
                except asyncio.CancelledError:
                    self._refuse(call, self._explained(call, cut_off()))
                    raise
        except asyncio.CancelledError:
            if not is_begun:  # what was decided is of the call that it waited for
                self._recorder.refused(None, call, self._asked_text(call), cut_off())
            raise

    async def _prefer(self, call: Call, available: frozenset[str]) -> Sequence[str]:
        scheme, view = self._schemes.deciding(call.resource, self._state())
        open_pending = self._open(call.resource)
        _check_door(view, open_pending)
        session = open_pending.asker if open_pending else None
        scope = self._schemes.scope(scheme)
        found = await self._identifier.identify(call, session, scope, self._admitting())
        self._asker = found.asker
        offer = Offer(call, available, found.live, found.others, held=found.held)
        if open_pending is None or not open_pending.is_for(found.asker):
            open_pending = self._decided(found.asker, offer, scheme, view)
        chosen = scheme.choose(open_pending, offer, view)
        open_pending.preferred[call.resource] = frozenset(chosen)
        self._gate.expect_allocate()
        self._answered_at = asyncio.get_running_loop().time()
        failpoint("prefer.decided")
        return chosen

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        """Make the grant durable, then answer; only one resource of a container carries the edits.

        Raises:
            RefusalError: The units do not follow the decision, or nothing durable can be made.
        """
        call = Call(resource, len(ids), frozenset(ids))
        async with self._answering(call):
            grant = await self._granted(call)
            scheme, _ = self._schemes.deciding(resource, self._state())
            is_answer = scheme.answers(resource)
            edits = self._admission.edits(grant, self._state()) if is_answer else ContainerEdits()
            failpoint("allocate.before-answer")
            self._expect_next()
            # Reported after the answer is sent, because the kubelet waits for that.
            asyncio.get_running_loop().call_soon(self._recorder.granted, grant, resource)
            return edits

    async def _granted(self, call: Call) -> Grant:
        state = self._state()
        scheme, view = self._schemes.deciding(call.resource, state)
        scope = self._schemes.scope(scheme)
        pending = self._pending
        if pending is None or not pending.awaits(call):
            found = who_allocates(
                call,
                scope.specs(self._identifier.specs()),
                scope.ledger(self._admission.ledger),
                self._session(call.resource),
            )
            if isinstance(found, Grant):
                return await self._admission.again(found)
            self._asker = found
            _check_door(view, self._open(call.resource))
            pending = await self._unasked(found, call, scheme, view)
        self._asker = pending.asker
        _check_door(view, pending)
        check_in_service(pending, state)
        grant = await self._admission.grant(pending, call, state)
        pending.granted.add(call.resource)
        return grant

    async def _unasked(self, asker: Asker, call: Call, scheme: Decides, view: NodeState) -> Pending:
        """The kubelet did not ask first: it hands on the units of an init container."""
        ids = call.must_include
        rivals = list({grant.pod for grant in self._admission.ledger.rivals(asker.pod, ids)})
        # All at once: the call as a whole has to be answered within seconds.
        held = await asyncio.gather(*(self._identifier.holds(pod, ids) for pod in rivals))
        if any(held):
            rival = rivals[held.index(True)]
            raise DoesNotFitError(
                f"the kubelet gives units that pod {rival} still holds (kubernetes issue 137534); "
                f"create the pod again",
                reason="DoubleBooked",
            )
        pending = self._open(call.resource)
        if pending is None or not pending.is_for(asker):
            scope, ledger = self._schemes.scope(scheme), self._admission.ledger
            live, others = scope.ledger(ledger), scope.others(ledger)
            offer = Offer(call, ids, live, others, is_given=True)
            scheme.check_given(asker, offer, view)
            pending = self._decided(asker, offer, scheme, view)
        scheme.check_follows(pending, ids)
        pending.preferred[call.resource] = ids
        return pending

    def _decided(self, asker: Asker, offer: Offer, scheme: Decides, view: NodeState) -> Pending:
        self._pending = None
        self._pending, self._scheme = scheme.decide(asker, offer, view), scheme
        self._recorder.decided(asker, self._pending.chosen)
        return self._pending

    def _explained(self, call: Call, error: RefusalError) -> RefusalError:
        """The refusal with pod, container, node and what was asked, where its text has them not."""
        if str(error).startswith("pod "):
            return error
        state = self._state()
        who = f"pod {self._asker.pod}" if self._asker else "a pod"
        if self._asker and self._asker.container:
            who += f", container {self._asker.container.name},"
        asked = self._asked_text(call)
        text = f"{who} on node {state.node} (mode {state.mode}) asks {asked}: {error}"
        return type(error)(text, reason=error.reason)

    def _asked_text(self, call: Call) -> str:
        scheme = self._schemes.of(call.resource)
        return scheme.asked_text(call.resource, call.size, self._state())

    def _refuse(self, call: Call, error: RefusalError) -> None:
        """Report, and forget the decision: the kubelet makes no further call for this pod."""
        self._pending = None
        self._gate.expect_noting()
        self._recorder.refused(self._asker, call, self._asked_text(call), error)

    def _expect_next(self) -> None:
        self._answered_at = asyncio.get_running_loop().time()
        pending = self._pending
        if pending is not None and pending.preferred.keys() - pending.granted:
            self._gate.expect_allocate()
        else:
            self._gate.expect_noting()

    def _open(self, resource: str) -> Pending | None:
        """The decision that a call for `resource` may still belong to."""
        pending = self._pending
        if pending is None or resource in pending.preferred or self._admitting() is None:
            return None
        return pending if self._schemes.of(resource) is self._scheme else None

    def _admitting(self) -> PodRef | None:
        """The pod of which a container was decided a moment ago."""
        is_late = asyncio.get_running_loop().time() - self._answered_at > _SESSION_SECONDS
        return None if is_late or self._pending is None else self._pending.asker.pod

    def _session(self, resource: str) -> Asker | None:
        pending = self._open(resource)
        return pending.asker if pending else None


def cut_off() -> NodeError:
    """Why a call has failed whose time ran out, or that the kubelet gave up: it rejects the pod."""
    return NodeError(
        "the node did not answer the kubelet's call in time; create the pod again, and see the "
        "agent's log for a slow disk, kubelet or API server",
        reason="CallCutOff",
    )


def _check_door(state: NodeState, pending: Pending | None) -> None:
    """Nothing new is given where cards go by claims; who has the first resource gets the second one.

    Raises:
        RequestError: The node's door is `dra`.
    """
    if state.door is Door.DRA and not (pending and pending.slice_id):
        raise RequestError(
            "this node gives its cards through claims (door dra, docs/dra.md); use a namespace with the "
            "label gpu-device-plugin/door=dra, or another node",
            reason="OtherDoor",
        )
