"""The kubelet's calls: which pod asks, which card and units it gets, and its grant.

The kubelet admits one container at a time and calls GetPreferredAllocation, then Allocate, for
each resource in random order, without naming the pod (docs/architecture.md). The first call for
a container decides for its whole request; every later call has to follow that decision. Where
the calls stand is one value (`domain.grants.call_state.CallState`).

Where the kubelet's own choice stands (whole devices, and their replicas), no pod has to be known
and nothing is written inside a call. A reconcile pass soon after reads who holds what.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gpu_device_plugin.agent.admission.admission import Admission
from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.kubelet_calls.caller_lookup import CallerLookup
from gpu_device_plugin.agent.kubelet_calls.holder_check import HolderCheck, beside_left
from gpu_device_plugin.agent.kubelet_calls.prestart import PreStart
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.grants.call_state import (
    CallState,
    Offer,
    Pending,
    check_device_plugin_serves,
    check_in_service,
)
from gpu_device_plugin.domain.grants.caller import Call, Caller, find_allocating_caller
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeState, StateReader
from gpu_device_plugin.domain.nvidia.nvidia_scheme import NvidiaScheme
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import DoesNotFitError, NodeError, RefusalError
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics


@dataclass(eq=False)
class KubeletCalls:
    """One answer to each of the kubelet's calls; see `DeviceService`.

    `note_answer` is called before an answer where the kubelet's choice stands: a container is about
    to hold what no grant tells yet, and a reconcile pass has to find out which one.
    """

    caller_lookup: CallerLookup
    holders: HolderCheck
    admission: Admission
    setup: ContainerSetup
    prestart: PreStart
    recorder: EventRecorder
    state: StateReader
    gate: CallGate
    schemes: Schemes
    metrics: AgentMetrics
    note_answer: Callable[[], None]
    _calls: CallState = field(default_factory=CallState)

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The units that the container gets: exactly `size` ids. RefusalError says why not."""
        call = Call(resource, size, frozenset(must_include))
        free = frozenset(available) | call.must_include
        async with self._answering(call):
            recording = self.schemes.recorder(resource)
            if recording is None:
                return await self._prefer(call, free)
            view = self.schemes.view(recording, self.state())
            others = (free - call.must_include) & recording.groups(resource, view).keys()
            more = size - len(call.must_include)
            ledger, otherwise = self.admission.ledger, self.holders.held_otherwise(recording, view)
            least = self.holders.least_used(ledger, others, more, otherwise) | call.must_include
            return recording.prefer(call, least, view)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        call = Call(resource, len(ids), frozenset(ids))
        started = time.perf_counter()
        try:
            async with self._answering(call):
                recording = self.schemes.recorder(resource)
                if recording is not None:
                    return await self._allocate_chosen(recording, call)
                return await self._allocate(call)
        finally:
            self.metrics.observe_allocate(time.perf_counter() - started)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        await self.prestart.check(resource, ids)

    @asynccontextmanager
    async def _answering(self, call: Call) -> AsyncIterator[None]:
        """One call at a time; one that is refused or cut off ends its decision, and is reported."""
        is_begun = False
        try:
            async with self.gate.lock:
                is_begun, self._calls = True, replace(self._calls, caller=None)
                try:
                    yield
                except RefusalError as error:
                    explained = self._explained(call, error)
                    self._refuse(call, explained)
                    raise explained from error
                except asyncio.CancelledError:
                    self._refuse(call, self._explained(call, _cut_off()))
                    raise
        except asyncio.CancelledError:
            if not is_begun:  # what was decided is of the call that it waited for
                self.recorder.refused(None, call, self._asked_text(call), _cut_off())
            raise

    async def _prefer(self, call: Call, free: frozenset[str]) -> Sequence[str]:
        scheme, view = self._fractions(call)
        known = self._open(call.resource)
        check_device_plugin_serves(view, known)
        scope, session = self.schemes.scope(scheme), known.caller if known else None
        found = await self.caller_lookup.identify(call, session, scope, self._admitting(), free)
        self._calls = replace(self._calls, caller=found.caller)
        offer = Offer(call, free, found.live, found.others, held=found.held)
        try:
            if known is None or not known.is_for(found.caller):
                self._decide(found.caller, offer, scheme, view)
            chosen = scheme.choose(self._calls.decided, offer, view)
        except DoesNotFitError as error:
            raise beside_left(error, self.caller_lookup.left_running) from error
        self._calls = self._calls.tell(call.resource, frozenset(chosen))
        self._answered()
        failpoint("prefer.decided")
        return chosen

    def _fractions(self, call: Call) -> tuple[AliyunScheme, NodeState]:
        """With the node as they see it now; RequestError where they do not serve the resource."""
        return self.schemes.fractions, self.schemes.find_serving(call.resource, self.state()).view

    async def _allocate(self, call: Call) -> ContainerEdits:
        """Make the grant durable, then answer; only one resource of a container carries the edits."""
        grant = await self._grant(call)
        # The mode may have changed.
        scheme, _ = self._fractions(call)
        edits = ContainerEdits()
        if scheme.answers(call.resource):
            edits = self.setup.edits(scheme, grant, self.state())
        failpoint("allocate.before-answer")
        self._answered()
        # Reported after the answer is sent, because the kubelet waits for that.
        asyncio.get_running_loop().call_soon(self.recorder.granted, grant, call.resource)
        return edits

    async def _grant(self, call: Call) -> Grant:
        scheme, view = self._fractions(call)
        if not self._calls.awaits(call):
            scope, known = self.schemes.scope(scheme), self._open(call.resource)
            found = find_allocating_caller(
                call,
                scope.specs(self.caller_lookup.specs()),
                scope.ledger(self.admission.ledger),
                known.caller if known else None,
            )
            if isinstance(found, Grant):
                return await self.admission.answer_again(found)
            self._calls = replace(self._calls, caller=found)
            check_device_plugin_serves(view, known)
            await self._hand_on(found, call, scheme, view)
        pending = self._calls.decided
        self._calls = replace(self._calls, caller=pending.caller)
        check_device_plugin_serves(view, pending)
        check_in_service(pending, view)
        grant = await self.admission.grant(pending, call, scheme, view)
        self._calls = self._calls.grant(call.resource, grant.slice_id)
        return grant

    async def _hand_on(
        self, caller: Caller, call: Call, scheme: AliyunScheme, view: NodeState
    ) -> None:
        """The kubelet did not ask first: it hands on the units of an init container."""
        ids, ledger = call.must_include, self.admission.ledger
        await self.holders.check_free(ledger.rivals(caller.pod, ids), ids)
        known = self._open(call.resource)
        if known is None or not known.is_for(caller):
            live, others = self.schemes.scope(scheme).parts(self.caller_lookup.living)
            offer = Offer(call, ids, live, others, is_given=True)
            scheme.check_given(caller, offer, view)
            self._decide(caller, offer, scheme, view)
        scheme.check_follows(self._calls.decided, ids)
        self._calls = self._calls.tell(call.resource, ids)

    def _decide(self, caller: Caller, offer: Offer, scheme: AliyunScheme, view: NodeState) -> None:
        self._calls = self._calls.decide(scheme.decide(caller, offer, view))
        self.recorder.decided(caller, self._calls.decided.chosen)

    async def _allocate_chosen(self, scheme: NvidiaScheme, call: Call) -> ContainerEdits:
        """The answer for the container, whichever it is, that the kubelet gives these units."""
        view = self._check_call(scheme, call)
        ledger, devices = self.admission.ledger, scheme.devices(call, view)
        _, beside = self.schemes.scope(scheme).parts(ledger)
        sharing = [g for g in beside.grants.values() if devices.intersection(g.devices)]
        holders = ledger.holders(call.must_include)
        await self.holders.check_chosen(call, devices, holders, sharing)
        view = self._check_call(scheme, call)  # as it is after waiting for the kubelet
        self.holders.check_held_otherwise(call, scheme, view)
        self.note_answer()
        edits = self.setup.edits_of_chosen(scheme, call, view)
        self.gate.expect_noting()
        self.recorder.given(call)
        return edits

    def _check_call(self, scheme: NvidiaScheme, call: Call) -> NodeState:
        view = self.schemes.find_serving(call.resource, self.state()).view
        scheme.check_call(call, view)
        return view

    def _explained(self, call: Call, error: RefusalError) -> RefusalError:
        """The refusal with pod, container, node and what was asked, where its text has them not."""
        if str(error).startswith("pod "):
            return error
        state, caller = self.state(), self._calls.caller
        who = f"pod {caller.pod}" if caller else "a pod"
        if caller and caller.container:
            who += f", container {caller.container.name},"
        asked = self._asked_text(call)
        text = f"{who} on node {state.node} (mode {state.mode}) asks {asked}: {error}"
        return type(error)(text, reason=error.reason)

    def _asked_text(self, call: Call) -> str:
        scheme = self.schemes.of(call.resource)
        return scheme.asked_text(call.resource, call.size, self.state())

    def _refuse(self, call: Call, error: RefusalError) -> None:
        """Report, and forget the decision: the kubelet makes no further call for this pod."""
        if self.schemes.recorder(call.resource) is None:
            self._calls = self._calls.refuse()
        self.gate.expect_noting()
        self.recorder.refused(self._calls.caller, call, self._asked_text(call), error)

    def _answered(self) -> None:
        self._calls = replace(self._calls, answered_at=asyncio.get_running_loop().time())
        if self._calls.awaits_allocate:
            self.gate.expect_allocate()
        else:
            self.gate.expect_noting()

    def _open(self, resource: str) -> Pending | None:
        """The decision that a call for `resource` may still belong to."""
        known = self._calls.pending
        if known is None or resource in known.preferred or self._admitting() is None:
            return None
        of = self.schemes.of
        return known if any(of(other) is of(resource) for other in known.preferred) else None

    def _admitting(self) -> PodRef | None:
        return self._calls.admitting(asyncio.get_running_loop().time())


def _cut_off() -> NodeError:
    """Why a call has failed whose time ran out, or that the kubelet gave up: it rejects the pod."""
    return NodeError(
        "the node did not answer the kubelet's call in time; create the pod again, and see the "
        "agent's log for a slow disk, kubelet or API server",
        reason="CallCutOff",
    )
