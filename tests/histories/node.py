"""One node: kubelet, API server, driver, and the shipped agent that the kubelet starts again when it ends."""

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.histories.api import Api, Session
from tests.histories.driver import Driver, SimulatedCard
from tests.histories.driver_limits import DriverLimits
from tests.histories.explored import Explored
from tests.histories.loop import Process, in_process
from tests.histories.machine import Machine
from tests.histories.nvml_child import spawner
from tests.histories.pods import NODE, Pods
from tests.histories.refusals import Refusals, is_api_wrong
from tests.histories.shapes import (
    CORE,
    FIT_WITH_COMPUTE,
    FIT_WITHOUT_COMPUTE,
    GPU,
    INSTANCE,
    MEM,
    OF_MIG,
    OF_NVIDIA,
)
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_registry import CHECKPOINT_NAME
from tools.harness.rig import put_library

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.run_agent import run_agent
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import GpuPluginError
from gpu_device_plugin.settings.agent_settings import Settings
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration

NODE_PATH = f"/api/v1/nodes/{NODE}"
MODE_LABEL = "ack.node.gpu.schedule"
_SETTLE_SECONDS = 10.0


@dataclass(slots=True)
class Past:
    """What has happened to a node, as far as its judges need it.

    Attributes:
        read_grants: What was read last from the disk, and of which files.
        read_numbers: The same of the cards' numbers.
        offered: What the kubelet may give by device, and by which lists.
        page: The agent's metrics, as read last.
        units: Every memory unit that the settings have named.
        modes: Every mode that the node's label has named.
        configurations: Every good one that NVIDIA's file has had, the latest last.
        shapes: Of each pod, by uid.
        damaged_at: When the state directory was damaged last, in loop time; None: it was not.
        was_damaged: Whether the grants ever were.
        bad_since: Since when a card is not sound, or NVML does not answer, by UUID.
        answers_since: Since when the driver answers; inf while it does not.
        delays: How much later that may be noticed, because something else is slow, by UUID.
        failed_at: When NVML was last seen to fail for a card, by UUID.
        sockets_wiped_at: When somebody last removed the plugin's sockets.
        neighbours: Instances that stay offered until the next step, though one of their card had an XID.
    """

    read_grants: tuple[object, tuple[Grant, ...]] = (None, ())
    read_numbers: tuple[object, dict[str, int]] = field(default_factory=lambda: (None, {}))
    offered: tuple[tuple[frozenset[str], ...], dict[str, list[str]]] = field(
        default_factory=lambda: ((), {})
    )
    page: str = ""
    units: set[MemoryUnit] = field(default_factory=lambda: {MemoryUnit.GIB})
    modes: set[str] = field(default_factory=lambda: {"core_mem"})
    configurations: list[str] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)
    damaged_at: float | None = None
    was_damaged: bool = False
    bad_since: dict[str, float] = field(default_factory=dict)
    answers_since: float = 0.0
    delays: dict[str, float] = field(default_factory=dict)
    failed_at: dict[str, float] = field(default_factory=dict)
    sockets_wiped_at: float = -1.0
    neighbours: set[str] = field(default_factory=set)


class Node:
    """Everything of one history.

    Attributes:
        settings: What the agent's next start is given beside the usual.
        agent: The agent that runs now; None between two of them.
        kubelet_since: When the kubelet began.
        agent_ended_at: When an agent last ended, or was asked to.
        agent_back_at: Before that no agent is started.
        crashes: How agents ended that nobody had ended.
        past: What its judges need of what was.
        explored: What this history has explored.
        refusals: Their judge.
        schemes: As an agent has them that begins, to read its grants.
    """

    def __init__(self, machine: Machine, cards: int = 2) -> None:
        self.machine = machine
        self.api = Api(machine.chance)
        uuids = [f"GPU-{i:08x}-0000-0000-0000-000000000000" for i in range(cards)]
        self.driver = Driver([SimulatedCard(uuid) for uuid in uuids])
        self.kubelet = StandInKubelet(
            machine.root / "k", seed=machine.chance.getrandbits(32), clock=machine.loop.time
        )
        self.kubelet.has_pods_api = machine.chance.random() < 0.5  # 1.37 and later
        self.pods = Pods(machine, self.api, self.kubelet)
        self.limits = DriverLimits(machine, self.driver, self.pods)
        self.settings: dict[str, Any] = {}
        self.agent: Process | None = None
        self.kubelet_since = self.machine.loop.now
        self.agent_since = self.agent_ended_at = self.agent_back_at = 0.0
        self.crashes: list[str] = []
        self.disturbed_until = 0.0
        self.past, self.explored, self.refusals = Past(), Explored(), Refusals(self)
        configuration = nvidia_configuration(self.paths())
        self.schemes = Schemes(lambda: configuration)
        self._troubles: dict[str, tuple[Callable[[], None], asyncio.TimerHandle]] = {}
        self._agents: list[Process] = []
        self.pods.on_rejected, machine.on_log = self.refusals.note, self.refusals.heard
        self.pods.can_read = lambda: not is_api_wrong(self)
        self.pods.agent_name = lambda: self.agent.name if self.agent else ""

    @property
    def cgroups(self) -> Path:
        """What the agent sees of them: nothing where the library limits memory, as the chart installs it."""
        root = self.machine.root
        return self.pods.cgroups if self.pods.are_cgroups_seen else root / "none"

    def paths(self) -> Settings:
        """What the agent is started with."""
        root = self.machine.root
        return Settings(
            node_name=NODE,
            kubeconfig=str(root / "kubeconfig"),
            kubelet_dir=str(root / "k"),
            state_dir=str(root / "state"),
            run_dir=str(root / "run"),
            library_dir=str(root / "lib"),
            cdi_dir=str(root / "cdi"),
            metrics_address="127.0.0.1:0",
            **self.settings,
        )

    async def start(self) -> None:
        """Boot the node for the first time."""
        root = self.machine.root
        cluster = {"name": "c", "cluster": {"server": "http://api"}}
        context = {"name": "x", "context": {"cluster": "c"}}
        config = {"current-context": "x", "contexts": [context], "clusters": [cluster]}
        (root / "kubeconfig").write_text(json.dumps(config))
        put_library(root / "lib" / "0.0.1")
        (root / "lib" / "0.0.1" / "libgpuslice.so").write_bytes(
            b"bad revision"
        )  # as those that follow limits
        self.api.store(NODE_PATH, {"metadata": {"name": NODE, "uid": "node-uid", "labels": {}}})
        await self.kubelet.start()
        self.pods.readmit()
        asyncio.get_running_loop().create_task(self._supervise())

    async def _supervise(self) -> None:
        """As the kubelet does for a DaemonSet's pod."""
        while True:
            while not self.pods.is_kubelet_up or self.machine.loop.now < self.agent_back_at:
                await asyncio.sleep(0.2)
            await self._run_agent()
            await asyncio.sleep(self.machine.chance.uniform(0.5, 2.0))

    async def _run_agent(self) -> None:
        process = Process(f"agent {len(self._agents) + 1}")
        self._agents.append(process)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        process.on_death.append(lambda: _set(over))
        self.agent, self.agent_since = process, self.machine.loop.now
        self.disturb(0.0)
        self.machine.tell(f"{process.name} starts")
        settings = self.paths()
        edges = replace(real_edges(settings, self.schemes.resources), cgroups=self.cgroups)
        task = in_process(process, lambda: run_agent(settings, edges))
        task.add_done_callback(lambda _: _set(over))
        await over
        self.agent = None
        self.agent_ended_at = self.machine.loop.now
        self.machine.arm("")
        self.disturb(5.0)
        if process.is_alive:
            self._ended(task)
            process.kill()
        else:
            self.machine.tell(f"{process.name} is killed")
        self.machine.close_files()

    def _ended(self, task: "asyncio.Task[int]") -> None:
        error = task.exception()
        self.machine.tell(
            f"the agent ended: {error!r}" if error else f"the agent ended: {task.result()}"
        )
        if error is not None and not isinstance(error, GpuPluginError):
            self.crashes.append(repr(error))

    # -- what a person or the machine does to it

    def disturb(self, seconds: float) -> None:
        """For so long, and some seconds after, a pod may be refused that would fit."""
        until = self.machine.loop.now + seconds + _SETTLE_SECONDS
        self.disturbed_until = max(self.disturbed_until, until)

    def is_disturbed(self) -> bool:
        """Whether something is wrong now, or was a moment ago."""
        return self.agent is None or self.machine.loop.now < self.disturbed_until

    def trouble(
        self,
        name: str,
        seconds: float,
        begin: Callable[[], None],
        end: Callable[[], None],
        *,
        is_for_all: bool = True,
    ) -> None:
        """Something is wrong for so long, with more than one card; what is wrong already stays so for longer."""
        loop = self.machine.loop
        if name in self._troubles:
            self._troubles.pop(name)[1].cancel()
        else:
            self.explored[f"troubles: {_without_uuid(name)}"] += 1
            begin()
        self._troubles[name] = end, loop.call_later(seconds, self._over, name)
        if is_for_all:
            self.disturb(seconds)

    def _over(self, name: str) -> None:
        end, timer = self._troubles.pop(name)
        timer.cancel()
        self.machine.tell(f"{name} is over")
        end()
        self.disturb(0.0)

    def kill_agent(self, steps: int = 0) -> None:
        """SIGKILL, after so many steps of its code."""
        if self.agent is not None:
            if steps:
                self.agent.steps_left = steps
            else:
                self.agent.kill()

    def stop_agent(self) -> None:
        """SIGTERM."""
        agent = self.agent
        self.agent_ended_at = self.machine.loop.now
        if agent is not None and agent.is_alive and signal.SIGTERM in agent.signals:
            in_process(agent, lambda: _call(agent.signals[signal.SIGTERM]))

    async def restart_kubelet(
        self, away_seconds: float, late_seconds: float, *, forgets: bool, has_get: bool
    ) -> None:
        """The kubelet ends and comes back; its pods are added some time later, one by one."""
        self.disturb(away_seconds + late_seconds)
        if forgets:
            self.pods.forgetful_until = self.machine.loop.now + away_seconds + 30.0
        await self.kubelet.stop()
        await asyncio.sleep(away_seconds)
        self.kubelet.pod_resources.has_get = has_get
        if forgets:
            (self.kubelet.plugin_dir / CHECKPOINT_NAME).unlink(missing_ok=True)
            for life in self.pods.lives.values():
                life.is_forgotten = True
        self.kubelet_since = self.machine.loop.now
        self.kubelet.forget_pods()
        await self.kubelet.start()
        self.pods.readmit(late_seconds)

    def gives(self, shape: str) -> bool:
        """Whether a pod of that shape gets what it asks here, once a card has room for it.

        A node that has had one mode and unit all the time is sure. Otherwise what is offered now
        shows the mode; memory alone may also be core_mem, whose compute the kubelet has not listed.
        """
        if shape in {*OF_NVIDIA, *OF_MIG}:
            return bool(self.kubelet.allocatable(GPU if shape in OF_NVIDIA else INSTANCE))
        if self.past.modes == {"core_mem"} and len(self.past.units) == 1:
            return shape in FIT_WITH_COMPUTE
        mem, core = self.kubelet.allocatable(MEM), self.kubelet.allocatable(CORE)
        if mem and core:
            return shape in FIT_WITH_COMPUTE
        return bool(mem) and "core_mem" not in self.past.modes and shape in FIT_WITHOUT_COMPUTE

    def calm(self) -> None:
        """Whatever was wrong is over."""
        for name in tuple(self._troubles):
            self._over(name)
        self.agent_back_at = 0.0
        self.pods.end_forced()
        self.machine.arm("")

    async def reboot(self, seconds: float) -> None:
        """Power is lost and comes back: what only memory knew is gone."""
        machine = self.machine
        self.kill_agent()
        self.disturb(seconds + 60.0)
        await self.kubelet.stop()
        self.kubelet.containers_ended()
        machine.disk.lose_power()
        for in_memory in ("run", "cdi"):
            shutil.rmtree(machine.root / in_memory, ignore_errors=True)
        self.driver.reset()
        await asyncio.sleep(seconds)
        machine.boot += 1
        machine.booted_at = machine.loop.now
        self.limits.boot()
        self.kubelet_since = self.machine.loop.now
        self.kubelet.forget_pods()
        await self.kubelet.start()
        self.pods.readmit(machine.chance.choice((0.0, 5.0, 20.0)))

    @property
    def unit(self) -> MemoryUnit:
        """The memory unit in which the node offers now."""
        told = self.api.objects[NODE_PATH]["metadata"].get("annotations", {}).get(CARDS_ANNOTATION)
        return MemoryUnit.of_mib(json.loads(told)["unit_mib"]) if told else MemoryUnit.GIB

    def file(self, name: str) -> Path:
        """A file of the state directory."""
        return self.machine.root / "state" / name


def _without_uuid(name: str) -> str:
    return " ".join(word for word in name.split() if not word.startswith("GPU-"))


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _call(function: Callable[[], None]) -> None:
    function()


@contextlib.contextmanager
def booted(seed: int, cards: int = 2) -> Iterator[Node]:
    """A node on a machine of its own, removed afterwards."""
    machine = Machine(seed)
    node: Node
    apis: list[Api] = []
    with machine.running(lambda **_: Session(apis[0])):
        node = Node(machine, cards)
        apis.append(node.api)
        machine.loop.spawn = spawner(machine, node.driver)
        yield node
