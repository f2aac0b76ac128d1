"""A stand-in for `nvidia-cuda-mps-control`, which `simulate create` puts beside the driver's libraries.

With -f it serves the directory CUDA_MPS_PIPE_DIRECTORY in the foreground; without, it passes the
lines of stdin to the one that does. It has no server: the simulated libcuda takes a process for a
client by the pid file. What it was told stands in `commands` in CUDA_MPS_LOG_DIRECTORY.
"""

import os
import re
import socket
import sys
from pathlib import Path

MPS_CONTROL = "nvidia-cuda-mps-control"
_NO_DAEMON = "Cannot find MPS control daemon process"
_COMMANDS = re.compile(
    r"set_default_device_pinned_mem_limit \d+ \d+M|set_default_active_thread_percentage \d+"
    r"|get_default_active_thread_percentage|quit"
)


def write_program(path: Path) -> None:
    """Write it as a program for the Python that runs now, in one step: it may be in use there."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(
        f"#!{sys.executable}\nimport sys\n\nfrom {__name__} import main\n\nsys.exit(main())\n"
    )
    new.chmod(0o755)
    new.replace(path)


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
