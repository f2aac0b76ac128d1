"""Devices that the kubelet chooses: no identity and no grant are needed to answer its calls.

Who holds what is recorded off the call, by the reconcile pass that each Allocate asks for.
"""

from collections.abc import Awaitable, Callable, Sequence

from gpu_device_plugin.apps.agent.admission.call_gate import CallGate
from gpu_device_plugin.apps.agent.publish.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.slices.container_setup import ContainerSetup
from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.node_state import StateReader
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.errors import DoesNotFitError, RefusalError


class RecordedDevices:
    """Answers GetPreferredAllocation and Allocate for schemes that record."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a call reads, answers with and tells
        self,
        setup: ContainerSetup,
        schemes: Schemes,
        state: StateReader,
        ledger: Callable[[], Ledger],
        holds: Callable[[PodRef, frozenset[str]], Awaitable[bool]],
        recorder: EventRecorder,
        gate: CallGate,
        request_pass: Callable[[], None],
    ) -> None:
        self._setup = setup
        self._schemes = schemes
        self._state = state
        self._ledger = ledger
        self._holds = holds
        self._recorder = recorder
        self._gate = gate
        self._request_pass = request_pass

    async def prefer(self, call: Call, available: Sequence[str]) -> Sequence[str]:
        """The units that the kubelet should choose.

        Raises:
            RefusalError: They cannot be given; the text says why.
        """
        async with self._gate.lock:
            try:
                scheme, view = self._schemes.recording(call.resource, self._state())
                chosen = scheme.prefer(call, available, view)
            except RefusalError as error:
                self._refuse(call, error)
                raise
            self._gate.expect_allocate()
            return chosen

    async def allocate(self, call: Call) -> ContainerEdits:
        """What the container receives for the units that the kubelet chose.

        Raises:
            RefusalError: They cannot be given; the text says why.
        """
        async with self._gate.lock:
            try:
                await self._check_holders(call)
                edits = self._setup.answer(call, self._state())
            except RefusalError as error:
                self._refuse(call, error)
                raise
            self._gate.expect_noting()
            self._recorder.given(call)
            self._request_pass()
            return edits

    async def _check_holders(self, call: Call) -> None:
        """A recorded holder counts only if the kubelet confirms it now: a record may be old."""
        for grant in self._ledger().holders(call.must_include):
            if grant.is_handed_on:
                continue  # later containers of its pod reuse them
            if await self._holds(grant.pod, call.must_include):
                raise DoesNotFitError(
                    f"the kubelet gives units that pod {grant.pod} still holds (kubernetes issue "
                    f"137534); create the pod again",
                    reason="DoubleBooked",
                )

    def _refuse(self, call: Call, error: RefusalError) -> None:
        self._gate.expect_noting()
        asked = self._schemes.of(call.resource).asked_text(call.resource, call.size, self._state())
        self._recorder.refused(None, call, asked, error)
