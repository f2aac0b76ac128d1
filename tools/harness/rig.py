"""One node for tests: the real agent process, simulated cards, stand-in kubelet, small API server."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from gpu_device_plugin.disk.grant_file import GrantStore
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import StateError
from gpu_device_plugin.simulation.simulated_node import SimulatedNode
from tools.harness import forked
from tools.harness.api_server import StandInApiServer, kubeconfig
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import PodAdmission, StandInContainer, StandInPod
from tools.harness.ports import free_port
from tools.harness.waiting import until

MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
FOUR_CARDS = {MEM: 60, CORE: 400, COUNT: 4}  # of 16160 MiB each: tests/agent/test_requests.py
NODE = "n1"
HASTY = "tools.harness.hasty"
READY_SECONDS = 20.0
END_SECONDS = 120.0
Limits = Mapping[str, int]


def stored_grants(store: GrantStore) -> list[Grant]:
    """What stands on disk; nothing while the first write is under way, after which one of two files is whole."""
    try:
        return list(store.read().grants.values())
    except StateError:
        return []


def put_library(directory: Path) -> None:
    """The two files of a version of the isolation library, which nobody loads."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "libgpuslice.so").write_bytes(b"")
    (directory / "ld.so.preload").write_text("")


def slice_of(mem: int = 0, core: int = 0, count: int = 0) -> dict[str, int]:
    """Limits of a container; what is 0 is not asked."""
    return {key: n for key, n in ((MEM, mem), (CORE, core), (COUNT, count)) if n}


class Rig:
    """Holds the parts of one simulated node; see `running_rig`."""

    def __init__(self, root: Path, module: str = "gpu_device_plugin") -> None:
        self.root = root
        self._module = module
        self.kubelet = StandInKubelet(root / "k", seed=1)
        self.cards: SimulatedNode
        self.api = StandInApiServer()
        self.state, self.run, self.library = root / "state", root / "run", root / "lib"
        self.process: asyncio.subprocess.Process | forked.ForkedProcess | None = None
        self.environment: dict[str, str] = {}
        self.enter: tuple[str, ...] = ()
        """A command that runs the agent somewhere, in namespaces of its own for instance."""
        self.log = root / "agent.log"
        self.port = 0
        self._serial = 0

    async def start_agent(self, **settings: object) -> None:
        """Start the agent with these settings beside the usual ones; does not wait."""
        defaults: dict[str, object] = {
            "node_name": NODE,
            "kubeconfig": self.root / "kubeconfig",
            "nvml_library": self.cards.library,
            "kubelet_dir": self.root / "k",
            "state_dir": self.state,
            "run_dir": self.run,
            "library_dir": self.library,
            "metrics_address": f"127.0.0.1:{self.port}",
        }
        chosen = {**defaults, **settings}
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in chosen.items()]
        flags = [flag.removesuffix("=True") for flag in flags]
        flags = [flag for flag in flags if not flag.endswith(("=None", "=False"))]
        environment = {**os.environ, **self.environment}
        with self.log.open("ab") as log:
            if not self.enter and self.environment.keys() <= {"GPU_DEVICE_PLUGIN_NATIVE"}:
                self.process = forked.start(self._module, ["agent", *flags], environment, log)
                return
            self.process = await asyncio.create_subprocess_exec(
                *self.enter,
                sys.executable,
                "-m",
                self._module,
                "agent",
                *flags,
                stderr=log,
                env=environment,
            )

    async def restart_agent(self, **settings: object) -> None:
        """End the agent, start it again, wait until it serves."""
        await self.stop_agent()
        await self.serve(**settings)

    async def serve(self, **settings: object) -> None:
        """Start the agent, and wait until it is ready."""
        await self.start_agent(**settings)
        await self.until_ready()

    async def until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until /readyz says yes, and the kubelet has taken in what was sent to it."""

        async def is_ready() -> bool:
            assert self.is_running, self.log.read_text()[-3000:]
            code, text = await self.page("readyz")
            links = self.kubelet.registry.links
            return code == 200 and all(
                resource in links and links[resource].has_list
                for resource in (MEM, CORE, COUNT)
                if f" {resource}" in text
            )

        await until(is_ready, seconds, lambda: self.log.read_text()[-3000:])

    async def until_page(self, words: str, seconds: float = READY_SECONDS) -> None:
        """Wait until /readyz says these words."""

        async def says() -> bool:
            return words in (await self.page("readyz"))[1]

        await until(says, seconds, lambda: f"/readyz does not say {words!r}")

    async def until_metric(self, start: str, end: str, seconds: float = 10) -> None:
        """Wait until one of our lines on the metrics page starts and ends so."""

        async def stands() -> bool:
            lines = (await self.page("metrics"))[1].splitlines()
            begin = f"gpu_device_plugin_{start}"
            return any(line.startswith(begin) and line.endswith(end) for line in lines)

        await until(stands, seconds, lambda: f"no metric {start} … {end}")

    async def until_offered(self, expected: Mapping[str, int], seconds: float = 10) -> None:
        """Wait until the kubelet shows exactly that as allocatable."""
        await until(lambda: self.allocatable() == expected, seconds, self.allocatable)

    @property
    def is_running(self) -> bool:
        """Whether the agent's process is there."""
        return self.process is not None and self.process.returncode is None

    async def page(self, name: str) -> tuple[int, str]:
        """A page of the agent's web server; code 0 while it does not listen."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}/{name}") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError as error:
            return 0, str(error)

    async def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the agent; its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            # Not by Popen, which would take the exit code of one that has just been killed.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        return await self.exit_code()

    async def exit_code(self) -> int:
        """That of an agent that ends now."""
        assert self.process is not None
        async with asyncio.timeout(END_SECONDS):
            return await self.process.wait()

    async def set_labels(self, **labels: str) -> None:
        """Replace the node's labels; keys are written with _ for . and / left out of ack ones."""
        names = {
            "schedule": "ack.node.gpu.schedule",
            "placement": "ack.node.gpu.placement",
            "compute_policy": "gpu-device-plugin/compute-policy",
            "memory_enforcer": "gpu-device-plugin/memory-enforcer",
            "max_pod": "ack.node.gpu.max-pod",
            "config": "nvidia.com/device-plugin.config",
            "mig_profile": "gpu-device-plugin/mig-profile",
            "settings": "gpu-device-plugin/settings",
            "allocation_api": "gpu-device-plugin/allocation-api",
        }
        node = {
            "metadata": {
                "name": NODE,
                "uid": "uid-n1",
                "labels": {names[k]: v for k, v in labels.items()},
            },
            "status": {"nodeInfo": {"bootID": "b"}},
        }
        await self.api.put(f"/api/v1/nodes/{NODE}", node)

    async def admit(self, name: str, *limits: Limits, **text: Any) -> PodAdmission:
        """Create a pod with one app container a limit, and let the kubelet admit it.

        Args:
            name: The pod's name.
            *limits: Limits of its app containers.
            **text: `init` (limits of init containers), `sidecars` (of those before them), `labels`,
                `annotations`, `env` (of every container), `spec` (further fields of the pod's spec).
        """
        pod = self.pod(name, *limits, **text)
        seen = _object(pod)
        seen["metadata"]["annotations"] = text.get("annotations", {})
        seen["spec"] |= text.get("spec", {})
        await self.api.put(f"/api/v1/namespaces/default/pods/{name}", seen)
        return await self.kubelet.admit(pod)

    def pod(self, name: str, *limits: Limits, **text: Any) -> StandInPod:
        """A pod that nobody has seen yet."""
        self._serial += 1
        env = text.get("env", {})
        containers = [
            StandInContainer(f"{called}-{i}", limit, kind, env)
            for called, kind, of_kind in (
                ("side", ContainerKind.SIDECAR, text.get("sidecars", ())),
                ("init", ContainerKind.INIT, text.get("init", ())),
                ("main", ContainerKind.APP, limits),
            )
            for i, limit in enumerate(of_kind)
        ]
        uid = f"uid-{name}-{self._serial}"
        return StandInPod("default", name, uid, tuple(containers), text.get("labels", {}))

    @staticmethod
    def object_of(pod: StandInPod) -> dict[str, Any]:
        """The pod as the API server has it."""
        return _object(pod)

    async def delete(self, uid: str) -> None:
        """The pod is gone, at the kubelet and at the API server."""
        pod = self.kubelet.pods[uid]
        self.kubelet.remove(uid)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        if path in self.api.objects:
            await self.api.delete(path)

    def uid(self, name: str) -> str:
        """Uid of the youngest pod of that name."""
        return [uid for uid, pod in self.kubelet.pods.items() if pod.name == name][-1]

    def grants(self) -> list[Grant]:
        """What stands on disk."""
        return stored_grants(GrantStore(self.state, ""))

    def grant(self, name: str, container: str = "main-0") -> Grant:
        """The grant of one container."""
        found = [g for g in self.grants() if g.pod.name == name and g.container == container]
        assert len(found) == 1, found
        return found[0]

    def card_of(self, name: str, container: str = "main-0") -> str:
        """UUID of the one card of a container."""
        (uuid,) = self.grant(name, container).devices
        return uuid

    def events(self, reason: str = "") -> list[dict[str, Any]]:
        """Events that were written, oldest first."""
        found = [value for path, value in self.api.objects.items() if "/events/" in path]
        return [event for event in found if reason in ("", event["reason"])]

    def annotations(self, path: str = f"/api/v1/nodes/{NODE}") -> dict[str, str]:
        """Those of an object at the API server, of the node if none is named."""
        return dict(self.api.objects[path]["metadata"].get("annotations") or {})

    def allocatable(self) -> dict[str, int]:
        """What the kubelet shows."""
        return {resource: self.kubelet.allocatable(resource) for resource in (MEM, CORE, COUNT)}

    def install_library(self, version: str = "0.0.1") -> None:
        """Put the two files of an isolation library there; nobody loads them here."""
        put_library(self.library / version)


def _object(pod: StandInPod) -> dict[str, Any]:
    containers = [
        {
            "name": c.name,
            "resources": {"limits": {key: str(n) for key, n in c.limits.items()}},
            "env": [{"name": key, "value": value} for key, value in c.env.items()],
            **({"restartPolicy": "Always"} if c.kind is ContainerKind.SIDECAR else {}),
        }
        for c in pod.containers
    ]
    inits = sum(c.kind is not ContainerKind.APP for c in pod.containers)
    return {
        "metadata": {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "labels": dict(pod.labels),
        },
        "spec": {
            "nodeName": NODE,
            "initContainers": containers[:inits],
            "containers": containers[inits:],
        },
        "status": {"phase": "Pending"},
    }


@asynccontextmanager
async def running_rig(
    profile: str = "v100",
    *,
    is_started: bool = True,
    has_library: bool = True,
    is_hasty: bool = False,
    **settings: object,
) -> AsyncIterator[Rig]:
    """A node with its agent, ended and removed afterwards.

    Args:
        profile: The simulated cards.
        is_started: Start the agent and wait until it is ready.
        has_library: An isolation library lies where the agent looks, besides the one that it
            brings where that is built; else there is none, and it brings none.
        is_hasty: The agent is that of `tools.harness.hasty`, with shorter waits.
        **settings: The agent's settings, by key.
    """
    # What a program of the node still does in there is no matter.
    with tempfile.TemporaryDirectory(
        prefix="rig", dir="/tmp", ignore_cleanup_errors=True
    ) as directory:
        rig = Rig(Path(directory), HASTY if is_hasty else "gpu_device_plugin")
        (rig.root / "gpu").mkdir()
        rig.cards = SimulatedNode.create(profile, rig.root / "gpu")
        if has_library:
            rig.install_library()
        else:
            rig.environment["GPU_DEVICE_PLUGIN_NATIVE"] = str(rig.root / "not-built")
        await rig.api.start()
        await rig.set_labels()
        kubeconfig(rig.root / "kubeconfig", f"http://127.0.0.1:{rig.api.port}", {"token": "t"})
        await rig.kubelet.start()
        rig.port = free_port()
        try:
            if is_started:
                await rig.serve(**settings)
            yield rig
        finally:
            if rig.process is not None:
                await rig.stop_agent(signal.SIGKILL)
            await rig.kubelet.stop()
            await rig.api.stop()


async def command(rig: Rig, *arguments: str) -> tuple[int, str]:
    """A command of the CLI on this node; exit code and all it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpu_device_plugin",
        *arguments,
        f"--run-dir={rig.run}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


__all__ = ["CORE", "COUNT", "MEM", "NODE", "Rig", "command", "running_rig", "slice_of", "until"]
