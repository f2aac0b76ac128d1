"""One node: kubelet, API server, driver, and the shipped agent that the kubelet starts again when it ends."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.histories.api import Api, Session
from tests.histories.driver import Driver, SimulatedCard, spawner
from tests.histories.loop import Process, in_process
from tests.histories.machine import Machine
from tests.histories.pods import NODE, Pods

from gpu_device_plugin.apps.agent.run import run_agent
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.errors import GpuPluginError
from gpu_device_plugin.simulation.kubelet import StandInKubelet

NODE_PATH = f"/api/v1/nodes/{NODE}"


class Node:
    """Everything of one history.

    Attributes:
        settings: What the agent's next start is given beside the usual.
        agent: The agent that runs now; None between two of them.
        crashes: How agents ended that nobody had ended.
        read_grants: What the model read last from the disk, and of which files.
        is_damaged: The state directory was damaged, and the agent has not yet had time to mend it.
    """

    def __init__(self, machine: Machine, cards: int = 2) -> None:
        self.machine = machine
        root = machine.root
        self.api = Api(machine.chance)
        self.driver = Driver(
            [SimulatedCard(f"GPU-{i:08x}-0000-0000-0000-000000000000") for i in range(cards)]
        )
        self.kubelet = StandInKubelet(
            root / "k", seed=machine.chance.getrandbits(32), clock=machine.loop.time
        )
        self.pods = Pods(machine, self.api, self.kubelet)
        self.settings: dict[str, Any] = {}
        self.agent: Process | None = None
        self.agent_since = 0.0
        self.crashes: list[str] = []
        self.is_damaged = False
        self.read_grants: tuple[object, tuple[Grant, ...]] = (None, ())
        self.disturbed_until = 0.0
        self.pods.is_disturbed = lambda: self.machine.loop.now < self.disturbed_until
        self._agents: list[Process] = []

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
        library = root / "lib" / "0.0.1"
        library.mkdir(parents=True)
        (library / "libgpuslice.so").write_bytes(b"")
        (library / "ld.so.preload").write_text("")
        self.api.put(NODE_PATH, {"metadata": {"name": NODE, "uid": "node-uid", "labels": {}}})
        await self.kubelet.start()
        self.pods.readmit()
        asyncio.get_running_loop().create_task(self._supervise())

    async def _supervise(self) -> None:
        """As the kubelet does for a DaemonSet's pod."""
        while True:
            await self._run_agent()
            await asyncio.sleep(self.machine.chance.uniform(0.5, 2.0))

    async def _run_agent(self) -> None:
        process = Process(f"agent {len(self._agents) + 1}")
        self._agents.append(process)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        process.on_death.append(lambda: _set(over))
        self.agent, self.agent_since = process, self.machine.loop.now
        self.machine.tell(f"{process.name} starts")
        settings = self.paths()
        task = in_process(process, lambda: run_agent(settings))
        task.add_done_callback(lambda _: _set(over))
        await over
        self.agent = None
        self.disturb(60.0)
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
        """For so long, and a while after, calls may break off."""
        self.disturbed_until = max(self.disturbed_until, self.machine.loop.now + seconds)

    def kill_agent(self, steps: int = 0) -> None:
        """SIGKILL, after so many steps of its code."""
        if self.agent is not None:
            if steps:
                self.agent.steps_left = steps
            else:
                self.agent.kill()

    def stop_agent(self) -> None:
        """SIGTERM."""
        if self.agent is not None and signal.SIGTERM in self.agent.signals:
            in_process(self.agent, lambda: _call(self.agent.signals[signal.SIGTERM]))  # type: ignore[union-attr]

    async def restart_kubelet(self, away_seconds: float, late_seconds: float) -> None:
        """The kubelet ends and comes back; its pods are listed some time later."""
        self.pods.forget_work()
        await self.kubelet.stop()
        await asyncio.sleep(away_seconds)
        self.kubelet.sources_ready = False
        await self.kubelet.start()
        self.pods.readmit()
        await asyncio.sleep(late_seconds)
        self.kubelet.sources_ready = True

    def calm(self) -> None:
        """Whatever was wrong is over."""

    def file(self, name: str) -> Path:
        """A file of the state directory."""
        return self.machine.root / "state" / name


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
