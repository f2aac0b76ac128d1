"""Passes the kubelet's calls on, by whether the resource's scheme decides or records."""

import time
from collections.abc import Sequence

from gpu_device_plugin.apps.agent.device_plugin.prestart import PreStart
from gpu_device_plugin.apps.agent.device_plugin.recorded import RecordedCalls
from gpu_device_plugin.apps.agent.device_plugin.session import Session
from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.web.metrics import AgentMetrics


class Service:
    """One answer to each of the kubelet's calls; see `kubelet.servicer.DeviceService`."""

    def __init__(
        self,
        session: Session,
        recorded: RecordedCalls,
        prestart: PreStart,
        schemes: Schemes,
        metrics: AgentMetrics,
    ) -> None:
        self._session = session
        self._recorded = recorded
        self._schemes = schemes
        self._prestart = prestart
        self._metrics = metrics

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The units that the container gets."""
        recording = self._schemes.recorder(resource)
        if recording is not None:
            return self._recorded.prefer(recording, resource, available, must_include, size)
        return await self._session.prefer(resource, available, must_include, size)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        """What the container receives."""
        started = time.perf_counter()
        try:
            recording = self._schemes.recorder(resource)
            if recording is not None:
                return await self._recorded.allocate(recording, resource, ids)
            return await self._session.allocate(resource, ids)
        finally:
            self._metrics.observe_allocate(time.perf_counter() - started)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Returns when the container may start; what is only recorded has nothing to wait for."""
        if self._schemes.recorder(resource) is None:
            await self._prestart.check(resource, ids)
