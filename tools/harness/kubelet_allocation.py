"""How the stand-in kubelet finds devices for a container, step for step as the real one.

Errors have the kubelet's own wording, because people read them beside the agent's.
"""

import random
from collections.abc import Iterable

from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import KubeletError
from tools.harness.kubelet_book import Book, Held
from tools.harness.kubelet_pods import ContainerStart, StandInContainer, StandInPod
from tools.harness.kubelet_registry import PluginLink, PluginRegistry


class Allocation:
    """The device manager's decisions for pods, container by container."""

    def __init__(self, registry: PluginRegistry, chance: random.Random) -> None:
        self._registry = registry
        self._chance = chance
        self._reusable: dict[str, dict[str, set[str]]] = {}

    @property
    def _book(self) -> Book:
        return self._registry.book

    def forget(self) -> None:
        """What only memory knew is gone."""
        self._reusable.clear()

    async def allocate_container(
        self, pod: StandInPod, container: StandInContainer, active: frozenset[str]
    ) -> None:
        """Gives a container its devices; what an init container held may be taken again.

        Where it cannot have them (KubeletError), resources given before stay with it.
        """
        self._reusable = {pod.uid: self._reusable.get(pod.uid, {})}
        reusable = self._reusable[pod.uid]
        await self._allocate_resources(pod, container, active)
        for resource, held in self._book.of_container(pod.uid, container.name).items():
            if container.kind is ContainerKind.INIT:
                reusable.setdefault(resource, set()).update(held.ids)
            else:
                reusable.setdefault(resource, set()).difference_update(held.ids)

    async def start_options(
        self, pod: StandInPod, container: StandInContainer, seconds: float, active: frozenset[str]
    ) -> ContainerStart:
        """Asks before the start, then merges the answers given at admission; after an error the kubelet tries again."""
        is_lacking = False
        for resource in self._shuffle(container.limits):
            if not self._book.knows(resource) or container.limits[resource] == 0:
                continue
            ids = self._book.ids_of(pod.uid, container.name, resource)
            link = self._link(resource)
            if ids is None and link.options is not None and link.options.pre_start_required:
                raise KubeletError(
                    f"no devices found allocated in local cache for pod {pod.uid}, container "
                    f"{container.name}, resource {resource}"
                )
            if ids is None:
                is_lacking = True
                continue
            await link.pre_start(self._shuffle(ids), seconds)
        if is_lacking:  # admitted while the resource was unknown
            await self._allocate_resources(pod, container, active)
        return self._merge(pod, container)

    async def _allocate_resources(
        self, pod: StandInPod, container: StandInContainer, active: frozenset[str]
    ) -> None:
        is_counted = False
        for resource in self._shuffle(container.limits):
            if not self._book.knows(resource):
                continue  # in silence: the pod starts without
            if not is_counted:
                self._book.drop_inactive(active)
                is_counted = True
            await self._allocate_resource(pod, container, resource)
        if is_counted:
            self._registry.save()

    async def _allocate_resource(
        self, pod: StandInPod, container: StandInContainer, resource: str
    ) -> None:
        chosen = await self._choose(pod, container, resource)
        if not chosen:
            return
        try:
            answer = await self._link(resource).allocate(self._shuffle(chosen))
        except KubeletError:
            self._book.recount()
            raise
        self._book.held[pod.uid, container.name, resource] = Held(frozenset(chosen), answer)

    async def _choose(
        self, pod: StandInPod, container: StandInContainer, resource: str
    ) -> set[str]:
        """The devices to allocate; none where the container has them already."""
        required = container.limits[resource]
        held = self._book.ids_of(pod.uid, container.name, resource) or frozenset()
        if held and len(held) != required:
            raise KubeletError(
                f"pod {pod.name} container {container.name} changed request for resource"
                f" {resource} from {len(held)} to {required}"
            )
        healthy = self._healthy(resource, held)
        if held or required == 0:
            return set()
        taken = self._book.allocated.setdefault(resource, set())
        chosen: set[str] = set()
        reusable = self._reusable.get(pod.uid, {}).get(resource, set())
        self._take(chosen, reusable, required, taken)
        if len(chosen) == required:
            return chosen
        available = healthy - taken
        if len(available) < required - len(chosen):
            raise KubeletError(
                f"requested number of devices unavailable for {resource}. Requested:"
                f" {required - len(chosen)}, Available: {len(available)}"
            )
        preferred = await self._link(resource).ask_preferred(
            self._shuffle(available | chosen), self._shuffle(chosen), required
        )
        self._take(chosen, preferred & available, required, taken)
        self._take(chosen, available, required, taken)
        return chosen

    def _healthy(self, resource: str, held: frozenset[str]) -> frozenset[str]:
        healthy = self._book.healthy.get(resource)
        if healthy is None:
            raise KubeletError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise KubeletError(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if not held <= healthy:
            raise KubeletError(
                "previously allocated devices are no longer healthy;"
                f" cannot allocate unhealthy devices {resource}"
            )
        return healthy

    def _take(
        self, chosen: set[str], offered: set[str] | frozenset[str], required: int, taken: set[str]
    ) -> None:
        """Moves devices at random from `offered` until `required` are chosen."""
        for device in self._shuffle(offered - chosen):
            if len(chosen) == required:
                return
            chosen.add(device)
            taken.add(device)

    def _merge(self, pod: StandInPod, container: StandInContainer) -> ContainerStart:
        """The answers put together, resources in random order: the first to name a key wins."""
        held = self._book.of_container(pod.uid, container.name)
        env: dict[str, str] = {}
        mounts: dict[str, tuple[str, bool]] = {}
        devices: dict[str, tuple[str, str]] = {}
        names: set[str] = set()
        for resource in self._shuffle(held):
            answer = held[resource].answer
            env = {**dict(answer.envs), **env}
            for mount in answer.mounts:
                mounts.setdefault(mount.container_path, (mount.host_path, mount.read_only))
            for device in answer.devices:
                devices.setdefault(device.container_path, (device.host_path, device.permissions))
            names.update(device.name for device in answer.cdi_devices)
        return ContainerStart({**env, **container.env}, mounts, devices, frozenset(names))

    def _link(self, resource: str) -> PluginLink:
        link = self._registry.links.get(resource)
        if link is None:
            self._book.recount()
            raise KubeletError(f"unknown Device Plugin {resource}")
        return link

    def _shuffle(self, items: Iterable[str]) -> tuple[str, ...]:
        """The items in random order, as Go walks maps and sets; the same for the same seed."""
        ordered = sorted(items)
        self._chance.shuffle(ordered)
        return tuple(ordered)
