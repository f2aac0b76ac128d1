"""`gpu-device-plugin limit-keeper`: sets and proves the driver's memory limits; it alone has the rights to.

The agent asks over a socket that only root can open, for slices by their ids: never for a path or a
size. The size is that of the slice's limits file, and the cgroup that of the container that has the
slice's directory mounted. What is set, `gpu-limit-hook` sets, as before a container's start.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gpu_device_plugin.agent.node_checks.admin_socket import AdminSocket
from gpu_device_plugin.agent.node_checks.driver_limits_check import KEEPER_SOCKET, NONE, UNDER_WAY
from gpu_device_plugin.disk.mounts import place_of
from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.domain.grants.cdi_spec import HOOK
from gpu_device_plugin.domain.node.memory_enforcer import read_report
from gpu_device_plugin.errors import EdgeError

_MISMATCH = "nvmlInit_v2 answers 18 "
_HOOK_SECONDS = 60.0
_ANSWER_SECONDS = 2.0  # the agent waits for 5
_MOUNTS_BYTES = 1 << 20  # of a mount namespace; those of a container's start come first
_START_TIME = 19  # in /proc/PID/stat, after the name
_HOOKS = 8  # at once
_log = structlog.get_logger("limit_keeper")


@dataclass(eq=False)
class LimitKeeper:
    """Serves one node until cancelled. Its container sees the host's processes and cgroups."""

    run_dir: Path
    driver_root: str
    cgroup_root: str = ""
    proc: Path = Path("/proc")
    young_seconds: float = 10.0
    """A process of this age may be one whose hooks have yet to run."""

    async def run(self) -> None:
        """Probe, then answer. EdgeError: this container has another driver's library than the kernel."""
        self._ended = asyncio.get_running_loop().create_future()
        self._work: dict[str, asyncio.Task[str]] = {}  # by slice, and the probe
        self._turns = asyncio.Semaphore(_HOOKS)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        await self._probe()
        commands = {"probe": self._tell_probe, "limit": self._limit}
        serving = asyncio.ensure_future(AdminSocket(self.run_dir / KEEPER_SOCKET, commands).run())
        try:
            await asyncio.wait([serving, self._ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            for task in self._work.values():
                task.cancel()
        self._ended.result()

    async def _tell_probe(self, _: Mapping[str, Any]) -> str:
        before = self._work.get("probe")
        is_begun = before is not None and not before.done()
        await self._told({"probe"}, {} if is_begun else {"probe": self._probe})
        return "{}"

    async def _probe(self) -> str:
        report = self.run_dir / "driver-limits"
        await self._hook("--probe", str(report))
        text = report.read_text(errors="replace") if report.is_file() else ""
        _log.info("driver limits probed", **asdict(read_report(text, "")))
        if _MISMATCH in text and not self._ended.done():
            self._ended.set_exception(
                EdgeError(f"{text.strip()}: ending, for the new driver's library")
            )
        return text

    async def _limit(self, question: Mapping[str, Any]) -> str:
        """What was done, by slice; of names that are no slices of this node, nothing."""
        wanted = {str(name) for name in question.get("slices", ())}
        slices = {path.name: path for path in (self.run_dir / "slices").iterdir()}
        # What is done and not asked for any more is nobody's.
        self._work = {n: task for n, task in self._work.items() if n in wanted or not task.done()}
        new = {name: slices[name] for name in wanted & slices.keys() - self._work.keys()}
        users = asyncio.ensure_future(asyncio.to_thread(_users, new.values(), self.proc))
        work = {name: partial(self._set, path, users) for name, path in new.items()}
        return json.dumps(await self._told(wanted & slices.keys(), work))

    async def _told(
        self, wanted: Collection[str], work: Mapping[str, Callable[[], Coroutine[Any, Any, str]]]
    ) -> dict[str, str]:
        """Begins that work; what is done of all that is wanted, and what is under way."""
        self._work |= {name: asyncio.ensure_future(begin()) for name, begin in work.items()}
        tasks = {name: self._work[name] for name in wanted}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_ANSWER_SECONDS)
        done = {name for name, task in tasks.items() if task.done()}
        for name in done:  # another question may have taken it
            self._work.pop(name, None)
        return {n: task.result() if n in done else UNDER_WAY for n, task in tasks.items()}

    async def _set(self, directory: Path, users: Awaitable[Mapping[str, tuple[int, int]]]) -> str:
        """In the cgroup of the process that has the directory mounted now; its pid may be another's later."""
        started, pid = (await users).get(directory.name, (0, 0))
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if started and now - started / os.sysconf("SC_CLK_TCK") < self.young_seconds:
            return UNDER_WAY
        with _opened(self.proc / str(pid)) as process:
            held = f"/proc/self/fd/{process}"
            if process is None or not _has(Path(held), directory):
                return NONE
            slice_ = ("--slice", str(directory), "--repair", "--process", held)
            told = await self._hook(*slice_, process=process)
            _log.info("driver limit asked for", slice=directory.name, pid=pid, answer=told)
            return told

    async def _hook(self, *arguments: str, process: int | None = None) -> str:
        """Its words: on success those for the agent."""
        roots = ["--driver-root", self.driver_root]
        roots += ["--cgroup-root", self.cgroup_root] if self.cgroup_root else []
        async with self._turns:
            try:
                hook = await asyncio.create_subprocess_exec(
                    *(str(native_library(HOOK)), *arguments, *roots),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=() if process is None else (process,),
                )
            except OSError as error:
                return f"{HOOK} was not started: {error}"
            try:
                async with asyncio.timeout(_HOOK_SECONDS):
                    told, said = await hook.communicate()
            except TimeoutError:
                hook.kill()
                return f"{HOOK} took longer than {_HOOK_SECONDS:.0f} s"
        return (said if hook.returncode else told).decode(errors="replace").strip()


@contextmanager
def _opened(directory: Path) -> Iterator[int | None]:
    """A process: what is read below it is that process's, or an error once it has ended. None: it has."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has(process: Path, slice_: Path) -> bool:
    with suppress(OSError):
        return bool(_mounted(process, {place_of(slice_ / "config"): slice_.name}))
    return False


def _users(slices: Collection[Path], proc: Path) -> Mapping[str, tuple[int, int]]:
    """Slice -> start time in ticks and pid of the oldest process with its directory mounted: its container's first.

    By the path within the file system, which a container can make no other mount show.
    """
    wanted: dict[tuple[str, str], str] = {}
    for path in slices:
        with suppress(OSError):
            wanted[place_of(path / "config")] = path.name
    found: dict[str, tuple[int, int]] = {}
    known: dict[str, Collection[str]] = {}
    for process in proc.glob("[0-9]*") if wanted else ():
        with suppress(OSError, ValueError, IndexError):
            # The mounts outside a process's root are not in its list.
            space = f"{(process / 'ns/mnt').readlink()} {(process / 'root').readlink()}"
            if space not in known:
                known[space] = _mounted(process, wanted)
            if known[space]:
                started = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
                age = int(started[_START_TIME]), int(process.name)
                found |= {name: min(age, found.get(name, age)) for name in known[space]}
    return found


def _mounted(process: Path, wanted: Mapping[tuple[str, str], str]) -> Collection[str]:
    """Which slices its mount namespace has; one line: 36 35 98:0 /root /point ...

    A name in it may hold anything but the blank and the newline, which the kernel writes as digits.
    """
    with (process / "mountinfo").open("rb") as file:
        lines = file.read(_MOUNTS_BYTES).decode(errors="replace").split("\n")
    found = (line.split(" ", 4)[2:4] for line in lines)
    return {name for place in found for known, name in wanted.items() if [*known] == place}
