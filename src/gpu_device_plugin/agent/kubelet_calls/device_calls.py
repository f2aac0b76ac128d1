"""The kubelet's calls for whole devices and their replicas: its choice stands.

No pod has to be known and nothing is written inside a call. A reconcile pass soon after reads who holds what.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.agent.kubelet_calls.kubelet_calls import KubeletCalls
from gpu_device_plugin.agent.reconcile.holders import UnreconciledAllocations
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.node.state import NodeState


@dataclass(eq=False)
class DeviceCalls(KubeletCalls):
    """Answers the calls for NVIDIA's resources."""

    unreconciled: UnreconciledAllocations

    async def _prefer(self, call: Call, free: frozenset[str]) -> Sequence[str]:
        scheme, ids = self.schemes.nvidia, call.must_include
        view = self.schemes.view(scheme, self.state())
        others = (free - ids) & scheme.groups(call.resource, view).keys()
        otherwise = self.holders.held_otherwise(scheme, view)
        more = call.size - len(ids)
        least = self.holders.least_used(self.admission.ledger, others, more, otherwise) | ids
        return scheme.prefer(call, least, view)

    async def _allocate(self, call: Call) -> ContainerEdits:
        """The answer for the container, whichever it is, that the kubelet gives these units."""
        scheme, view, ledger = self.schemes.nvidia, self._checked_view(call), self.admission.ledger
        devices = scheme.devices(call, view)
        sharing = [
            grant
            for grant in ledger.grants.values()
            if devices.intersection(grant.devices) and self.schemes.is_fraction(grant)
        ]
        holders = ledger.holders(call.must_include)
        await self.holders.check_chosen(call, devices, holders, sharing)
        view = self._checked_view(call)  # as it is after waiting for the kubelet
        self.holders.check_held_otherwise(call, scheme, view)
        # A container is about to hold what no grant tells yet: a pass has to find out which one.
        self.unreconciled.note()
        edits = self.setup.edits_of_chosen(call, view)
        self.gate.expect_noting()
        self.recorder.given(call)
        return edits

    def _checked_view(self, call: Call) -> NodeState:
        view = self.schemes.serving_view(call.resource, self.state())
        self.schemes.nvidia.check_call(call, view)
        return view
