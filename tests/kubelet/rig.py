"""A plugin's side and a stand-in kubelet in one directory, for contract tests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tools.harness import waiting
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import StandInContainer, StandInPod

from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, Mount
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.domain.node.state import DeviceGroup
from gpu_device_plugin.kubelet.plugin_directory import PluginDirectory
from gpu_device_plugin.kubelet.registration import Endpoint

MEM = str(Resource.MEM)
CORE = str(Resource.CORE)
DEADLINE_SECONDS = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Returns when `condition` holds; fails the test when it does not come true."""
    await waiting.until(condition, DEADLINE_SECONDS)


async def until_the_moment(condition: Callable[[], object]) -> None:
    """As `until`, but it returns in the very step of the loop in which `condition` holds first."""
    async with asyncio.timeout(DEADLINE_SECONDS * waiting.PATIENCE):
        while not condition():
            await asyncio.sleep(0)


@dataclass
class SimpleService:
    """A small device service: takes the lowest ids, unless told otherwise.

    Attributes:
        choose: Decides what GetPreferredAllocation answers.
        before_allocate: Awaited inside Allocate; may raise.
        before_start: Awaited inside PreStartContainer; may raise.
        calls: (call, resource, ids) in the order in which they came.
    """

    choose: Callable[[Sequence[str], Sequence[str], int], Awaitable[Sequence[str]]] | None = None
    before_allocate: Callable[[str, Sequence[str]], Awaitable[None]] | None = None
    before_start: Callable[[str], Awaitable[None]] | None = None
    calls: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        self.calls.append(("prefer", resource, tuple(available)))
        if self.choose is not None:
            return await self.choose(available, must_include, size)
        rest = sorted(set(available) - set(must_include))
        return [*must_include, *rest][:size]

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        self.calls.append(("allocate", resource, tuple(ids)))
        if self.before_allocate is not None:
            await self.before_allocate(resource, ids)
        return ContainerEdits(
            envs={"FROM": str(resource)},
            mounts=(Mount("/in/the/container", f"/host/{resource}", is_read_only=True),),
            devices=(),
            cdi_names=(),
        )

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        self.calls.append(("pre_start", resource, tuple(ids)))
        if self.before_start is not None:
            await self.before_start(resource)


class Rig:
    """Endpoints for gpu-mem and gpu-core.percentage beside a stand-in kubelet."""

    def __init__(self, kubelet: StandInKubelet) -> None:
        self.kubelet = kubelet
        self.service = SimpleService()
        self.directory = PluginDirectory(kubelet.plugin_dir)
        self.mem = Endpoint(Resource.MEM, self.service, self.directory)
        self.core = Endpoint(Resource.CORE, self.service, self.directory)
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, *endpoints: Endpoint, with_events: bool = True) -> None:
        """Runs these endpoints and the directory's look; unless told, no file event is missed."""
        self._tasks += [asyncio.create_task(endpoint.run()) for endpoint in endpoints]
        look = self.directory.run(with_events=with_events)
        self._tasks.append(asyncio.create_task(look))

    async def serve(self, units: int = 15, cards: int = 1, *, with_events: bool = True) -> None:
        """Starts the kubelet, offers both resources, and waits until both are allocatable."""
        await self.kubelet.start()
        self.mem.publish(mem_cards(units, cards))
        self.core.publish([group(Resource.CORE, card, 100) for card in range(cards)])
        self.run(self.mem, self.core, with_events=with_events)
        await self.offered(MEM, units * cards)
        await self.offered(CORE, 100 * cards)

    async def offered(self, resource: str, units: int) -> None:
        """Waits until the kubelet may give away exactly `units`, and the plugin knows of it.

        The kubelet has the list before the plugin has seen it go out.
        """
        endpoint = self.mem if resource == MEM else self.core
        await until(
            lambda: self.kubelet.allocatable(resource) == units and (endpoint.is_ready or not units)
        )

    async def registered_again(self, endpoint: Endpoint, before: int) -> None:
        """Waits for a registration after the `before` first ones, list and all."""
        await until(lambda: endpoint.is_ready and endpoint.state.registrations > before)

    async def wait_settled(self, sockets: int) -> None:
        """Waits until so many sockets are left, and both resources are served on theirs.

        Who registered with a kubelet that had just restarted does so once more.
        """
        await until(
            lambda: self.mem.is_ready and self.core.is_ready and len(self.sockets()) == sockets
        )

    async def stop_endpoints(self) -> None:
        """Ends the plugin as a SIGTERM does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def sockets(self) -> set[str]:
        """Names of the plugin's sockets that lie in the directory now."""
        return {
            path.name
            for path in self.directory.path.iterdir()
            if path.is_socket() and path.name != "kubelet.sock"
        }


def group(resource: str, card: int, units: int, *, is_healthy: bool = True) -> DeviceGroup:
    """The first units of a card."""
    return DeviceGroup(unit_ids(resource, card, units), is_healthy)


def mem_cards(units: int, cards: int = 1, *, is_healthy: bool = True) -> list[DeviceGroup]:
    """Cards that bring `units` of gpu-mem each."""
    return [group(Resource.MEM, card, units, is_healthy=is_healthy) for card in range(cards)]


def container(
    name: str = "main", *, mem: int = 0, core: int = 0, kind: ContainerKind = ContainerKind.APP
) -> StandInContainer:
    """A container that asks for so much."""
    limits = {name: amount for name, amount in ((MEM, mem), (CORE, core)) if amount}
    return StandInContainer(name, limits, kind)


def pod(name: str, *containers: StandInContainer) -> StandInPod:
    """A pod of these containers; its uid is made of its name."""
    return StandInPod("default", name, f"uid-{name}", containers)
