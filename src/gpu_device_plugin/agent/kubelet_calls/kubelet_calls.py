"""The kubelet's calls, as far as both kinds of resources answer them alike: one at a time, and a refusal says who asked what."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpu_device_plugin.agent.admission.admission import Admission
from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.kubelet_calls.holder_check import HolderCheck
from gpu_device_plugin.agent.kubelet_calls.prestart import PreStart
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.node.state import StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import NodeError, RefusalError
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics


@dataclass(eq=False)
class KubeletCalls(ABC):
    """One answer to each of the kubelet's calls for resources of one kind; see `DeviceService`."""

    admission: Admission
    setup: ContainerSetup
    holders: HolderCheck
    prestart: PreStart
    recorder: EventRecorder
    state: StateReader
    gate: CallGate
    schemes: Schemes
    metrics: AgentMetrics
    _caller: Caller | None = field(default=None, init=False)
    """Whose the call is that is answered, as far as it is known."""

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The units that the container gets: exactly `size` ids. RefusalError says why not."""
        call = Call(resource, size, frozenset(must_include))
        async with self._answering(call):
            return await self._prefer(call, frozenset(available) | call.must_include)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        call = Call(resource, len(ids), frozenset(ids))
        started = time.perf_counter()
        try:
            async with self._answering(call):
                return await self._allocate(call)
        finally:
            self.metrics.observe_allocate(time.perf_counter() - started)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        await self.prestart.check(resource, ids)

    @abstractmethod
    async def _prefer(self, call: Call, free: frozenset[str]) -> Sequence[str]:
        """The answer, of the units that the kubelet has free, those to include among them."""

    @abstractmethod
    async def _allocate(self, call: Call) -> ContainerEdits:
        """The answer for a container that gets the call's units."""

    @asynccontextmanager
    async def _answering(self, call: Call) -> AsyncIterator[None]:
        """One call at a time; one that is refused or cut off ends its decision, and is reported."""
        is_begun = False
        try:
            async with self.gate.lock:
                is_begun, self._caller = True, None
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

    def _explained(self, call: Call, error: RefusalError) -> RefusalError:
        """The refusal with pod, container, node and what was asked, where its text has them not."""
        if str(error).startswith("pod "):
            return error
        state, caller = self.state(), self._caller
        who = f"pod {caller.pod}" if caller else "a pod"
        if caller and caller.container:
            who += f", container {caller.container.name},"
        asked = self._asked_text(call)
        return error.in_words(
            f"{who} on node {state.node} (mode {state.mode}) asks {asked}: {error}"
        )

    def _asked_text(self, call: Call) -> str:
        scheme = self.schemes.of(call.resource)
        return scheme.asked_text(call.resource, call.size, self.state())

    def _refuse(self, call: Call, error: RefusalError) -> None:
        self.gate.expect_noting()
        self.recorder.refused(self._caller, call, self._asked_text(call), error)


def _cut_off() -> NodeError:
    """Why a call has failed whose time ran out, or that the kubelet gave up: it rejects the pod."""
    return NodeError(
        "the node did not answer the kubelet's call in time; create the pod again, and see the "
        "agent's log for a slow disk, kubelet or API server",
        reason="CallCutOff",
    )
