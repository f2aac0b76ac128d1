"""The agent's side of the Kubernetes API; with `--standalone` there is none."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.events import EventNote, Events
from gpu_device_plugin.cluster.node import NodeWatch
from gpu_device_plugin.cluster.objects import NodeMetadata, PodAnnotations
from gpu_device_plugin.cluster.pods import PodWatch
from gpu_device_plugin.domain.pods import PodRef, PodRequest

GET_SECONDS = 1.0


class ClusterSide:
    """Watches our node and its pods, writes what others shall read. Nothing waits for it."""

    def __init__(self, kubeconfig: Path | None, node: str, on_drop: Callable[[], None]) -> None:
        self.api = ApiServer.at(kubeconfig)
        self.pods = PodWatch(self.api, node, on_change=self._pod_changed, on_gone=self._pod_gone)
        self.node = NodeWatch(self.api, node, on_change=self._node_changed)
        self.metadata = NodeMetadata(self.api, node, lambda: self.node.view)
        self.annotations = PodAnnotations(self.api, self.pods.watched)
        self.events = Events(self.api, node, api_uid=self._api_uid, on_drop=on_drop)
        self.on_pod_gone: Callable[[], None] = lambda: None
        self.on_pod_synced: Callable[[PodRef], None] = lambda _: None
        self.on_node: Callable[[], None] = lambda: None
        self.own_pod = ("", "")

    @property
    def installation(self) -> str:
        """Uid of the DaemonSet that this agent is of; empty outside one, or not known yet."""
        watched = self.pods.watched(*self.own_pod)
        return watched.owner_uid if watched else ""

    @property
    def runtime_class(self) -> str | None:
        """RuntimeClass of our own pod, empty for the default; None while it is not known."""
        watched = self.pods.watched(*self.own_pod)
        return watched.runtime_class if watched else None

    def specs(self) -> Mapping[tuple[str, str], PodRequest]:
        """Pods as the watch knows them."""
        return self.pods.pods

    def is_synced(self) -> bool:
        """Whether the watch has had all of them since we started."""
        return self.pods.is_synced

    async def fetch_spec(self, namespace: str, name: str) -> PodRequest | None:
        """One GET with a short deadline.

        Raises:
            ClusterError: The API did not answer in time.
        """
        return await self.pods.get(namespace, name, GET_SECONDS)

    def post(self, note: EventNote) -> None:
        """Write an Event when possible."""
        self.events.post(note)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run."""
        return [
            self.pods.run(),
            self.node.run(),
            self.metadata.run(),
            self.annotations.run(),
            self.events.run(),
            self._close_at_end(),
        ]

    async def _close_at_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self.api.close()

    def _api_uid(self, ref: PodRef) -> str:
        watched = self.pods.watched(ref.namespace, ref.name)
        return watched.api_uid if watched else ref.uid

    def _pod_changed(self, request: PodRequest) -> None:
        self.annotations.observe(request.ref)
        if request.is_finished:
            self.on_pod_gone()
        self.on_pod_synced(request.ref)

    def _pod_gone(self, ref: PodRef) -> None:
        self.annotations.forget(ref)
        self.on_pod_gone()

    def _node_changed(self) -> None:
        self.metadata.observe()
        self.on_node()


class NoCluster:
    """`--standalone`: the kubelet is all there is."""

    def specs(self) -> Mapping[tuple[str, str], PodRequest]:
        """Nobody says what pods ask for."""
        return {}

    def is_synced(self) -> bool:
        """Nobody ever will."""
        return False

    async def fetch_spec(self, _namespace: str, _name: str) -> PodRequest | None:
        """Nobody tells."""
        return None

    def post(self, note: EventNote) -> None:
        """There is nobody to read it; the log has it already."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Nothing runs."""
        return []
