"""A stand-in kubelet: the device manager's side of the protocol, without containers.

It behaves as kubelet 1.36 was observed to, inconvenient habits included: random order of
resources, no deadlines, partial allocations that stay, and a plugin that is gone is never
dialled again. It shares nothing with the plugin's side but the generated messages.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.simulation.kubelet_allocation import Allocation
from gpu_device_plugin.simulation.kubelet_book import Book, read_book
from gpu_device_plugin.simulation.kubelet_podresources import PodResourcesServer
from gpu_device_plugin.simulation.kubelet_pods import (
    Admission,
    Call,
    ContainerStart,
    KubeletFaults,
    KubeletTimes,
    StandInContainer,
    StandInPod,
)
from gpu_device_plugin.simulation.kubelet_registry import CHECKPOINT_NAME, PluginRegistry


class StandInKubelet:
    """A node's kubelet as its plugins see it, in a directory of its own.

    Attributes:
        plugin_dir: Where plugins register and the checkpoint lies.
        pods_dir: Has a directory, named by its uid, of every pod that was admitted and not removed.
        pod_resources_socket: Where PodResources is served.
        pod_resources: Its server; `has_get = False` before `start` makes an old kubelet.
        registry: Plugins and their lists; `keys_by_socket = True` makes a newer kubelet.
        pods: Every pod given to this node and not removed, by uid.
        sources_ready: False between a restart and the moment the pods are known again.
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
        self._times = times or KubeletTimes()
        self._finished: set[str] = set()
        self._running: set[tuple[str, str]] = set()
        self.registry = PluginRegistry(self.plugin_dir, clock, self._times)
        self.pod_resources = PodResourcesServer(
            self.pod_resources_socket, self.active_pods, self.known_pods, self._active, clock
        )
        self._allocation = Allocation(self.registry, random.Random(seed))  # noqa: S311 - a seeded die
        self._admission = asyncio.Lock()

    @property
    def calls(self) -> list[Call]:
        """Every call made to a plugin so far."""
        return self.registry.journal

    @property
    def faults(self) -> KubeletFaults:
        """Faults of the next registrations and admissions; may be changed."""
        return self.registry.faults

    async def start(self) -> None:
        """Begins to listen, with what the checkpoint knows."""
        self.pods_dir.mkdir(parents=True, exist_ok=True)
        book = read_book(self.plugin_dir / CHECKPOINT_NAME)
        await self.registry.start(book)
        await self.pod_resources.start(book)

    async def stop(self) -> None:
        """Ends as a kubelet does: containers run on, sockets and checkpoint stay."""
        await self.registry.stop()
        await self.pod_resources.stop()

    async def restart(self) -> None:
        """Stops and starts; sockets of plugins are removed meanwhile, running pods stay."""
        await self.stop()
        await self.start()

    async def admit(self, pod: StandInPod) -> Admission:
        """Takes a pod on, or rejects it for ever. A pod that is known is admitted again."""
        async with self._admission:
            self.pods[pod.uid] = pod
            try:
                for container in pod.containers:
                    is_running = (pod.uid, container.name) in self._running
                    if self.sources_ready or not is_running:
                        await self._allocation.allocate_container(pod, container, self._active())
            except KubeletError as error:
                self._finished.add(pod.uid)
                return Admission(
                    is_admitted=False,
                    reason="UnexpectedAdmissionError",
                    message=f"Pod was rejected: Allocate failed due to {error}, which is unexpected",
                )
            if self.faults.rejections_after_allocate:
                self._finished.add(pod.uid)
                reason = self.faults.rejections_after_allocate.pop(0)
                return Admission(
                    is_admitted=False, reason=reason, message=f"Pod was rejected: {reason}"
                )
            (self.pods_dir / pod.uid).mkdir(exist_ok=True)
            return Admission(is_admitted=True)

    async def start_container(self, uid: str, name: str) -> ContainerStart:
        """Starts, or restarts, a container of an admitted pod.

        Raises:
            KubeletError: A plugin does not let it start.
        """
        pod = self.pods[uid]
        options = await self._allocation.start_options(
            pod, self._container(pod, name), self._times.pre_start, self._active()
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
        """Pods that hold devices or are being admitted; none before the sources are ready."""
        if not self.sources_ready:
            return ()
        return tuple(pod for uid, pod in self.pods.items() if uid not in self._finished)

    def known_pods(self) -> tuple[StandInPod, ...]:
        """Every pod that is not removed yet, finished ones too; none before the sources are ready."""
        return tuple(self.pods.values()) if self.sources_ready else ()

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

    @property
    def _book(self) -> Book:
        return self.registry.book

    def _active(self) -> frozenset[str]:
        # Before the sources are ready nothing is taken back from anybody.
        if not self.sources_ready:
            return frozenset(key[0] for key in self._book.held) | self.pods.keys()
        return frozenset(pod.uid for pod in self.active_pods())

    @staticmethod
    def _container(pod: StandInPod, name: str) -> StandInContainer:
        for container in pod.containers:
            if container.name == name:
                return container
        raise KubeletError(f"pod {pod.namespace}/{pod.name} has no container {name}")
