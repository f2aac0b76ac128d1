"""An agent as its own process, as on a node; it never outlives the demo."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.config.setting import ENVIRONMENT_PREFIX
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.store.native import DIRECTORY_VARIABLE

# Loaded before any fork: between fork and exec nothing may take a lock.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 20.0
_PAGE_SECONDS = 30.0
_FOREIGN = ("NODE_NAME", "KUBECONFIG", "GPU_SIMULATOR_STATE")
_LOOPBACK = "127.0.0.1"


class AgentProcess:
    """`gpu-device-plugin agent` with the given flags; its log goes to a file."""

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        self._flags = flags
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.port = _free_port()
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
        """See that it has not ended by itself.

        Raises:
            EdgeError: It has; the text is the end of its log.
        """
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
        """The body of one of its pages, whatever the status.

        Raises:
            EdgeError: It does not answer.
        """
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
