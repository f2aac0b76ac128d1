"""One simulated node, containers on it (directories with limits and a region), programs in them.

A program runs with our library preloaded and the simulated driver; `Program` is the told one,
`programs/client.c`, which answers each line with numbers.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_device_plugin.simulation.node_profiles import node_lines

MIB = 1024 * 1024
SLICE = 2154 * MIB  # 2 of 15 units of a V100 of 16160 MiB: tests/domain/test_slice_size.py
OUT_OF_MEMORY = 2
NOT_READY = 802
NO_PERMISSION = 4
PATIENCE_SECONDS = 300.0


def native_directory() -> Path:
    """Where the built libraries are: the checkout's, or what GPUSLICE_NATIVE names."""
    named = os.environ.get("GPUSLICE_NATIVE")
    return Path(named) if named else Path(__file__).parents[3] / "build" / "native"


def preload(library: Path) -> str:
    """LD_PRELOAD for a container; GPUSLICE_SANITIZER names a sanitizer's library to go before."""
    first = os.environ.get("GPUSLICE_SANITIZER")
    return f"{first}:{library}" if first else str(library)


@dataclass
class Node:
    """Simulated cards in one state file."""

    state: Path
    uuids: list[str]
    drivers: Path
    instances: list[str] = field(default_factory=list)

    @classmethod
    def create(cls, directory: Path, profile: str = "v100", driver: str | None = None) -> "Node":
        """Makes it with the libraries under test, which know the file's layout."""
        drivers = native_directory()
        controls = ctypes.CDLL(str(drivers / "libnvidia-ml.so.1"))
        controls.gpusim_error.restype = ctypes.c_char_p
        lines = node_lines(profile, seed="isolation", driver_version=driver)
        state = directory / "gpu-simulator.state"
        text = "\n".join(lines).encode()
        if controls.gpusim_create(str(state).encode(), text) != 0:
            raise AssertionError(controls.gpusim_error().decode())
        cards = [line.split("=", 1) for line in lines if line.startswith("cards.")]
        uuids = [value for name, value in cards if name.count(".") == 2 and name.endswith(".uuid")]
        mig = [value for _, value in cards if value.startswith("MIG-")]
        return cls(state, uuids, drivers, mig)

    def change(self, *lines: str) -> None:
        """Changes fields of the simulated node, by the names of src/simulator/fields.def."""
        controls = ctypes.CDLL(str(self.drivers / "libnvidia-ml.so.1"))
        controls.gpusim_error.restype = ctypes.c_char_p
        if controls.gpusim_set(str(self.state).encode(), "\n".join(lines).encode()) != 0:
            raise AssertionError(controls.gpusim_error().decode())

    def numbers(self) -> dict[str, int]:
        """Its fields that are numbers, by name, as they are now."""
        controls = ctypes.CDLL(str(native_directory() / "libnvidia-ml.so.1"))
        text = ctypes.create_string_buffer(1 << 20)
        if controls.gpusim_describe(str(self.state).encode(), text, len(text)) != 0:
            raise AssertionError("gpusim_describe failed")
        lines = (line.split("=", 1) for line in text.value.decode().splitlines())
        return {name: int(value) for name, value in lines if value.lstrip("-").isdigit()}

    def held_peak(self, card: int = 0) -> int:
        """The most that processes held of a card at any moment, inside calls too."""
        return self.numbers().get(f"cards.{card}.held_peak_bytes", 0)


@dataclass
class Box:
    """A container: what the agent would mount, and what runs in it."""

    root: Path
    node: Node
    programs: Path
    library: str = "libgpuslice.so"
    variables: dict[str, str] = field(default_factory=dict)
    wrapper: list[str] = field(default_factory=list)
    running: list["Program"] = field(default_factory=list)

    def allow(
        self,
        memory_bytes: int | None,
        core_percent: int | None = None,
        card: int = 0,
        revision: int = 0,
    ) -> None:
        """Writes limits of one card, by rename as the agent does."""
        words = [f"device={self.node.uuids[card]}"]
        if memory_bytes is not None:
            words.append(f"memory_bytes={memory_bytes}")
        if core_percent is not None:
            words.append(f"core_percent={core_percent}")
        newer = f"revision={revision}\n" if revision else ""
        self.write(f"version=1\nslice={self.root.name}\n{newer}{' '.join(words)}\n")

    def write(self, limits: str | bytes) -> None:
        """Writes a limits file, of any content."""
        (self.root / "config").mkdir(parents=True, exist_ok=True)
        text = limits.encode() if isinstance(limits, str) else limits
        fresh = self.root / "config" / ".limits.new"
        fresh.write_bytes(text)
        fresh.rename(self.root / "config" / "limits")

    @property
    def environment(self) -> dict[str, str]:
        """As the container runtime would start a process."""
        return {
            "PATH": "/usr/bin:/bin",
            "LD_PRELOAD": preload(self.node.drivers / self.library),
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": "halt_on_error=1",
            "UBSAN_OPTIONS": "halt_on_error=1",
            "LD_LIBRARY_PATH": str(self.node.drivers),
            "GPU_SIMULATOR_STATE": str(self.node.state),
            "GPUSLICE_ROOT": str(self.root),
            # What executable graphs take by themselves is in the way of exact figures.
            "GPU_SIMULATOR_GRAPH_MIB": "0",
            "GPU_SIMULATOR_GRAPH_LAUNCH_MIB": "0",
            **self.variables,
        }

    def start(self, *, ready: bool = True, **variables: str) -> "Program":
        """A told program; `ready`: with CUDA started and the primary context current."""
        program = Program(self, variables)
        self.running.append(program)
        if ready:
            assert program("init") == [0]
            assert program("retain") == [0]
        return program

    def enter_namespaces(self) -> None:
        """From now on each program starts in a pid namespace of its own, as in a pod."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("needs root and unshare for a pid namespace")
        self.wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]

    def tell(self, lines: str) -> subprocess.CompletedProcess[str]:
        """Runs the told program over these lines to its end."""
        return subprocess.run(
            [*self.wrapper, self.programs / "client"],
            env=self.environment,
            input=lines,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def run(self, name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of programs/ to its end."""
        return subprocess.run(
            [*self.wrapper, self.programs / name, *words],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def close(self) -> None:
        """Ends what still runs."""
        for program in self.running:
            program.kill()


class Program:
    """A process that does what it is told."""

    def __init__(self, box: Box, variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*box.wrapper, box.programs / "client"],
            env=box.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )

    def tell(self, line: str) -> None:
        """Sends a line and does not wait for its answer."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())

    def answer(self) -> list[int]:
        """The numbers of the next answer; empty when the program has ended."""
        return [int(word) for word in self.words()]

    def words(self) -> list[str]:
        """The words of the next answer."""
        assert self.process.stdout
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
            assert ready, "no answer"
            byte = self.process.stdout.read(1)
            if not byte:
                return []
            line += byte
        return line.decode().split()

    def __call__(self, line: str) -> list[int]:
        """Sends a line and waits for its answer."""
        self.tell(line)
        return self.answer()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; harmless on one that is."""
        self.process.send_signal(signal.SIGKILL)
        if self.process.stdout and not self.process.stdout.closed:
            self.end()

    def end(self) -> str:
        """Waits for its end; returns what it wrote to stderr."""
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.process.stdin.close()
        errors = self.process.stderr.read().decode()
        self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()
        return errors


def room(program: Program) -> int:
    """Free bytes as CUDA shows them."""
    result, free, _ = program("info")
    assert result == 0
    return free
