"""Passes the kubelet's calls on: admissions to the allocator, starts to PreStart."""

import time
from collections.abc import Callable, Sequence

from gpu_device_plugin.apps.agent.admission.allocator import Allocator
from gpu_device_plugin.apps.agent.admission.prestart import PreStart
from gpu_device_plugin.apps.agent.admission.recorded import RecordedDevices
from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.web.metrics import AgentMetrics


class Service:
    """One answer to each of the kubelet's calls; see `kubelet.servicer.DeviceService`."""

    def __init__(
        self,
        allocator: Allocator,
        recorded: RecordedDevices,
        prestart: PreStart,
        metrics: AgentMetrics,
        records: Callable[[str], bool],
    ) -> None:
        self._allocator = allocator
        self._recorded = recorded
        self._records = records
        self._prestart = prestart
        self._metrics = metrics

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The units that the container gets."""
        if self._records(resource):
            return await self._recorded.prefer(
                Call(resource, size, frozenset(must_include)), available
            )
        return await self._allocator.prefer(resource, available, must_include, size)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        """What the container receives."""
        started = time.perf_counter()
        try:
            if self._records(resource):
                return await self._recorded.allocate(Call(resource, len(ids), frozenset(ids)))
            return await self._allocator.allocate(resource, ids)
        finally:
            self._metrics.observe_allocate(time.perf_counter() - started)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Returns when the container may start; of what is only recorded nothing is checked."""
        if self._records(resource):
            return
        await self._prestart.check(resource, ids)
