"""Monitors are seen by the device node that they have open, and our own programs are none."""

import json
import subprocess
import sys
from pathlib import Path

from tests.simulator.programs import hear, started

from gpu_device_plugin.nvml.driver_queries import openers
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

ASK = """
import json, pathlib, sys
from gpu_device_plugin.nvml.card_session import session
with session(sys.argv[1], proc=pathlib.Path(sys.argv[2])) as nvml:
    print(json.dumps([nvml.users(nvml.cards[0]), nvml.computing(nvml.cards[0])]))
"""
COMPUTE = """
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context = ctypes.c_void_p()
say(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
sys.stdin.read()
"""


def process(proc: Path, pid: int, command: str, *files: str) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    for number, file in enumerate(files):
        (proc / str(pid) / "fd" / str(number)).symlink_to(file)


def test_who_has_the_cards_node_open_is_a_user(tmp_path: Path) -> None:
    """Of this card only; a process that cannot be looked at is passed over."""
    process(tmp_path, 7, "dcgm -b", "/dev/nvidiactl", "/dev/nvidia1")
    process(tmp_path, 8, "x", "/dev/nvidia10", "/dev/nvidia0")
    process(tmp_path, 9, "python -m gpu_device_plugin.nvml.child", "/dev/nvidia1")
    (tmp_path / "10").mkdir()

    assert list(openers(1, tmp_path)) == [(7, "dcgm")]
    assert list(openers(2, tmp_path)) == []


def test_a_monitor_uses_a_card_and_computes_nothing_on_it(
    tmp_path: Path, node: SimulatedNode
) -> None:
    """A card in use by nvidia-persistenced is not cut, but its compute mode can be changed."""
    process(tmp_path, 7, "nvidia-persistenced --verbose", "/dev/nvidia0")
    with started(node, COMPUTE) as program:
        assert hear(program) == 0
        asking = [sys.executable, "-c", ASK, str(node.library), str(tmp_path)]
        said = subprocess.run(asking, check=True, capture_output=True, text=True).stdout
    worker = f"process {program.pid}"
    assert json.loads(said) == [[worker, "process 7 (nvidia-persistenced)"], [worker]]
