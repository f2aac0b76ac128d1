"""The way of one request through the node: who asks, which card, which units, one grant.

The kubelet admits one container at a time and calls GetPreferredAllocation, then Allocate,
for each resource in random order, without a name (kubelet.md 4, method G). The first call of
a container decides for its whole request; every later one is held to that decision.
"""

import asyncio
from collections.abc import Sequence

from gpu_device_plugin.apps.agent.answers import Answers
from gpu_device_plugin.apps.agent.book import Book
from gpu_device_plugin.apps.agent.decide import Offer, Pending, choose_units, decide
from gpu_device_plugin.apps.agent.granting import GrantMaker
from gpu_device_plugin.apps.agent.identify import Identifier
from gpu_device_plugin.apps.agent.journal import Journal
from gpu_device_plugin.apps.agent.state import NodeState, StateReader
from gpu_device_plugin.domain.edits import ContainerEdits
from gpu_device_plugin.domain.identity import Asker, Call, who_allocates
from gpu_device_plugin.domain.ledger import Grant
from gpu_device_plugin.domain.modes import resources_of
from gpu_device_plugin.domain.placement import follows
from gpu_device_plugin.domain.units import Resource
from gpu_device_plugin.errors import DoesNotFitError, RefusalError, RequestError
from gpu_device_plugin.store.failpoints import failpoint


class Allocator:
    """Answers GetPreferredAllocation and Allocate for all resources of the node."""

    def __init__(
        self,
        identifier: Identifier,
        book: Book,
        answers: Answers,
        journal: Journal,
        state: StateReader,
    ) -> None:
        self._identifier = identifier
        self._book = book
        self._journal = journal
        self._state = state
        self._maker = GrantMaker(book, answers, journal)
        self._pending: Pending | None = None
        self._asker: Asker | None = None
        self.calm = asyncio.Lock()
        """Held over every call and over every List: the two must never overlap (#137534)."""

    async def prefer(
        self, resource: Resource, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The units a container gets: exactly `size` ids.

        Raises:
            RefusalError: The pod cannot have what it asks for; the text says why.
        """
        call = Call(resource, size, frozenset(must_include))
        async with self.calm:
            self._asker = None
            try:
                return await self._prefer(call, frozenset(available) | call.must_include)
            except RefusalError as error:
                self._refuse(call, error)
                raise

    async def _prefer(self, call: Call, available: frozenset[str]) -> Sequence[str]:
        state = self._serving(call.resource)
        open_pending = self._open(call.resource)
        session = open_pending.asker if open_pending else None
        found = await self._identifier.identify(call, session)
        self._asker = found.asker
        offer = Offer(call, available, found.live)
        if open_pending is None or not open_pending.is_for(found.asker):
            open_pending = self._decided(found.asker, offer, state)
        chosen = choose_units(open_pending, offer, state)
        open_pending.preferred[call.resource] = frozenset(chosen)
        failpoint("prefer.decided")
        return chosen

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> ContainerEdits:
        """Make the grant durable, then answer; only gpu-mem's answer carries anything.

        Raises:
            RefusalError: The units do not follow the decision, or nothing durable can be made.
        """
        call = Call(resource, len(ids), frozenset(ids))
        async with self.calm:
            self._asker = None
            try:
                grant = await self._granted(call, self._serving(resource))
                edits = self._maker.edits(grant, self._state())
            except RefusalError as error:
                self._refuse(call, error)
                raise
            failpoint("allocate.before-answer")
            self._journal.granted(grant, resource)
            return edits if resource is Resource.MEM else ContainerEdits()

    async def _granted(self, call: Call, state: NodeState) -> Grant:
        pending = self._pending
        if pending is None or not pending.awaits(call):
            found = who_allocates(
                call,
                self._identifier.sources.specs(),
                self._book.ledger,
                self._session(call.resource),
            )
            if isinstance(found, Grant):
                return self._maker.again(found, state)
            self._asker = found
            pending = await self._unasked(found, call, state)
        self._asker = pending.asker
        grant = self._maker.grant(pending, call, state)
        pending.granted.add(call.resource)
        return grant

    async def _unasked(self, asker: Asker, call: Call, state: NodeState) -> Pending:
        """The kubelet did not ask first: it hands on the units of an init container."""
        ids = call.must_include
        for other in self._book.ledger.holders(ids):
            is_other = not other.pod.is_same_name(asker.pod)
            if is_other and await self._identifier.holds(other.pod, ids):
                raise DoesNotFitError(
                    f"pod {asker.pod}: the kubelet gives units that pod {other.pod} still holds "
                    f"(kubernetes issue 137534); create the pod anew",
                    reason="DoubleBooked",
                )
        pending = self._open(call.resource)
        if pending is None or not pending.is_for(asker):
            pending = self._decided(asker, Offer(call, ids, self._book.ledger), state)
        if not follows(ids, pending.cards):
            wanted = ", ".join(str(card.index) for card in pending.cards)
            raise DoesNotFitError(
                f"pod {asker.pod}: the kubelet hands on {call.resource} {', '.join(sorted(ids))} on "
                f"node {state.node} without asking, wanted equal parts on card {wanted}; create "
                f"the pod anew, and let its init containers ask for one card only",
                reason="OtherCard",
            )
        pending.preferred[call.resource] = ids
        return pending

    def _decided(self, asker: Asker, offer: Offer, state: NodeState) -> Pending:
        self._pending = None
        self._pending = decide(asker, offer, state)
        self._journal.decided(self._pending)
        return self._pending

    def _refuse(self, call: Call, error: RefusalError) -> None:
        """Tell, and forget the decision: the kubelet makes no further call for this pod."""
        self._pending = None
        self._journal.refused(self._asker, call, error)

    def _open(self, resource: Resource) -> Pending | None:
        """The decision that a call for `resource` may still belong to."""
        if self._pending is None or resource in self._pending.preferred:
            return None
        return self._pending

    def _session(self, resource: Resource) -> Asker | None:
        pending = self._open(resource)
        return pending.asker if pending else None

    def _serving(self, resource: Resource) -> NodeState:
        state = self._state()
        if state.mode is None or resource not in resources_of(state.mode):
            raise RequestError(
                f"node {state.node} is in mode {state.mode} and does not serve {resource}",
                reason="NotServed",
            )
        return state
