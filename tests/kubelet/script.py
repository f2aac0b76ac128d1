"""What a kubelet does with two plugins, as one script for the stand-in kubelet and a real one.

The transcript says what the plugins were asked, what became of each pod, and what the kubelet tells and keeps. What
a kubelet leaves to chance (which of two resources comes first) is told apart by resource, or as the set of what came.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
from tools.harness import waiting
from tools.harness.kubelet_pods import StandInContainer, StandInPod

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.domain.node.state import DeviceGroup
from gpu_device_plugin.errors import KubeletError, RequestError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME, read_checkpoint
from gpu_device_plugin.kubelet.device_list import DeviceList
from gpu_device_plugin.kubelet.device_plugin_servicer import DevicePluginServicer, StreamWatch
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.kubelet.registration import register
from gpu_device_plugin.kubelet.unix_sockets import listen

A, B = "example.com/a", "example.com/b"
UNITS = {A: 16, B: 20}
PATIENT_SECONDS = 60.0
_REGISTER = "/v1beta1.Registration/Register"


class Player(Protocol):
    """A kubelet and its pods; `environment` is what FROM is in a container."""

    plugin_dir: Path
    pod_resources_socket: Path

    async def run(self, pod: StandInPod) -> str:
        """Nothing once it runs, or the kubelet's message where it rejects the pod."""

    async def reject_later(self, pod: StandInPod) -> str:
        """As `run`, of a pod that a step after the allocation rejects: the reason."""

    async def start_again(self, pod: str) -> str:
        """Ends the container `main` with an error: nothing once it runs again, or why it does not."""

    async def finish(self, pod: str) -> None: ...
    async def end_soon(self, pod: str) -> Callable[[], None]:
        """Begins to end it; what comes back is called when it is to be over (a real one ends by itself)."""

    async def remove(self, *pods: str) -> None: ...
    async def restart(self) -> None: ...
    async def environment(self, pod: str, container: str) -> str: ...
    def uid(self, pod: str) -> str: ...
    async def capacity(self, resource: str, allocatable: int) -> int:
        """The capacity in the node's status, once so much is allocatable."""


class _Servicer(DevicePluginServicer):
    """The shipped one, which also notes what a device service is not told."""

    calls: list[str]
    options_error = ""

    async def options(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        self.calls.append(f"{self.resource} GetDevicePluginOptions")
        if self.options_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return await super().options(request, context)

    async def _answer(self, *words: Any, seconds: float = PATIENT_SECONDS) -> Any:
        return await super()._answer(*words, seconds=seconds)

    async def list_and_watch(self, request: pb.Empty, context: Any) -> None:
        self.calls.append(f"{self.resource} ListAndWatch")
        await super().list_and_watch(request, context)


class Plugin:
    """Units of one resource, registered once: it gives the lowest, and notes what it is asked."""

    def __init__(self, resource: str, calls: list[str], directory: Path, socket: str) -> None:
        self.preference: Sequence[str] | None = None
        self.before_allocate: Callable[[], Awaitable[None]] | None = None
        self.list = DeviceList()
        self._resource, self._calls, self._path = resource, calls, directory / socket
        options = pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )
        streams = StreamWatch(asyncio.Event())
        self.servicer = _Servicer(resource, self, options, self.list, streams)
        self.servicer.calls = calls
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self.servicer.method_table(),))

    async def start(self, units: int = 1) -> None:
        """Listens, offers its first units, and registers."""
        self.offer(units)
        await listen(self._server, self._path)
        options, kubelet = pb.DevicePluginOptions(), self._path.with_name("kubelet.sock")
        await register(kubelet, self._resource, self._path.name, options)

    async def stop(self) -> None:
        await self._server.stop(0)
        # A server that is collected after its event loop has closed complains.
        del self._server

    def offer(self, units: int, unhealthy: int = 0) -> None:
        """So many healthy units, after so many that are not."""
        ids = tuple(f"{self._resource[-1]}{i:02}" for i in range(unhealthy + units))
        groups = DeviceGroup(ids[:unhealthy], is_healthy=False), DeviceGroup(ids[unhealthy:])
        self.list.publish(groups)

    async def prefer(
        self, _: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        free, must = sorted(available), sorted(must_include)
        self._note(f"GetPreferredAllocation {size} of {_few(free)} with {must}")
        lowest = [*must, *(each for each in free if each not in must)][:size]
        return lowest if self.preference is None else self.preference

    async def allocate(self, _: str, ids: Sequence[str]) -> ContainerEdits:
        self._note(f"Allocate {_few(ids)}")
        if self.before_allocate is not None:
            await self.before_allocate()
        return ContainerEdits(envs={"FROM": self._resource})

    async def pre_start(self, _: str, ids: Sequence[str]) -> None:
        self._note(f"PreStartContainer {_few(ids)}")

    def _note(self, call: str) -> None:
        self._calls.append(f"{self._resource} {call}")


class Script:
    """Plays it; `play` returns the transcript."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._calls: list[str] = []
        self._lines: list[str] = []
        self._pods: list[str] = []
        self._resources = PodResources(player.pod_resources_socket, (A, B))
        self._plugins = {resource: self._plugin(resource, resource[-1]) for resource in (A, B)}

    async def play(self) -> str:
        steps = (
            *(self._registrations_refused, self._unknown_resource, self._registered),
            *(self._started_without, self._both_resources, self._many_containers),
            *(self._taken_over, self._preferences, self._second_refused, self._too_many),
            *(self._finished, self._rejected_later, self._given_twice, self._unhealthy),
            *(self._list_ended, self._one_name_twice, self._kubelet_restarted),
        )
        try:
            for step in steps:
                self._calls.clear()
                self._say(f"\n{(step.__doc__ or '').splitlines()[0]}")
                await step()
                await self._player.remove(*self._pods)
                self._pods.clear()
        finally:
            await self._resources.close()
            for plugin in self._plugins.values():
                await plugin.stop()
        return "\n".join(self._lines).lstrip() + "\n"

    async def _registrations_refused(self) -> None:
        """Registrations that are refused."""
        broken = self._plugin(A, "broken")
        broken.servicer.options_error = "no options today"
        with suppress(KubeletError):
            await broken.start()
        for version, name, socket in (
            ("v1", A, "x"),
            ("v1beta1", "nodomain", "x"),
            ("v1beta1", "requests.example.com/a", "x"),
            ("v1beta1", A, "nobody.sock"),
            ("v1beta1", A, "broken.sock"),
        ):
            self._say(f"{version} {name} {socket}: {await self._refusal(version, name, socket)}")
        await broken.stop()

    async def _unknown_resource(self) -> None:
        """A resource that no plugin has served yet: its pod starts without."""
        await self._run("early", a=1)
        self._pods.clear()  # it stays

    async def _registered(self) -> None:
        """Both are registered."""
        for resource, plugin in self._plugins.items():
            await plugin.start(UNITS[resource])
            await self._say_capacity(resource, UNITS[resource])
        self._say_calls()

    async def _started_without(self) -> None:
        """The pod that was early has no devices, and its container does not start again."""
        self._pods = ["early"]
        await self._start_again("early")
        await self._say_held()

    async def _both_resources(self) -> None:
        """A container with both, and its next start; a variable of its own stands over the plugins'."""
        container = replace(_asking(a=2, b=3), env={"FROM": "the pod"})
        await self._run("both", container)
        await self._say_held()
        await self._start_again("both")
        self._say(f"FROM={await self._player.environment('both', 'main')}")

    async def _many_containers(self) -> None:
        """Many containers with both: which comes first, and whose variable a container gets."""
        winners = set()
        containers = [_asking(f"c{i}", a=1, b=1) for i in range(UNITS[A])]
        for pod in ("many-0", "many-1", "many-2", "many-3"):
            assert not await self._player.run(_pod(pod, *containers))
            winners |= {await self._player.environment(pod, each.name) for each in containers}
            await self._player.remove(pod)
        asked = [line.split()[0] for line in self._calls if line.split()[1] == "Allocate"]
        orders = {tuple(asked[i : i + 2]) for i in range(0, len(asked), 2)}
        self._say(f"orders {sorted(orders)}, winners {sorted(winners)}")

    async def _taken_over(self) -> None:
        """A sidecar and a main container take over what an init container held."""
        await self._run(
            "taken",
            _asking("init", ContainerKind.INIT, a=2),
            _asking("side", ContainerKind.SIDECAR, a=1),
            _asking(a=3),
        )
        self._lines[self._lines.index("taken: runs") :] = [
            re.sub("a0[01]", "a0?", line)
            for line in self._lines[self._lines.index("taken: runs") :]
        ]

    async def _preferences(self) -> None:
        """What a preference does: exactly as many, more, fewer, none, an unknown one."""
        plugin = self._plugins[A]
        for number, answer in enumerate(
            (["a03", "a05"], ["a03", "a05", "a07", "a09"], ["a03"], [], ["a03", "x00"])
        ):
            plugin.preference, name = answer, f"preferring-{number}"
            assert not await self._player.run(_pod(name, _asking(a=2)))
            (held,) = [
                entry.ids for entry in self._kept() if entry.pod_uid == self._player.uid(name)
            ]
            self._say(f"{answer}: {len(held)} held, {len(held & {*answer})} of them preferred")
            await self._player.remove(name)
        plugin.preference = None

    async def _second_refused(self) -> None:
        """The second resource is refused: what was given for the first comes back at the next admission."""
        met: list[str] = []

        async def refuse_second() -> None:
            met.append("")
            if len(met) == 2:
                raise RequestError("never", reason="Never")

        for plugin in self._plugins.values():
            plugin.before_allocate = refuse_second
        await self._run("refused", a=2, b=3, tells_calls=False)
        for plugin in self._plugins.values():
            plugin.before_allocate = None
        await self._run("everything", a=16, b=20)

    async def _too_many(self) -> None:
        """More than there are."""
        await self._run("large", a=17)

    async def _finished(self) -> None:
        """Devices come back when a pod ends, not earlier."""
        await self._run("first", a=16)
        await self._run("second", a=16)
        await self._player.finish("first")
        await self._run("third", a=16)
        await self._say_held()

    async def _rejected_later(self) -> None:
        """A step after the allocation rejects the pod, and the plugin is not told."""
        self._pods.append("elsewhere")
        reason = await self._player.reject_later(_pod("elsewhere", _asking(a=2)))
        self._say(f"elsewhere: {reason}")
        self._say_calls()
        await self._say_held()

    async def _given_twice(self) -> None:
        """A List during an Allocate, after a pod has ended: Kubernetes #137534."""
        await self._run("old", b=1)
        end = await self._player.end_soon("old")
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def is_over() -> bool:
            return "old" not in {entry.pod.name for entry in await self._resources.list()}

        async def wait() -> None:
            reached.set()
            await go_on.wait()

        self._plugins[A].before_allocate = wait
        first = asyncio.create_task(self._run("during", a=1))
        await reached.wait()
        end()
        await waiting.until(is_over, PATIENT_SECONDS)
        go_on.set()
        await first
        self._plugins[A].before_allocate = None
        await self._run("later", a=UNITS[A] - 1)  # the other one counts as held on the node

    async def _unhealthy(self) -> None:
        """A unit that is unhealthy counts for capacity only."""
        self._plugins[A].offer(UNITS[A] - 1, unhealthy=1)
        await self._say_capacity(A, UNITS[A] - 1)
        await self._run("around", a=1)
        self._plugins[A].offer(UNITS[A])
        await self._say_capacity(A, UNITS[A])

    async def _list_ended(self) -> None:
        """A list that ends is not asked for again, and what it had is offered to nobody."""
        self._plugins[A].list.withdraw()
        await self._say_capacity(A, 0)
        await self._run("without", a=1)

    async def _one_name_twice(self) -> None:
        """A second plugin of one name goes with the first one: Kubernetes #121994."""
        older = self._plugins[B]
        self._plugins[B] = self._plugin(B, "newer")
        await self._plugins[B].start()
        await self._say_capacity(B, 1)
        older.list.withdraw()
        await self._say_capacity(B, 0)
        await self._run("unserved", b=1)
        await older.stop()

    async def _kubelet_restarted(self) -> None:
        """A kubelet that starts again wipes sockets, knows who holds what, and has no devices."""
        await self._serve_again(B)
        await self._run("holds", b=1)
        (self._player.plugin_dir / "file").touch()
        await self._player.restart()
        paths = self._player.plugin_dir.iterdir()
        self._say(f"sockets {sorted(path.name for path in paths if path.is_socket())}")
        self._say(f"the file is there: {(self._player.plugin_dir / 'file').exists()}")
        await self._say_capacity(B, 0)
        await self._run("hasty", b=1)
        await self._say_held()
        await self._serve_again(B)
        await self._start_again("holds")

    async def _run(
        self, name: str, *more: StandInContainer, tells_calls: bool = True, a: int = 0, b: int = 0
    ) -> None:
        """A pod of these containers, or of one that asks for so much."""
        self._pods.append(name)
        message = await self._player.run(_pod(name, *more or (_asking(a=a, b=b),)))
        self._say(f"{name}: {message or 'runs'}")
        if tells_calls:
            self._say_calls()

    async def _start_again(self, name: str) -> None:
        self._calls.clear()
        why = (await self._player.start_again(name)).replace(self._player.uid(name), "UID")
        self._say(f"{name} again: {why or 'runs'}")
        self._say_calls()

    async def _say_held(self) -> None:
        for entry in await self._resources.list():
            if entry.pod.name in self._pods:
                held = {
                    container: {name: _few(ids) for name, ids in sorted(each.items())}
                    for container, each in entry.held.items()
                }
                self._say(f"  listed {entry.pod.name} {held}")
        names = {self._player.uid(pod): pod for pod in self._pods}
        entries = [each for each in self._kept() if each.pod_uid in names]
        for each in sorted(entries, key=lambda each: (names[each.pod_uid], each.resource)):
            words = names[each.pod_uid], each.container, each.resource, _few(each.ids)
            self._say(f"  kept {' '.join(words)} {dict(each.edits.envs)}")

    def _kept(self) -> Sequence[Any]:
        return read_checkpoint(self._player.plugin_dir / FILE_NAME, (A, B)) or ()

    async def _say_capacity(self, resource: str, allocatable: int) -> None:
        capacity = await self._player.capacity(resource, allocatable)
        self._say(f"{resource}: {allocatable} of {capacity} allocatable")

    def _say_calls(self) -> None:
        self._lines += [f"  {line}" for line in sorted(self._calls, key=lambda line: line[:13])]
        self._calls.clear()

    def _say(self, line: str) -> None:
        self._lines.append(line)

    async def _serve_again(self, resource: str) -> None:
        await self._plugins[resource].stop()
        self._plugins[resource] = self._plugin(resource, resource[-1])
        await self._plugins[resource].start()
        await self._say_capacity(resource, 1)

    def _plugin(self, resource: str, name: str) -> Plugin:
        return Plugin(resource, self._calls, self._player.plugin_dir, f"{name}.sock")

    async def _refusal(self, version: str, name: str, socket: str) -> str:
        request = pb.RegisterRequest(version=version, endpoint=socket, resource_name=name)
        place = f"unix:{self._player.plugin_dir / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(place) as channel:
            call: Any = channel.unary_unary(_REGISTER, pb.RegisterRequest.SerializeToString)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request)
        return f"{refused.value.code().name} {refused.value.details()}"


def _pod(name: str, *containers: StandInContainer) -> StandInPod:
    return StandInPod("default", name, f"uid-{name}", containers)


def _asking(
    name: str = "main", kind: ContainerKind = ContainerKind.APP, *, a: int = 0, b: int = 0
) -> StandInContainer:
    limits = {resource: amount for resource, amount in ((A, a), (B, b)) if amount}
    return StandInContainer(name, limits, kind)


def _few(ids: Sequence[str] | frozenset[str]) -> str:
    """Ids in short: first, last and how many."""
    ordered = sorted(ids)
    return ",".join(ordered) if len(ordered) < 4 else f"{ordered[0]}…{ordered[-1]}({len(ordered)})"
