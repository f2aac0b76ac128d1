"""The pods of this node, from the API server."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import ClusterError, clip
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import read_object
from gpu_device_plugin.kubernetes.client.reflector import (
    UNFINISHED,
    ObjectListener,
    Reflection,
    Source,
)
from gpu_device_plugin.kubernetes.client.wire import MIRROR, Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request

_log = structlog.get_logger(__name__)

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class WatchedPod:
    """A pod as the API has it."""

    request: PodRequest  # what it asks for; its `ref.uid` is the kubelet's
    api_uid: str  # the API object's uid; for a static pod's mirror not the kubelet's
    annotations: Mapping[str, str]
    owner_uid: str = ""


class PodWatch:
    """Follows the pods bound to one node; `pods` is always what was last seen.

    A pod that has finished is gone: they may lie there by the thousand, with what their tenants wrote.
    """

    def __init__(
        self,
        api: ApiServer,
        node_name: str,
        *,
        on_change: Callable[[PodRequest], None] = lambda _: None,
        on_gone: Callable[[PodRef], None] = lambda _: None,
        resources: Collection[str] = OUR_RESOURCES,
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._resources = resources
        self._on_change, self._on_gone = on_change, on_gone
        self._watched: dict[Key, WatchedPod] = {}
        self._requests: dict[Key, PodRequest] = {}
        self._reflection = Reflection(
            api,
            Source("/api/v1/pods", f"spec.nodeName={node_name},{UNFINISHED}"),
            Pod,
            ObjectListener(self._replace, self._put, self._remove),
        )
        self.run = self._reflection.run

    @property
    def pods(self) -> Mapping[Key, PodRequest]:
        """What the node's pods ask for, by namespace and name; a live, read-only view."""
        return MappingProxyType(self._requests)

    @property
    def is_synced(self) -> bool:
        """Whether the pods were listed at least once since we started."""
        return self._reflection.is_synced

    @property
    def trouble(self) -> str:
        """Why the view is not current; empty if it is."""
        return self._reflection.trouble

    def watched(self, namespace: str, name: str) -> WatchedPod | None:
        """The pod, with what the API knows besides its request, or None."""
        return self._watched.get((namespace, name))

    async def get(
        self, namespace: str, name: str, deadline_seconds: float = 1.0
    ) -> PodRequest | None:
        """The pod by one GET, for when the watch is behind; None if it is not on this node.

        Raises:
            ClusterError: The API server is away or did not answer in time.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        if self._api.availability.is_away:
            raise ClusterError(
                f"GET {path}: the API server cannot be reached: {self._api.availability.trouble}"
            )
        pod = await read_object(self._api, path, Pod, deadline_seconds)
        if pod is None or pod.spec.node_name != self._node_name:
            return None
        return _request(pod, self._resources)

    def _replace(self, pods: Sequence[Pod]) -> None:
        listed = {(pod.metadata.namespace, pod.metadata.name) for pod in pods}
        for key in self._watched.keys() - listed:
            self._drop(key)
        for pod in pods:
            self._put(pod)

    def _put(self, pod: Pod) -> None:
        key = (pod.metadata.namespace, pod.metadata.name)
        meta = pod.metadata
        try:
            request = _request(pod, self._resources)
            watched = WatchedPod(request, meta.uid, meta.annotations or {}, meta.owner_uid)
        except ClusterError as error:
            _log.warning("pod cannot be parsed", pod="/".join(key), error=str(error))
            return
        before = self._watched.get(key)
        if before is not None and before.request.ref != watched.request.ref:
            self._drop(key)
        self._watched[key] = watched
        self._requests[key] = watched.request
        if watched != before:
            self._on_change(watched.request)

    def _remove(self, pod: Pod) -> None:
        key = (pod.metadata.namespace, pod.metadata.name)
        watched = self._watched.get(key)
        if watched is not None and watched.api_uid == pod.metadata.uid:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._requests.pop(key, None)
        gone = self._watched.pop(key, None)
        if gone is not None:
            self._on_gone(gone.request.ref)


def _request(pod: Pod, resources: Collection[str]) -> PodRequest:
    """What the pod asks for, with the uid that the kubelet knows it by.

    A static pod's mirror has an annotation with the kubelet's own uid (the hash of the manifest).
    That is the one in the kubelet's checkpoint; the API's uid is only the mirror's. Anybody can
    create a pod with that annotation, so it counts only where the kubelet lists the pod
    (`domain.node.pods.known_here`).
    """
    request, own = pod_request(pod, resources), pod.annotations.get(MIRROR)
    if own is None:
        return request
    ref = replace(request.ref, uid=clip(own) or request.ref.uid)
    return replace(request, ref=ref, is_mirror=True)


def pod_path(ref: PodRef) -> str:
    """The path of a pod at the API server."""
    return f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
