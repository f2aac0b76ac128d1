"""The node that is measured: the real agent process on simulated cards, its state on a disk."""

import asyncio
import base64
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.bench.machine import file_system
from tools.harness.kubelet_registry import PluginLink
from tools.harness.rig import CORE, MEM, Rig, running_rig, slice_of

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

DISK = Path("build/bench")
MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - where a node's /run would be
AS_IN_IMAGE = {
    "MALLOC_ARENA_MAX": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str((DISK / "bytecode").absolute()),
    "SSL_CERT_FILE": os.devnull,
}
"""The image's settings, its compiled bytecode, and no certificates of public authorities, which it has not."""
POD = slice_of(8, 5)
HELD_PODS = 109


@dataclass(slots=True)
class Times:
    """Nanoseconds, one entry a call; the lists of pairs run in step, `listed` has a tenth of them."""

    preferred: list[int] = field(default_factory=list)
    allocate: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)


class CallerProcess:
    """`tools.bench.caller`, and what it has measured."""

    def __init__(self, process: asyncio.subprocess.Process, **beside: Path) -> None:
        self._process = process
        self._beside = {name: str(socket) for name, socket in beside.items()}
        self.times = Times()

    async def ask(self, **question: Any) -> Mapping[str, Any]:
        """One call, made there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({**question, **self._beside})
        self._process.stdin.write(line.encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        if "error" in answer:
            raise KubeletError(f"rpc error: {answer['error']}")
        return answer


class TimedLink(PluginLink):
    """The stand-in kubelet's link to a plugin, its calls made and timed by another process."""

    def __init__(self, link: PluginLink, caller: CallerProcess) -> None:
        super().__init__(link.resource, link.socket, link.journal)
        self.options = link.options
        self._caller = caller

    async def ask_preferred(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> frozenset[str]:
        """As `PluginLink`."""
        answer = await self._caller.ask(
            socket=str(self.socket),
            method="GetPreferredAllocation",
            available=available,
            must_include=must_include,
            size=size,
        )
        self._caller.times.preferred.append(answer["ns"])
        self._caller.times.listed.extend(answer["list_ns"])
        return frozenset(answer["ids"])

    async def allocate(self, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """As `PluginLink`."""
        answer = await self._caller.ask(socket=str(self.socket), method="Allocate", ids=ids)
        self._caller.times.allocate.append(answer["ns"])
        self._caller.times.empty.append(answer["empty_ns"])
        return pb.ContainerAllocateResponse.FromString(base64.b64decode(answer["answer"]))


@dataclass(frozen=True, slots=True)
class BenchNode:
    """A node with its agent running.

    Attributes:
        rig: The parts.
        state_file_system: What the grants lie on.
        run_file_system: What the slices' files lie on.
    """

    rig: Rig
    state_file_system: str
    run_file_system: str

    @property
    def agent_pid(self) -> int:
        """The agent's pid."""
        assert self.rig.process is not None
        return self.rig.process.pid

    async def fill(self, pods: int = HELD_PODS) -> None:
        """Admit pods that stay."""
        for number in range(pods):
            admission = await self.rig.admit(f"held-{number}", POD)
            assert admission.is_admitted, admission.message

    async def restart(self) -> None:
        """End the agent and start it again; returns once it was started, not once it serves."""
        await self.rig.stop_agent()
        await self.rig.start_agent()


@asynccontextmanager
async def bench_node(profile: str = "h200") -> AsyncIterator[BenchNode]:
    """A node in mode core_mem whose state directory lies on a disk, its run directory in memory."""
    DISK.mkdir(parents=True, exist_ok=True)
    in_memory = MEMORY_DISK if file_system(MEMORY_DISK) == "tmpfs" else None
    with (
        tempfile.TemporaryDirectory(dir=DISK.absolute()) as disk,
        tempfile.TemporaryDirectory(dir=in_memory) as memory,
    ):
        async with running_rig(profile, is_started=False) as rig:
            rig.state, rig.run = Path(disk), Path(memory)
            rig.environment |= AS_IN_IMAGE
            await rig.set_labels(schedule="core_mem")
            await rig.serve()
            yield BenchNode(rig, file_system(rig.state), file_system(rig.run))


@asynccontextmanager
async def timed_calls(rig: Rig) -> AsyncIterator[Times]:
    """While this is open, the stand-in kubelet's admissions are timed by another process."""
    socket = rig.root / "empty.sock"
    server = await _python("tools.bench.empty_server", str(socket))
    process = await _python("tools.bench.caller")
    caller = CallerProcess(process, empty=socket, pods=rig.kubelet.pod_resources_socket)
    before = dict(rig.kubelet.registry.links)
    for resource in (MEM, CORE):
        rig.kubelet.registry.links[resource] = TimedLink(before[resource], caller)
    try:
        yield caller.times
    finally:
        rig.kubelet.registry.links.update(before)
        for child in (process, server):
            child.kill()
            await child.wait()


async def _python(module: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=pipe, stdout=pipe, limit=1 << 24
    )
