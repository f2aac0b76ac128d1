"""A container's process without a container runtime: the slice's real files, and one program.

What the mounts would bring to /run/gpu-device-plugin is shown in a directory, which GPUSLICE_ROOT
names; ld.so.preload and the driver's place come by the environment.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.apps.demo.agent_process import die_with_parent
from gpu_device_plugin.domain.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    REGION_FILE,
)
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.simulation.kubelet_pods import ContainerStart

AGENT_ROOT = Path(CONFIG_DIR).parent
_PROGRAM = Path(__file__).with_name("gpu_program.py")
_ANSWER_SECONDS = 60.0

CONTEXT_MIB = 239
"""What a context takes; odd, so that with pieces of 2 MiB, as cards give them, 337 MiB are held."""


def environment(started: ContainerStart, driver_dir: Path, root: Path) -> dict[str, str]:
    """What its processes are started with, once `root` shows what is mounted there.

    Args:
        started: What the kubelet was told to start the container with.
        driver_dir: Where the node's driver libraries lie.
        root: A directory for the container alone.
    """
    for inside in (CONFIG_DIR, REGION_FILE, *_cards(started)):
        shown = root / Path(inside).relative_to(AGENT_ROOT)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.symlink_to(started.mounts[inside][0])
    return {
        **started.env,
        **node_environment(driver_dir),
        "LD_PRELOAD": started.mounts[LIBRARY_FILE][0],
        "GPUSLICE_ROOT": str(root),
    }


def node_environment(driver_dir: Path) -> dict[str, str]:
    """A process on the node itself: every card, and no slice."""
    return {
        "PATH": os.defpath,
        "LD_LIBRARY_PATH": str(driver_dir),
        "GPU_SIMULATOR_CONTEXT_MIB": str(CONTEXT_MIB),
    }


def _cards(started: ContainerStart) -> list[str]:
    """Its cards' directories; the own file lies in each of them anyway."""
    return [path for path in started.mounts if str(Path(path).parent) == CARDS_DIR]


class GpuProcess:
    """The GPU program, running; each call of `ask` is one line to it."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_PROGRAM)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )

    async def ask(self, *words: object) -> dict[str, int]:
        """Its answer to a line.

        Raises:
            EdgeError: It has ended, or does not answer.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EdgeError(f"{self.name}: its process was not started")
        line = " ".join(map(str, words))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                process.stdin.write(f"{line}\n".encode())
                answer = await process.stdout.readline()
        except (OSError, TimeoutError) as error:
            raise EdgeError(f"{self.name}: no answer to `{line}`: {error}") from error
        if not answer:
            raise EdgeError(f"{self.name}: its process ended at `{line}`:\n{await self._errors()}")
        return dict(json.loads(answer))

    async def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        # To the end of its pipes, which would be left open otherwise.
        await self._process.communicate()

    async def _errors(self) -> str:
        process = self._process
        text = await process.stderr.read() if process and process.stderr else b""
        return text.decode(errors="replace").strip()
