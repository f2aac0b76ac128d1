"""The agent keeps no right that only the container runtime asked for."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import subprocess
from gpu_device_plugin.disk.capabilities import give_up_sys_admin
give_up_sys_admin()
for command in (["grep", "CapEff", "/proc/self/status"], ["cat", "/proc/self/status"]):
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in text.splitlines() if line.startswith("CapEff"))
    print(int(line.split()[1], 16) >> 21 & 1)
own = next(line for line in open("/proc/self/status") if line.startswith("CapEff"))
print(int(own.split()[1], 16) >> 21 & 1, int(own.split()[1], 16) != 0)
"""


def test_neither_it_nor_its_children_have_sys_admin_any_more() -> None:
    """Also not by running a program as root; other capabilities stay."""
    if os.geteuid() != 0:
        pytest.skip("only root has capabilities to give up")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "0", "0", "True"]
