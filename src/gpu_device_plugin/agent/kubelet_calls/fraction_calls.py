"""The kubelet's calls for fractions: which pod asks, which card and units it gets, and its grant.

The kubelet admits one container at a time and calls GetPreferredAllocation, then Allocate, for
each resource in random order, without naming the pod (docs/architecture.md). The first call for
a container decides for its whole request; every later call has to follow that decision. Where
the calls stand is one value (`domain.grants.call_state.CallState`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.agent.kubelet_calls.caller_lookup import CallerLookup
from gpu_device_plugin.agent.kubelet_calls.holder_check import beside_left, beside_resized
from gpu_device_plugin.agent.kubelet_calls.kubelet_calls import KubeletCalls
from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.grants.call_state import (
    CallState,
    Offer,
    Pending,
    check_device_plugin_serves,
    check_in_service,
    check_not_resized,
)
from gpu_device_plugin.domain.grants.caller import Call, Caller, find_allocating_caller
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.scheme_registry import OF_FRACTIONS
from gpu_device_plugin.errors import DoesNotFitError, RefusalError

_LACKING = frozenset({"NoRoom", "TooManyPods"})


@dataclass(eq=False)
class FractionCalls(KubeletCalls):
    """Answers the calls for units of cards."""

    caller_lookup: CallerLookup
    _calls: CallState = field(default_factory=CallState, init=False)

    async def _prefer(self, call: Call, free: frozenset[str]) -> Sequence[str]:
        view, known = self._view(call), self._open(call)
        check_device_plugin_serves(view, known)
        session, admitting = known.caller if known else None, self._calls.admitting(_now())
        found = await self.caller_lookup.identify(call, session, admitting, free)
        self._caller = found.caller
        # The kubelet may not have heard yet that a slice has grown into what it offers.
        left = free - self.admission.ledger.extra_ids()
        offer = Offer(call, left, found.live, found.all_live, held=found.held)
        if known is None or not known.is_for(found.caller):
            self._decide(found.caller, offer, view)
        chosen = self.schemes.fractions.choose(self._calls.decided, offer, view)
        self._calls = self._calls.tell(call.resource, frozenset(chosen))
        self._answered()
        failpoint("prefer.decided")
        return chosen

    async def _allocate(self, call: Call) -> ContainerEdits:
        """Make the grant durable, then answer; only one resource of a container carries the edits."""
        grant = await self._grant(call)
        self.caller_lookup.pods.granted(grant.pod)
        self._view(call)  # the mode may have changed
        edits = ContainerEdits()
        if self.schemes.fractions.answers(call.resource):
            edits = self.setup.edits(grant, self.state())
        failpoint("allocate.before-answer")
        self._answered()
        # Reported after the answer is sent, because the kubelet waits for that.
        asyncio.get_running_loop().call_soon(self.recorder.granted, grant, call.resource)
        return edits

    async def _grant(self, call: Call) -> Grant:
        view = self._view(call)
        check_not_resized(call, self.admission.ledger)
        if not self._calls.awaits(call):
            known = self._open(call)
            caller = find_allocating_caller(
                call,
                OF_FRACTIONS.specs(self.caller_lookup.specs()),
                OF_FRACTIONS.ledger(self.admission.ledger),
                known.caller if known else None,
            )
            if isinstance(caller, Grant):
                return await self.admission.answer_again(caller)
            self._caller = caller
            check_device_plugin_serves(view, known)
            await self._hand_on(caller, call, view)
        pending = self._calls.decided
        self._caller = pending.caller
        check_device_plugin_serves(view, pending)
        check_in_service(pending, view)
        grant = await self.admission.grant(pending, call, view)
        self._calls = self._calls.grant(call.resource, grant.slice_id)
        return grant

    async def _hand_on(self, caller: Caller, call: Call, view: NodeState) -> None:
        """The kubelet did not ask first: it hands on the units of an init container."""
        ids, scheme = call.must_include, self.schemes.fractions
        await self.holders.check_free(self.admission.ledger.rivals(caller.pod, ids), ids)
        known = self._open(call)
        if known is None or not known.is_for(caller):
            living = self.caller_lookup.living
            offer = Offer(call, ids, OF_FRACTIONS.ledger(living), living, is_given=True)
            scheme.check_given(caller, offer, view)
            self._decide(caller, offer, view)
        scheme.check_follows(self._calls.decided, ids)
        self._calls = self._calls.tell(call.resource, ids)

    def _decide(self, caller: Caller, offer: Offer, view: NodeState) -> None:
        self._calls = self._calls.decide(self.schemes.fractions.decide(caller, offer, view))
        self.recorder.decided(caller, self._calls.decided.chosen)

    def _view(self, call: Call) -> NodeState:
        """The node as fractions see it now; RequestError where they do not serve the resource."""
        return self.schemes.serving_view(call.resource, self.state())

    def _open(self, call: Call) -> Pending | None:
        return self._calls.open_for(call.resource, _now())

    def _answered(self) -> None:
        self._calls = self._calls.answered(_now())
        if self._calls.awaits_allocate:
            self.gate.expect_allocate()
        else:
            self.gate.expect_noting()

    def _explained(self, call: Call, error: RefusalError) -> RefusalError:
        """Also with the pods that have what would fit."""
        if isinstance(error, DoesNotFitError) and error.reason in _LACKING:
            error = beside_left(error, self.caller_lookup.left_running)
            error = beside_resized(error, self.admission.ledger)
        return super()._explained(call, error)

    def _refuse(self, call: Call, error: RefusalError) -> None:
        """Also forget the decision: the kubelet makes no further call for this pod."""
        self._calls = self._calls.refuse()
        if error.reason != "CallCutOff":  # which may come again
            self.caller_lookup.pods.forget(self._caller)
        super()._refuse(call, error)


def _now() -> float:
    return asyncio.get_running_loop().time()
