"""One node of the demo: cards, a stand-in kubelet, and an agent as its own process between them."""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.disk.native_library import DIRECTORY_VARIABLE
from gpu_device_plugin.domain.fractions.pod_annotations import GROWTH
from gpu_device_plugin.domain.fractions.units import Resource, parse_unit_id
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.node.modes import MODE_LABEL, NodeMode
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.overview.slice_use import series
from gpu_device_plugin.settings.setting import ENVIRONMENT_PREFIX
from gpu_device_plugin.simulation.simulated_node import SimulatedNode
from tools.demo.demo_pods import CONTAINER, NAMESPACE, Role
from tools.harness.api_server import StandInApiServer
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import ContainerStart, PodAdmission
from tools.harness.ports import free_port

# Loaded before any fork: between fork and exec nothing may take a lock.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 20.0
_PAGE_SECONDS = 30.0
# The last is set in containers of CUDA images, and hides cards.
_FOREIGN = ("NODE_NAME", "KUBECONFIG", "GPU_SIMULATOR_STATE", "NVIDIA_VISIBLE_DEVICES")
_LOOPBACK = "127.0.0.1"


class AgentProcess:
    """`gpu-device-plugin agent` with the given flags; its log goes to a file."""

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        self._flags = flags
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.port = free_port()
        """Where its /metrics and /readyz listen."""

    async def start(self) -> None:
        """Start it; that it serves is to be seen elsewhere."""
        command = [sys.executable, "-m", "gpu_device_plugin", "agent", *self._flags]
        command += ["--metrics-address", f"{_LOOPBACK}:{self.port}"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(os.environ),
                preexec_fn=die_with_parent,
                # Ctrl-C is for the demo, which then ends its agents in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its pid; 0 before it was started."""
        return self._process.pid if self._process else 0

    def check_runs(self) -> None:
        """Raise EdgeError with the end of its log if it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise EdgeError(
                f"the agent has ended with exit code {self._process.returncode}:\n{self.log_tail()}"
            )

    async def stop(self) -> int | None:
        """SIGTERM, as the kubelet does, and SIGKILL if that is not enough; the exit code."""
        process = self._process
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END_SECONDS):
                return await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log."""
        with suppress(OSError):
            text = self._log.read_text(encoding="utf-8", errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    async def page(self, path: str) -> str:
        """The body of one of its pages, whatever the status."""
        try:
            async with asyncio.timeout(_PAGE_SECONDS):
                reader, writer = await asyncio.open_connection(_LOOPBACK, self.port)
                # HTTP/1.0: the answer ends where the connection does.
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {_LOOPBACK}\r\n\r\n".encode())
                answer = await reader.read()
                writer.close()
        except (OSError, TimeoutError) as error:
            raise EdgeError(f"{_LOOPBACK}:{self.port}{path}: no answer: {error}") from error
        return answer.partition(b"\r\n\r\n")[2].decode(errors="replace")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The demo's environment without anything that would set an agent otherwise."""
    return {
        key: value
        for key, value in environ.items()
        if key == DIRECTORY_VARIABLE
        or (key not in _FOREIGN and not key.startswith(ENVIRONMENT_PREFIX))
    }


def die_with_parent() -> None:
    """Runs in the child before exec: the kernel ends it if the demo is killed outright."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


RECOVERY_SECONDS = 1
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the nodes of one demo share; without `library_dir` isolation is off."""

    root: Path
    api: StandInApiServer
    kubeconfig: Path
    library_dir: Path | None
    has_selftest: bool


class DemoNode:
    """A node; `simulated` is None where the cards are this machine's own.

    `labels` are those that its Node object starts with, `settings` further flags of its agent.
    """

    def __init__(
        self,
        name: str,
        mode: NodeMode,
        around: Surroundings,
        simulated: SimulatedNode | None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.labels = {MODE_LABEL: str(mode)}
        self.mode = mode
        self._cards = simulated
        self.is_isolated = around.library_dir is not None
        self.has_selftest = around.has_selftest
        self._api, self._kubeconfig = around.api, around.kubeconfig
        self._dir = around.root / name
        self._dir.mkdir(exist_ok=True)
        self._kubelet_dir = self._dir / "k"
        self.kubelet = StandInKubelet(self._kubelet_dir)
        self.agent = AgentProcess(self._flags(around, settings or {}), self._dir / "agent.log")

    @property
    def cards(self) -> SimulatedNode:
        """Its simulated cards; EdgeError where they are real, which a demo leaves as they are."""
        if self._cards is None:
            raise EdgeError(f"{self.name} has no simulated cards")
        return self._cards

    async def start(self) -> None:
        """Make the Node object, start the kubelet, then the agent."""
        metadata = {"uid": f"uid-{self.name}", "labels": self.labels}
        self._api.store(self._path, {"metadata": metadata})
        await self.kubelet.start()
        await self.agent.start()

    async def stop(self) -> None:
        """End the agent, then the kubelet."""
        await self.agent.stop()
        await self.kubelet.stop()

    async def readiness(self) -> str:
        """The first line of the agent's /readyz, or why there is none."""
        self.agent.check_runs()
        try:
            return (await self.agent.page("/readyz")).partition("\n")[0]
        except EdgeError as error:
            return str(error)

    async def allocatable(self) -> tuple[int, ...]:
        """What the kubelet counts as allocatable of the three resources."""
        self.agent.check_runs()
        return tuple(self.kubelet.allocatable(resource) for resource in Resource)

    def relabel(self, key: str, value: str) -> None:
        """Change a label of the Node object."""
        self._api.patch(self._path, {"metadata": {"labels": {key: value}}})

    async def counts_by_name(self) -> dict[str, int]:
        """What the kubelet counts as allocatable, by resource; without those of which it has none."""
        self.agent.check_runs()
        counts = {name: self.kubelet.allocatable(name) for name in self.kubelet.registry.links}
        return {name: count for name, count in sorted(counts.items()) if count}

    async def admit(self, role: Role) -> PodAdmission:
        """Bind the pod to this node, and let the kubelet admit it."""
        self._api.store(role.path, role.for_api())
        admission = await self.kubelet.admit(role.for_kubelet())
        status: dict[str, object] = {"phase": "Running"}
        if not admission.is_admitted:
            status = {"phase": "Failed", "reason": admission.reason, "message": admission.message}
        self._api.patch(role.path, {"status": status})
        return admission

    async def start_container(self, role: Role) -> ContainerStart:
        """Start the pod's container."""
        return await self.kubelet.start_container(role.uid, CONTAINER)

    def holding(self, role: Role) -> dict[int, tuple[int, int]]:
        """What the pod holds by the kubelet's counts: card -> memory units and percent."""
        held: dict[int, tuple[int, int]] = {}
        for ids in self.kubelet.held(role.uid).values():
            for unit in filter(None, map(parse_unit_id, sorted(ids))):
                # In a new state directory cards are numbered as NVML's index has them.
                mem, core = held.get(unit.card, (0, 0))
                is_mem = unit.resource == Resource.MEM
                held[unit.card] = (mem + is_mem, core + (not is_mem))
        return held

    def published_cards(self) -> list[dict[str, object]]:
        """The cards as the agent publishes them on the Node object."""
        annotations = self._api.get(self._path)["metadata"].get("annotations", {})
        cards = json.loads(annotations.get(CARDS_ANNOTATION, "{}")).get("cards", [])
        return [dict(card) for card in cards]

    async def samples(self, metric: str, **labels: str) -> dict[str, float]:
        """Values of one of the agent's metrics by card, of the series that have these labels."""
        return {
            has.get("card", ""): value
            for name, has, value in series(await self.agent.page("/metrics"))
            if name == metric and labels.items() <= has.items()
        }

    def events(self, reason: str) -> list[str]:
        """Texts of the Events on the Node object with this reason."""
        events = self._api.events("Node", self.name)
        return [str(event["message"]) for event in events if event["reason"] == reason]

    def pod_events(self, role: Role) -> list[tuple[str, str]]:
        """Reason and text of the Events on a pod."""
        events = self._api.events("Pod", role.name)
        return [(str(event["reason"]), str(event["message"])) for event in events]

    async def command(self, *words: str) -> str:
        """What `gpu-device-plugin` prints to a person on this node."""
        program = ("-m", "gpu_device_plugin")
        return await self._output(program, *words, "--run-dir", str(self._run_dir))

    async def kubectl_gpu(self, *words: str) -> str:
        """What `kubectl gpu` prints to a user of the cluster."""
        program = ("-c", "from gpu_device_plugin.cli.overview import main; main()")
        return await self._output(program, *words, "--kubeconfig", str(self._kubeconfig))

    def allow_growth(self, text: str) -> None:
        """The operator's annotation of the pods' namespace."""
        path = f"/api/v1/namespaces/{NAMESPACE}"
        self._api.store(path, {"metadata": {"annotations": {GROWTH: text}}})

    async def _output(self, program: Sequence[str], *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                output, _ = await process.communicate()
        except (TimeoutError, asyncio.CancelledError):
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise EdgeError(f"{' '.join(words)}: {output.decode()}")
        return output.decode()

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    @property
    def _run_dir(self) -> Path:
        return self._dir / "run"

    def _flags(self, around: Surroundings, settings: Mapping[str, str]) -> list[str]:
        flags = {
            **settings,
            "--node-name": self.name,
            "--kubeconfig": around.kubeconfig,
            "--kubelet-dir": self._kubelet_dir,
            "--state-dir": self._dir / "state",
            "--run-dir": self._run_dir,
            "--recovery-seconds": RECOVERY_SECONDS,
            "--isolation": "on" if around.library_dir else "off",
        }
        if around.library_dir:
            flags["--library-dir"] = around.library_dir / self.name
        if self._cards is not None:
            flags["--nvml-library"] = self._cards.library
        return [str(word) for flag in flags.items() for word in flag]
