"""One `nvidia-cuda-mps-control` in the foreground, with its limits."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.domain.schemes.nvidia.mps import ASK, Server, pipe_directory
from gpu_device_plugin.errors import EdgeError, StorageError

_ANSWER_SECONDS = 20.0
_PAUSE_SECONDS = 0.2


async def quit_leftovers(root: Path, program: str) -> None:
    """End the control daemons that outlived a killed daemon of ours: their servers have contexts.

    Args:
        root: The directory of the MPS daemon.
        program: Path of `nvidia-cuda-mps-control`.
    """
    for pid in sorted(root.glob("*/*/pipe/nvidia-cuda-mps-control.pid")):
        with suppress(EdgeError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await _tell(program, _environment(pid.parent), "quit")


class ControlDaemon:
    """The control daemon of one resource.

    Args:
        server: What it is told.
        root: The directory of the MPS daemon.
        program: Path of `nvidia-cuda-mps-control`.
    """

    def __init__(self, server: Server, root: Path, program: str) -> None:
        self._server = server
        self._program = program
        pipe = Path(pipe_directory(str(root), server.resource))
        self._directories = (pipe, pipe.parent / "log")
        self._environment = {
            **_environment(pipe),
            "CUDA_VISIBLE_DEVICES": ",".join(server.memory_mib),
        }
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it, wait until it answers, and set the limits.

        Raises:
            EdgeError: It ended, or took too long, or refused a limit.
        """
        try:
            for directory in self._directories:
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self._directories[0]}: {error.strerror}") from error
        self._process = await _spawn(
            self._program, self._environment, "-f", stdin=DEVNULL, stdout=DEVNULL
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while not await self._answers():
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError as error:
            raise EdgeError(
                f"{self._program} of {self._server.resource} does not answer in "
                f"{_ANSWER_SECONDS:.0f} s; see {self._directories[1]}"
            ) from error
        for command in self._server.commands:
            await self._tell(command)

    async def ended(self) -> str:
        """Wait until it ends by itself; why that is bad."""
        assert self._process is not None  # noqa: S101 - start comes first
        code = await self._process.wait()
        return f"{self._program} of {self._server.resource} ended with {code}"

    async def stop(self) -> None:
        """End it, its server and so its clients."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                with suppress(EdgeError):
                    await self._tell("quit")
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _answers(self) -> bool:
        process = self._process
        if process is not None and process.returncode is not None:
            raise EdgeError(
                f"{self._program} of {self._server.resource} ended with {process.returncode}; see "
                f"{self._directories[1]}"
            )
        try:
            await self._tell(ASK)
        except EdgeError:
            return False
        return True

    async def _tell(self, command: str) -> None:
        await _tell(self._program, self._environment, command)


def _environment(pipe: Path) -> dict[str, str]:
    log = str(pipe.parent / "log")
    return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": log}


async def _tell(program: str, environment: Mapping[str, str], command: str) -> None:
    asking = await _spawn(program, environment, stdin=PIPE, stdout=PIPE)
    try:
        output, _ = await asking.communicate(f"{command}\n".encode())
    finally:
        if asking.returncode is None:
            asking.kill()
    if asking.returncode:
        said = output.decode(errors="replace").strip()
        raise EdgeError(f"{program}: {command}: {said or asking.returncode}")


async def _spawn(
    program: str, environment: Mapping[str, str], *arguments: str, stdin: int, stdout: int
) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            program, *arguments, stdin=stdin, stdout=stdout, stderr=STDOUT, env=environment
        )
    except OSError as error:
        raise EdgeError(f"{program}: cannot be started: {error.strerror}") from error
