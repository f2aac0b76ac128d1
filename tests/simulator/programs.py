"""Programs that use a simulated node, each in a process of its own as on a real one.

The tests never load NVML themselves: pynvml keeps one library a process.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

PRELUDE = """
import ctypes, json, os, sys, time
import pynvml as nvml
MIB = 1024 * 1024
def say(value):
    print(json.dumps(value), flush=True)
def error_of(function, *arguments):
    try:
        function(*arguments)
    except nvml.NVMLError as error:
        return error.value
    return 0
def control(name, *arguments):
    library = ctypes.CDLL("libnvidia-ml.so.1")
    result = library[name](os.environ["NODE"].encode(), *arguments)
    assert result == 0, (name, result)
"""


def environment(node: SimulatedNode) -> dict[str, str]:
    """What finds the node: its libraries first, nothing else."""
    kept = {name: value for name, value in os.environ.items() if name != "NVIDIA_VISIBLE_DEVICES"}
    return {
        **kept,
        "LD_LIBRARY_PATH": str(node.library.parent),
        "NODE": str(node.state),
        "PYTHONUNBUFFERED": "1",
    }


def start(node: SimulatedNode, program: str, **variables: str) -> subprocess.Popen[str]:
    """A program that runs beside the test; it tells JSON lines with `say`."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        env={**environment(node), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def started(node: SimulatedNode, program: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The same, until the end of the block."""
    process = start(node, program, **variables)
    try:
        yield process
    finally:
        end(process)


def hear(process: subprocess.Popen[str]) -> object:
    """The next thing the program says; fails when it ends without."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the program ended with {process.wait()} and said nothing"
    return json.loads(line)


def run(node: SimulatedNode, program: str, **variables: str) -> object:
    """What a program says in one line, after it has ended well."""
    process = start(node, program, **variables)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return json.loads(output)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a program the hard way."""
    process.kill()
    if process.stdin is not None:
        process.stdin.close()
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


def directory(path: Path) -> Path:
    """The directory, made if it is missing."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def until(holds: Callable[[], bool]) -> bool:
    """Whether the condition comes to hold within two minutes."""
    deadline = time.monotonic() + 120
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
