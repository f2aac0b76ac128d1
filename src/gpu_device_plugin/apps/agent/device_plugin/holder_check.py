"""Whether the kubelet gives a slice to the container that it was granted to."""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from gpu_device_plugin.apps.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.kubelet_snapshot import CheckpointEntry, check_holder, completed
from gpu_device_plugin.domain.pods import ListedPod, PodRef
from gpu_device_plugin.errors import KubeletError

_log = structlog.get_logger("prestart")


class HolderCheck:
    """Asks PodResources Get, and the kubelet's checkpoint for what Get does not show.

    Both are harmless while an Allocate is in flight, and both know the units of a container
    before it starts.
    """

    def __init__(
        self, get_pod: Callable[[PodRef], Awaitable[ListedPod | None]], snapshots: SnapshotReader
    ) -> None:
        self._get_pod = get_pod
        self._snapshots = snapshots

    async def check(self, grant: Grant, resource: str) -> None:
        """Return if the kubelet agrees, or does not know.

        Raises:
            UnknownPodError: Another pod or container holds these units.
        """
        check_holder(grant, resource, await self._listed(grant), self._entries())

    def named(self, grant: Grant) -> tuple[str, str]:
        """Uid and container of a grant, as far as they are known."""
        return completed(grant, self._entries())

    async def _listed(self, grant: Grant) -> ListedPod | None:
        if not grant.pod.name:
            return None
        try:
            return await self._get_pod(grant.pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(grant.pod), error=str(error))
            return None

    def _entries(self) -> Sequence[CheckpointEntry]:
        try:
            return self._snapshots.entries()
        except KubeletError as error:
            _log.info("the kubelet's checkpoint cannot be read", error=str(error))
            return ()
