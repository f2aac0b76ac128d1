"""The agent's side of the Kubernetes API; with `--standalone` there is none."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import structlog

from gpu_device_plugin.agent.state.node_store import Signal
from gpu_device_plugin.domain.grants.call_budget import API_OBJECT_SECONDS
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.grants.claims import Claim, OfferedDevice
from gpu_device_plugin.domain.node.pods import PodKey, PodRef, PodRequest
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import read_object
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.kubernetes.objects.events import EventNote, Events
from gpu_device_plugin.kubernetes.objects.metadata_writer import (
    NodeMetadata,
    PodAnnotations,
    Wanted,
)
from gpu_device_plugin.kubernetes.objects.node_object import NodeWatch, OwnNode
from gpu_device_plugin.kubernetes.objects.pod_watch import PodWatch
from gpu_device_plugin.kubernetes.objects.resource_claims import fetch_claim, list_allocated
from gpu_device_plugin.kubernetes.objects.resource_slices import ResourceSlices
from gpu_device_plugin.kubernetes.objects.unhealthy_gpus import TakenOutWatch

CLAIM_SECONDS = 5.0
"""The kubelet waits longer for a claim, and asks again."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSignals:
    """Signals of changes at the API server."""

    pod_gone: Signal[PodRef] = field(default_factory=Signal[PodRef])
    """A pod has ended or was deleted."""
    pod_synced: Signal[PodRef] = field(default_factory=Signal[PodRef])
    """The watch has a pod, or another spec of it."""
    node_changed: Signal[None] = field(default_factory=Signal[None])
    """Our node has changed, or another plugin on it has."""
    taken_out: Signal[tuple[str, ...]] = field(default_factory=Signal[tuple[str, ...]])
    """An operator's list of cards of our node that are out: its entries."""
    reach_changed: Signal[None] = field(default_factory=Signal[None])
    """The API server went away or came back."""


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The agent's node, its own pod and the resources that it serves."""

    node: str
    own_pod: PodKey  # both empty outside a pod
    resources: Collection[str]
    own_names: frozenset[str]
    """Those that no other plugin has: on a node with more, there is another one."""


class ApiClaims(ResourceSlices):
    """What our node offers for claims, and the claims of the cluster."""

    async def fetch(self, namespace: str, name: str, /) -> Claim | None:
        """One GET with a deadline; None if there is no such claim. ClusterError: no answer in time."""
        return await fetch_claim(self._api, namespace, name, CLAIM_SECONDS)

    async def every(self) -> Sequence[Claim]:
        """Every claim of the cluster that has a device of our driver. ClusterError: no answer."""
        return await list_allocated(self._api)


class NoClaims:
    """Without an API server there are none, and nobody would allocate what is offered."""

    is_written = True
    refused = ""
    was_taken = True

    async def would_take(self) -> bool:
        return True

    async def fetch(self, _namespace: str, _name: str, /) -> Claim | None:
        return None

    async def every(self) -> Sequence[Claim]:
        return ()

    def offer(self, _devices: Sequence[OfferedDevice], _driver_version: str, /) -> None:
        """Nothing to do."""


ResourceClaims: TypeAlias = ApiClaims | NoClaims
"""The side of claims."""


class ApiCluster:
    """Watches our node and its pods, and writes labels, annotations and Events."""

    def __init__(
        self,
        api: ApiServer,
        place: AgentIdentity,
        signals: ClusterSignals,
        on_drop: Callable[[], None],
    ) -> None:
        self._api = api
        node, self._own_pod = place.node, place.own_pod
        self._signals = signals
        self._pods = PodWatch(
            api,
            node,
            on_change=self._pod_changed,
            on_gone=self._pod_gone,
            resources=place.resources,
        )
        self._node = NodeWatch(api, node, on_change=self._node_changed, resources=place.own_names)
        self._taken_out = TakenOutWatch(api, node, signals.taken_out.emit)
        self._node_name = node
        self._metadata = NodeMetadata(api, node, lambda: self._node.view, self._node_refused)
        self._annotations = PodAnnotations(api, self._pods.watched, self._pod_refused)
        self.resource_claims = ApiClaims(
            api, node, lambda: self._node.view.uid if self._node.view else ""
        )
        self._events = Events(api, node, api_uid=self._api_uid, on_drop=on_drop)
        self.foreign_plugin = self._node.foreign_plugin
        """Evidence of another plugin on our cards; empty if there is none."""
        self.post = self._events.post
        self.describe_node = self._metadata.put
        """Wants labels and annotations on our node; None removes a key."""
        self.drop = self._metadata.drop  # removes a label or an annotation of our node once
        self.remove_taint = self._metadata.remove_taint  # once in our node's life
        self.annotate_pod = self._annotations.put  # wants annotations on a pod
        api.availability.subscribe(lambda: signals.reach_changed.emit(None))

    @property
    def node(self) -> OwnNode | None:
        """Our node, or None while it is not known."""
        return self._node.view

    @property
    def node_trouble(self) -> str:
        """Why our node is not known; empty where it is."""
        if self._node.trouble:
            return self._node.trouble
        if self._node.is_synced:
            return "" if self._node.view else f"the API server has no node {self._node_name}"
        return "the API server has not answered"

    @property
    def taken_out_trouble(self) -> str:
        """Why it is not known which cards an operator takes out now; empty where it is."""
        return self._taken_out.reflection.trouble

    @property
    def installation(self) -> str:
        """Uid of the DaemonSet that this agent is of; empty outside one, or not known yet."""
        watched = self._pods.watched(*self._own_pod)
        return watched.owner_uid if watched else ""

    @property
    def runtime_class(self) -> str | None:
        """RuntimeClass of our own pod, empty for the default; None while it is not known."""
        watched = self._pods.watched(*self._own_pod)
        return watched.request.runtime_class if watched else None

    @property
    def is_reachable(self) -> bool | None:
        return not self._api.availability.is_away

    def specs(self) -> Specs:
        return self._pods.pods

    def annotations_of(self, pod: PodRef) -> Mapping[str, str]:
        """Those of a pod of our node; none of one that is not known."""
        watched = self._pods.watched(*pod.key)
        return watched.annotations if watched and watched.request.ref == pod else {}

    async def namespace_annotation(self, namespace: str, key: str) -> str:
        """What an annotation of a namespace says, or "". ClusterError: no answer in time."""
        path = f"/api/v1/namespaces/{namespace}"
        if self._api.availability.is_away:
            raise ClusterError(f"GET {path}: {self._api.availability.trouble}")
        found = await read_object(self._api, path, Bare, API_OBJECT_SECONDS)
        return found.annotations.get(key, "") if found else ""

    def is_synced(self) -> bool:
        """Whether the watch has had all of them since we started."""
        return self._pods.is_synced

    async def fetch_spec(self, namespace: str, name: str) -> PodRequest | None:
        """One GET with a short deadline. ClusterError: no answer in time."""
        return await self._pods.get(namespace, name, API_OBJECT_SECONDS)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Coroutines that have to run for as long as the agent does."""
        return [
            self._pods.run(),
            self._node.run(),
            self._taken_out.reflection.run(),
            self._metadata.run(),
            self._annotations.run(),
            self._events.run(),
            self.resource_claims.run(),
            self._close_at_end(),
        ]

    async def _close_at_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self._api.close()

    def _api_uid(self, ref: PodRef) -> str:
        watched = self._pods.watched(ref.namespace, ref.name)
        return watched.api_uid if watched else ref.uid

    def _pod_changed(self, request: PodRequest) -> None:
        self._annotations.observe(request.ref)
        if request.is_finished:
            self._signals.pod_gone.emit(request.ref)
        self._signals.pod_synced.emit(request.ref)

    def _pod_gone(self, ref: PodRef) -> None:
        self._annotations.forget(ref)
        self._signals.pod_gone.emit(ref)

    def _node_refused(self, text: str) -> None:
        self.post(EventNote(None, "NodePatchRefused", text))

    def _pod_refused(self, ref: PodRef, text: str) -> None:
        """A tenant may have filled its pod's annotations; what the node says of it counts."""
        _log.warning("annotations of a pod refused", pod=str(ref), error=text)
        words = (
            f"the agent cannot write what the pod holds to its annotations, and tries again: {text}"
        )
        self.post(EventNote(ref, "PodPatchRefused", words))

    def _node_changed(self) -> None:
        self._metadata.observe()
        self.resource_claims.node_changed()
        self._signals.node_changed.emit(None)


class NoCluster:
    """The API server's side with `--standalone`, where there is none."""

    resource_claims: ResourceClaims = NoClaims()

    node: OwnNode | None = None
    node_trouble = ""
    taken_out_trouble = ""
    installation = ""
    runtime_class: str | None = None
    is_reachable: bool | None = None

    def foreign_plugin(self, _is_offered: Callable[[str], bool], /) -> str:
        return ""

    def specs(self) -> Specs:
        return {}

    def is_synced(self) -> bool:
        return False

    async def fetch_spec(self, _namespace: str, _name: str, /) -> PodRequest | None:
        return None

    def annotations_of(self, _pod: PodRef, /) -> Mapping[str, str]:
        return {}

    async def namespace_annotation(self, _namespace: str, _key: str, /) -> str:
        return ""

    def post(self, _note: EventNote, /) -> None:
        """Nothing to do; the log has it already."""

    def describe_node(
        self, *, labels: Wanted | None = None, annotations: Wanted | None = None
    ) -> None:
        """Nothing to do."""

    def drop(self, *, label: str = "", annotation: str = "") -> None:
        """Nothing to do: there is none."""

    def remove_taint(self, _key: str, /) -> None:
        """Nothing to do."""

    def annotate_pod(self, _ref: PodRef, _annotations: Wanted, /) -> None:
        """Nothing to do."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return []


Cluster: TypeAlias = ApiCluster | NoCluster
"""What the agent's parts read from the API server and write to it. No admission waits."""
