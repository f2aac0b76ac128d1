"""A stand-in for `nvidia-cuda-mps-control`: `python -m gpu_device_plugin.simulation.mps_control`.

With -f it serves the directory CUDA_MPS_PIPE_DIRECTORY in the foreground; without, it passes the
lines of stdin to the one that does. It has no server: the simulated libcuda takes a process for a
client by the pid file. What it was told stands in `commands` in CUDA_MPS_LOG_DIRECTORY.
"""

import os
import re
import socket
import sys
from pathlib import Path

_NO_DAEMON = "Cannot find MPS control daemon process"
_COMMANDS = re.compile(
    r"set_default_device_pinned_mem_limit \d+ \d+M|set_default_active_thread_percentage \d+"
    r"|get_default_active_thread_percentage|quit"
)


def main() -> int:
    """Returns the exit code."""
    directory = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    return _serve(directory) if "-f" in sys.argv[1:] else _ask(directory)


def _serve(directory: Path) -> int:
    pid, path = directory / "nvidia-cuda-mps-control.pid", directory / "control"
    told = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "commands"
    told.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "") + "\n")
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        pid.write_text(str(os.getpid()))
        while True:
            with server.accept()[0] as client, client.makefile("rw") as lines:
                command = lines.readline().strip()
                is_known = _COMMANDS.fullmatch(command) is not None
                if is_known and command.startswith("set_"):
                    with told.open("a") as file:
                        file.write(command + "\n")
                if command == "quit":
                    pid.unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
                lines.write("100.0\n" if is_known else f"Unknown command {command}\n")
                lines.flush()
                if command == "quit":
                    return 0


def _ask(directory: Path) -> int:
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(directory / "control"))
            except OSError:
                sys.stdout.write(_NO_DAEMON + "\n")
                return 1
            client.sendall(line.encode())
            said = client.makefile().read().strip()
            sys.stdout.write(said + "\n")
            if said.startswith("Unknown"):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
