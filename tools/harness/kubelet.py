"""A stand-in kubelet: the device manager's side of the protocol, without containers.

It behaves as kubelet 1.36 was observed to, inconvenient habits included: random order of
resources, no deadlines, partial allocations that stay, and a plugin that is gone is never
dialled again. It shares nothing with the plugin's side but the generated messages.

The stand-in kubelet's PodResources server: List, Get and GetAllocatableResources, limited as the real one.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc

from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import podresources_pb2 as pb
from gpu_device_plugin.kubelet._proto import pods_pb2
from tools.harness.kubelet_allocation import Allocation
from tools.harness.kubelet_book import Book, Held, read_book
from tools.harness.kubelet_pods import (
    ContainerStart,
    KubeletFaults,
    KubeletTimes,
    PluginCall,
    PodAdmission,
    StandInPod,
)
from tools.harness.kubelet_registry import CHECKPOINT_NAME, PluginRegistry, serve

_PER_SECOND = 100.0
_BURST = 10.0


class PodResourcesServer:
    """Tells which active pod holds what; a pod being admitted is active already.

    A kubelet before 1.34 has no Get (`has_get`), and lists finished pods too (`lists_finished`). One in trouble does not
    tell what it is served (`tells_served`).
    """

    def __init__(
        self,
        socket: Path,
        active: Callable[[], tuple[StandInPod, ...]],
        known: Callable[[], tuple[StandInPod, ...]],
        holding: Callable[[], frozenset[str]],
        clock: Callable[[], float],
    ) -> None:
        self.book = Book()
        self.has_get = True
        self.lists_finished = False
        self.lists = 0
        self.tells_served = True
        self.asked_for_served = 0
        self._socket = socket
        self._active = active
        self._known = known
        self._holding = holding
        self._clock = clock
        self._tokens = _BURST
        self._counted_at = clock()
        self._server: Any = None
        self._made: dict[str, tuple[object, pb.PodResources]] = {}

    async def start(self, book: Book) -> None:
        """Listens, and answers from `book`."""
        self.book = book
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        calls: dict[str, tuple[Any, Any]] = {
            "List": (self._list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": (self._healthy, pb.AllocatableResourcesRequest),
        }
        if self.has_get:
            calls["Get"] = (self._get, pb.GetPodResourcesRequest)
        self._server = await serve(self._socket, "v1.PodResourcesLister", calls)

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _list(self, _request: Any, context: Any) -> pb.ListPodResourcesResponse:
        await self._count(context)
        self.lists += 1
        # This is what can make a kubelet give a device of a call in flight away again.
        self.book.drop_inactive(self._holding())
        listed = self._known() if self.lists_finished else self._active()
        return pb.ListPodResourcesResponse(pod_resources=self._messages(listed))

    async def _get(self, request: Any, context: Any) -> pb.GetPodResourcesResponse:
        await self._count(context)
        wanted = (request.pod_namespace, request.pod_name)
        found = [pod for pod in self._active() if (pod.namespace, pod.name) == wanted]
        if not found:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"pod {wanted[1]} in namespace {wanted[0]} not found"
            )
        return pb.GetPodResourcesResponse(pod_resources=self._messages(found)[0])

    async def _healthy(self, _request: Any, context: Any) -> pb.AllocatableResourcesResponse:
        await self._count(context)
        self.asked_for_served += 1
        if not self.tells_served:
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        devices = [
            pb.ContainerDevices(resource_name=resource, device_ids=[each])
            for resource, ids in self.book.healthy.items()
            for each in sorted(ids)
        ]
        return pb.AllocatableResourcesResponse(devices=devices)

    async def _count(self, context: Any) -> None:
        now = self._clock()
        self._tokens = min(_BURST, self._tokens + (now - self._counted_at) * _PER_SECOND)
        self._counted_at = now
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1

    def _messages(self, pods: Iterable[StandInPod]) -> list[pb.PodResources]:
        """Made once for what a pod holds, because a kubelet in Go takes less than Python to make them."""
        held_by, found = self.book.by_container(), list[pb.PodResources]()
        for pod in pods:
            holds = (
                pod,
                [held_by.get((pod.uid, container.name), {}) for container in pod.containers],
            )
            known = self._made.get(pod.uid)
            if known is None or known[0] != holds:
                known = self._made[pod.uid] = holds, _message(*holds)
            found.append(known[1])
        return found


def _message(pod: StandInPod, holds: Iterable[Mapping[str, Held]]) -> pb.PodResources:
    return pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pb.ContainerResources(
                name=container.name,
                devices=[
                    pb.ContainerDevices(resource_name=resource, device_ids=sorted(each.ids))
                    for resource, each in held.items()
                ],
                dynamic_resources=[
                    pb.DynamicResource(claim_resources=[pb.ClaimResource(driver_name=name)])
                    for name in container.drivers
                ],
            )
            for container, held in zip(pod.containers, holds, strict=True)
            if container.kind is not ContainerKind.INIT
        ],
    )


def _spec(pod: StandInPod) -> pods_pb2.Pod:
    found = pods_pb2.Pod(
        metadata=pods_pb2.ObjectMeta(
            name=pod.name, namespace=pod.namespace, uid=pod.uid, labels=pod.labels
        ),
        spec=pods_pb2.PodSpec(runtime_class_name=pod.runtime_class),
    )
    for each in pod.containers:
        is_app = each.kind is ContainerKind.APP
        written = (found.spec.containers if is_app else found.spec.init_containers).add(
            name=each.name, restart_policy="Always" if each.kind is ContainerKind.SIDECAR else ""
        )
        for name, amount in each.limits.items():
            written.resources.limits[name].string = str(amount)
    return found


class StandInKubelet:
    """A node's kubelet as its plugins see it, in a directory of its own.

    Attributes:
        plugin_dir: Where plugins register and the checkpoint lies.
        pods_dir: Has a directory, named by its uid, of every pod that was admitted and not removed.
        pod_resources: Its server; `has_get = False` before `start` makes an old kubelet.
        has_pods_api: Whether it serves its pods' specs from the next `start` on, as kubelet 1.37 does.
        registry: Plugins and their lists; `keys_by_socket = True` makes a newer kubelet.
        sources_ready: False between a restart and the moment the pods are known again; those of its first
            batch are added, and listed, as they are admitted, the oldest first.
    """

    def __init__(
        self,
        root: Path,
        seed: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        times: KubeletTimes | None = None,
    ) -> None:
        self.plugin_dir = root / "device-plugins"
        self.pods_dir = root / "pods"
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self.pods: dict[str, StandInPod] = {}
        self.sources_ready = True
        self.has_pods_api = False
        self._pods_socket = root / "pods-api" / "pods-api.sock"
        self._pods_server: Any = None
        self._times = times or KubeletTimes()
        self._finished: set[str] = set()
        self._added: set[str] = set()  # before the sources were ready
        self._running: set[tuple[str, str]] = set()
        self.registry = PluginRegistry(self.plugin_dir, clock, self._times)
        self.pod_resources = PodResourcesServer(
            self.pod_resources_socket, self.active_pods, self.known_pods, self._active, clock
        )
        self._allocation = Allocation(self.registry, random.Random(seed))  # noqa: S311 - a seeded die
        self._admission = asyncio.Lock()

    @property
    def calls(self) -> list[PluginCall]:
        """Every call made to a plugin so far."""
        return self.registry.journal

    @property
    def faults(self) -> KubeletFaults:
        """Faults of the next registrations and admissions; may be changed."""
        return self.registry.faults

    async def start(self) -> None:
        """Begins to listen, with what the checkpoint knows."""
        self.pods_dir.mkdir(parents=True, exist_ok=True)
        self._added.clear()
        book = read_book(self.plugin_dir / CHECKPOINT_NAME)
        await self.registry.start(book)
        await self.pod_resources.start(book)
        if self.has_pods_api:
            self._pods_socket.parent.mkdir(exist_ok=True)
            calls = {"ListPods": (self._list_pods, pods_pb2.ListPodsRequest)}
            self._pods_server = await serve(self._pods_socket, "v1alpha1.Pods", calls)

    async def stop(self) -> None:
        """Ends as a kubelet does: containers run on, sockets and checkpoint stay."""
        await self.registry.stop()
        await self.pod_resources.stop()
        if self._pods_server is not None:
            await self._pods_server.stop(0)
            self._pods_server = None

    async def restart(self) -> None:
        """Stops and starts; sockets of plugins are removed meanwhile, running pods stay."""
        await self.stop()
        await self.start()

    def forget_pods(self) -> None:
        """What only memory knew is gone: before the next start."""
        self.pods.clear()
        self._allocation.forget()
        self.sources_ready = False

    def add(self, pod: StandInPod) -> None:
        """Takes note of a pod, without its admission."""
        self.pods[pod.uid] = pod
        if not self.sources_ready:
            self._added.add(pod.uid)

    async def admit(self, pod: StandInPod) -> PodAdmission:
        """Takes a pod on, or rejects it for ever. A pod that is known is admitted again."""
        async with self._admission:
            self.add(pod)
            try:
                for container in pod.containers:
                    is_running = (pod.uid, container.name) in self._running
                    if self.sources_ready or not is_running:
                        await self._allocation.allocate_container(pod, container, self._active())
            except KubeletError as error:
                self._finished.add(pod.uid)
                return PodAdmission(
                    is_admitted=False,
                    reason="UnexpectedAdmissionError",
                    message=f"Pod was rejected: Allocate failed due to {error}, which is unexpected",
                )
            if self.faults.rejections_after_allocate:
                self._finished.add(pod.uid)
                reason = self.faults.rejections_after_allocate.pop(0)
                return PodAdmission(
                    is_admitted=False, reason=reason, message=f"Pod was rejected: {reason}"
                )
            (self.pods_dir / pod.uid).mkdir(exist_ok=True)
            return PodAdmission(is_admitted=True)

    async def start_container(self, uid: str, name: str) -> ContainerStart:
        """Starts, or restarts, a container of an admitted pod."""
        pod = self.pods[uid]
        (container,) = (each for each in pod.containers if each.name == name)
        options = await self._allocation.start_options(
            pod, container, self._times.pre_start, self._active()
        )
        self._running.add((uid, name))
        return options

    def containers_ended(self) -> None:
        """The node has gone down: no container runs any more, and every pod starts again."""
        self._running.clear()

    def finish(self, uid: str) -> None:
        """The pod's containers have ended: Succeeded or Failed, its devices are free again."""
        self._finished.add(uid)
        self._running = {key for key in self._running if key[0] != uid}

    def remove(self, uid: str) -> None:
        """The pod is deleted and gone; plugins are not told."""
        self.finish(uid)
        self.pods.pop(uid, None)
        with contextlib.suppress(FileNotFoundError):
            (self.pods_dir / uid).rmdir()

    def active_pods(self) -> tuple[StandInPod, ...]:
        """Pods that hold devices or are being admitted; see `known_pods`."""
        return tuple(pod for pod in self.known_pods() if pod.uid not in self._finished)

    def known_pods(self) -> tuple[StandInPod, ...]:
        """Every pod that is not removed yet, finished ones too; before the sources are ready only what was added."""
        known = self.pods.items()
        return tuple(pod for uid, pod in known if self.sources_ready or uid in self._added)

    def capacity(self, resource: str) -> int:
        """What node status shows as capacity; nothing once the grace period is over."""
        if self.registry.is_expired(resource):
            self._book.forget(resource)
        healthy = self._book.healthy.get(resource, frozenset())
        return len(healthy | self._book.unhealthy.get(resource, frozenset()))

    def allocatable(self, resource: str) -> int:
        """What node status shows as allocatable: healthy devices, used ones included."""
        return len(self._book.healthy.get(resource, frozenset()))

    def held(self, uid: str) -> Mapping[tuple[str, str], frozenset[str]]:
        """What a pod holds: (container, resource) -> ids."""
        return {key[1:]: held.ids for key, held in self._book.held.items() if key[0] == uid}

    async def _list_pods(self, _request: Any, _context: Any) -> pods_pb2.ListPodsResponse:
        return pods_pb2.ListPodsResponse(pods=[_spec(pod) for pod in self.known_pods()])

    @property
    def _book(self) -> Book:
        return self.registry.book

    def _active(self) -> frozenset[str]:
        # Before the sources are ready nothing is taken back from anybody.
        if not self.sources_ready:
            return frozenset(key[0] for key in self._book.held) | self.pods.keys()
        return frozenset(pod.uid for pod in self.active_pods())
