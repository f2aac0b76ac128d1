"""Agents in processes that are forked where all modules are imported: that is most of a start.

`python -m tools.harness.forked SOCKET` forks one for each connection, until its stdin ends.
"""

import asyncio
import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

_REQUEST_BYTES = 1 << 20


class ForkedProcess:
    """As `asyncio.subprocess.Process`, as far as the rig needs it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._code: int | None = None

    def __del__(self) -> None:
        self._connection.close()

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            with contextlib.suppress(BlockingIOError):
                self._ended(self._connection.recv(16))
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """As os.kill."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """As SIGKILL does it."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self._code is None:
            self._ended(await asyncio.get_running_loop().sock_recv(self._connection, 16))
        assert self._code is not None
        return self._code

    def _ended(self, told: bytes) -> None:
        self._code = int(told)
        self._connection.close()


def start(
    module: str, words: Sequence[str], variables: Mapping[str, str], log: BinaryIO
) -> ForkedProcess:
    """Run `python -m MODULE WORDS…` with these variables of the environment, stderr into the log."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server()[0])
    request = {"module": module, "words": words, "env": dict(variables), "cwd": str(Path.cwd())}
    socket.send_fds(connection, [json.dumps(request).encode()], [log.fileno()])
    connection.shutdown(socket.SHUT_WR)
    pid = int(connection.recv(16))
    connection.setblocking(False)  # noqa: FBT003 - the standard library's
    return ForkedProcess(pid, connection)


@cache
def _server() -> tuple[str, "subprocess.Popen[bytes]"]:
    """Where the process listens that forks, and the process; it is started once, and ends with this one."""
    directory = tempfile.mkdtemp(prefix="forked", dir="/tmp")
    address = f"{directory}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    process.stdout.readline()
    # It ends with its stdin, and is waited for: Python reports one that still runs at its own end.
    atexit.register(process.__exit__, None, None, None)
    return address, process


def _serve(address: str) -> None:
    import gpu_device_plugin.agent.run_agent
    import gpu_device_plugin.cli.main  # noqa: F401 - what an agent needs

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        sys.stdout.write("listens\n")
        sys.stdout.flush()
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run(connection)
            connection.close()
    # No more than it has made: a person who starts it may name a socket in any directory.
    Path(address).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        Path(address).parent.rmdir()


def _run(connection: socket.socket) -> None:
    """Fork the agent, say which process it is, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 1)
    while more := connection.recv(_REQUEST_BYTES):
        text += more
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(text), files[0])
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, object], log: int) -> None:
    """The module as a main program; does not return."""
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, max(null, log) + 1)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    sys.argv = [str(request["module"]), *request["words"]]  # type: ignore[misc]
    runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
