"""One `nvidia-cuda-mps-control` in the foreground, with its limits."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.domain.schemes.nvidia.mps import ASK, Server, pipe_directory
from gpu_device_plugin.errors import EdgeError, StorageError

_ANSWER_SECONDS = 20.0
_PAUSE_SECONDS = 0.2


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
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(pipe.parent / "log"),
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
        # One that outlived a killed daemon of ours serves this directory still.
        with suppress(EdgeError):
            await self._tell("quit")
        self._process = await self._spawn("-f", stdin=DEVNULL, stdout=DEVNULL)
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
        with suppress(EdgeError):
            await self._tell("quit")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
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
        asking = await self._spawn(stdin=PIPE, stdout=PIPE)
        output, _ = await asking.communicate(f"{command}\n".encode())
        if asking.returncode:
            said = output.decode(errors="replace").strip()
            raise EdgeError(f"{self._program}: {command}: {said or asking.returncode}")

    async def _spawn(self, *arguments: str, stdin: int, stdout: int) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                stdin=stdin,
                stdout=stdout,
                stderr=STDOUT,
                env=self._environment,
            )
        except OSError as error:
            raise EdgeError(f"{self._program}: cannot be started: {error.strerror}") from error
