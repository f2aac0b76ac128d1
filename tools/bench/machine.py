"""On what a figure was measured: without that it says nothing."""

import datetime
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_GRPC_THREADS = ("event_engine", "lifeguard", "grpc_")


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured on."""

    model: str
    cores: int
    kernel: str
    python: str

    def lines(self) -> tuple[str, ...]:
        """As list items."""
        return (
            f"- Machine, unless a chapter names another: {self.model}, {self.cores} cores, Linux {self.kernel}",
            f"- {self.python}; everything measured (agent, stand-in kubelet, API server, client) shares "
            "these cores",
        )


def this_machine() -> Machine:
    """What the kernel tells."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.partition(":")[2].strip() for line in cpu.splitlines() if "model name" in line]
    return Machine(
        model=models[0] if models else platform.machine(),
        cores=os.cpu_count() or 0,
        kernel=platform.release(),
        python=f"Python {platform.python_version()}",
    )


def moment() -> str:
    """Now, and how busy the machine has been."""
    now = datetime.datetime.now(tz=datetime.UTC)
    machine = this_machine()
    on = f"{machine.model}, {machine.cores} cores"
    return f"Measured {now:%Y-%m-%d %H:%M} UTC on {on}, load {os.getloadavg()[0]:.1f} before."


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, mounted, *_ = line.split(" ")
        inside = path == Path(mount) or Path(mount) in path.parents
        if inside and len(mount) >= len(best):
            best, kind = mount, mounted
    return kind


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    return _status_kib(pid, "VmRSS") / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time (utime + stime) of a process, in nanosecond steps instead of /proc's 10 ms.

    The kernel gives every process a clock of its CPU time; its id is made of the pid
    (CPUCLOCK_SCHED of linux/posix-timers.h).
    """
    return time.clock_gettime((~pid << 3) | 2)


def grpc_cpu_seconds(pid: int) -> float:
    """CPU time of the threads that gRPC's C core keeps, which wake by themselves."""
    return sum(
        int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text(encoding="ascii").startswith(_GRPC_THREADS)
    )


def children(pid: int) -> list[int]:
    """Processes that `pid`'s first thread started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(part) for part in text.split()]


def say(text: str) -> None:
    """A line for who waits."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _status_kib(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise LookupError(f"process {pid} has no {key}")
