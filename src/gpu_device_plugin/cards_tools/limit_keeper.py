"""`gpu-device-plugin limit-keeper`: sets and proves the driver's memory limits; it alone has the rights to.

The agent asks over a socket that only root can open, for slices by their ids: never for a path or a
size. The size is that of the slice's limits file, and the cgroup that of the processes which have the
slice's directory mounted. What is set, `gpu-limit-hook` sets, as before a container's start.
"""

import asyncio
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gpu_device_plugin.agent.node_checks.admin_socket import AdminSocket
from gpu_device_plugin.agent.node_checks.node_checks import KEEPER_SOCKET, NONE
from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.domain.grants.cdi_spec import HOOK
from gpu_device_plugin.errors import EdgeError

_MISMATCH = "nvmlInit_v2 answers 18 "
_HOOK_SECONDS = 60.0
_log = structlog.get_logger("limit_keeper")


@dataclass(eq=False)
class LimitKeeper:
    """Serves one node until cancelled. Its container sees the host's processes and cgroups."""

    run_dir: Path
    driver_root: str
    cgroup_root: str = ""
    proc: Path = Path("/proc")

    async def run(self) -> None:
        """Probe, then answer. EdgeError: this container has another driver's library than the kernel."""
        self._ended = asyncio.get_running_loop().create_future()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._probe({})
        commands = {"probe": self._probe, "limit": self._limit}
        serving = asyncio.ensure_future(AdminSocket(self.run_dir / KEEPER_SOCKET, commands).run())
        try:
            await asyncio.wait([serving, self._ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
        self._ended.result()

    def _probe(self, _: Mapping[str, Any]) -> str:
        report = self.run_dir / "driver-limits"
        self._hook("--probe", str(report))
        text = report.read_text(errors="replace") if report.is_file() else ""
        _log.info("probe", report=text)
        if _MISMATCH in text and not self._ended.done():
            self._ended.set_exception(
                EdgeError(f"{text.strip()}: ending, for the new driver's library")
            )
        return "{}"

    def _limit(self, question: Mapping[str, Any]) -> str:
        """What was done, by slice; of names that are no slices of this node, nothing."""
        wanted = {str(name) for name in question.get("slices", ())}
        slices = [path for path in (self.run_dir / "slices").iterdir() if path.name in wanted]
        pids = _users({path.name: path / "config" for path in slices}, self.proc)
        told = {path.name: self._set(path, pids.get(path.name)) for path in slices}
        return json.dumps(told)

    def _set(self, directory: Path, pid: int | None) -> str:
        if pid is None:
            return NONE
        told = self._hook("--slice", str(directory), "--repair", state=json.dumps({"pid": pid}))
        _log.info("limit", slice=directory.name, pid=pid, text=told)
        return told

    def _hook(self, *arguments: str, state: str = "") -> str:
        """Its words: on success those for the agent."""
        roots = ["--driver-root", self.driver_root]
        roots += ["--cgroup-root", self.cgroup_root] if self.cgroup_root else []
        command = [str(native_library(HOOK)), *arguments, *roots]
        try:
            done = subprocess.run(  # noqa: S603 - a program of our package, names of files that are there
                command,
                input=state,
                capture_output=True,
                text=True,
                timeout=_HOOK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{HOOK} took longer than {_HOOK_SECONDS:.0f} s"
        return (done.stderr if done.returncode else done.stdout).strip()


def _users(directories: Mapping[str, Path], proc: Path) -> dict[str, int]:
    """Slice -> a process that has its directory mounted, in the outermost cgroup of those that have.

    By device and path within the file system, which a container can make no other mount show.
    """
    wanted: dict[tuple[str, str], str] = {}
    for name, path in directories.items():
        number = path.stat().st_dev
        wanted[f"{os.major(number)}:{os.minor(number)}", f"/slices/{name}/config"] = name
    found: dict[str, dict[int, int]] = defaultdict(dict)
    known: dict[str, Collection[str]] = {}
    for process in proc.glob("[0-9]*"):
        with suppress(OSError, ValueError):
            space = str((process / "ns/mnt").readlink())
            if space not in known:
                known[space] = _mounted(process / "mountinfo", wanted)
            depth = len((process / "cgroup").read_text().rpartition("0::")[2])
            for name in known[space]:
                found[name][int(process.name)] = depth
    return {name: min(depths, key=lambda pid: (depths[pid], pid)) for name, depths in found.items()}


def _mounted(mounts: Path, wanted: Mapping[tuple[str, str], str]) -> Collection[str]:
    """Which slices a mount namespace has; one line: 36 35 98:0 /root /point ..."""
    entries = (line.split(maxsplit=5)[2:4] for line in mounts.read_text().splitlines())
    parts = ((device, f"/{'/'.join(root.split('/')[-3:])}") for device, root in entries)
    return {wanted[part] for part in parts if part in wanted}
