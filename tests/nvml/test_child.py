"""The child ends with its parent, stays small, and copes with a library that lacks functions."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.nvml.conftest import Start
from tests.nvml.watch import PATIENT, is_alive
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.nvml_reports import Inventory, Probe
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

PARENT = """
import asyncio, pathlib, sys
from gpu_device_plugin.domain.cards.nvml_reports import Inventory
from gpu_device_plugin.nvml.nvml_source import NvmlSource
def told(report):
    if isinstance(report, Inventory):
        print(source.pid, flush=True)
source = NvmlSource(pathlib.Path(sys.argv[1]), told)
asyncio.run(source.run())
"""
# Process 1 of a pid namespace: kills the parent, then inherits the child and sees it end. A thread
# of the parent that waits for the child may reap it while the parent dies.
INIT = """
import contextlib, os, signal, subprocess, sys
parent = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE)
child = int(parent.stdout.readline())
parent.kill()
parent.wait()
signal.alarm(120)
with contextlib.suppress(ChildProcessError):
    os.waitpid(child, 0)
print("still there" if os.path.exists(f"/proc/{child}") else "gone")
"""
# A driver of the oldest kind: every function that is not here is missing.
OLD_DRIVER = """
#include <stdlib.h>
#include <string.h>
static int card;
int nvmlInitWithFlags(unsigned f) { (void)f; return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { (void)n; strcpy(v, "418.1"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = getenv("NVML_MPS_DEVICE_ENUMERATION") ? 2 : 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { (void)i; *d = &card; return 0; }
int nvmlDeviceGetUUID(void *d, char *u, unsigned n) { (void)d; (void)n; strcpy(u, "GPU-old"); return 0; }
"""


def child(*arguments: str) -> "subprocess.Popen[str]":
    """The child as a person starts it."""
    command = [sys.executable, "-m", "gpu_device_plugin.nvml.child", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("is_hanging", [False, True])
async def test_the_child_is_gone_two_seconds_after_its_parent_was_killed(
    node: SimulatedNode, *, is_hanging: bool
) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(node.library), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    if is_hanging:
        node.hang()
    assert is_alive(pid)
    parent.kill()
    await parent.wait()
    try:
        await until(lambda: not is_alive(pid), 2)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_in_a_pid_namespace_the_child_is_gone_with_its_parent(node: SimulatedNode) -> None:
    unshare = ("unshare", "--pid", "--fork", "--mount-proc")
    trial = await asyncio.create_subprocess_exec(*unshare, "true", stderr=subprocess.DEVNULL)
    if await trial.wait() != 0:
        pytest.skip("unshare --pid is not allowed here")
    inside = await asyncio.create_subprocess_exec(
        *(*unshare, sys.executable, "-c", INIT, PARENT, str(node.library)),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await inside.communicate()
    assert told.decode() == "gone\n"


def test_an_event_just_after_a_probe_brings_the_next_one_soon(node: SimulatedNode) -> None:
    """A wait without another event followed, and the next probe came at its usual time."""
    pace = ("--wait-seconds", "2", "--probe-seconds", "3600", "--reopen-seconds", "3600")
    with child("--library", str(node.library), *pace) as process:
        assert process.stdout
        kinds = (json.loads(line)["kind"] for line in process.stdout)
        assert "probes" in kinds
        node.xid(0, 13)
        after = [kind for kind, _ in zip(kinds, range(6), strict=False)]
        process.kill()

    assert "probes" in after, after


def test_a_child_whose_parent_died_before_it_could_look_ends_at_once(node: SimulatedNode) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with child("--parent", str(gone.pid), "--library", str(node.library)) as process:
        assert process.wait(timeout=120) == 0


def test_a_child_whose_stdin_ends_ends(node: SimulatedNode) -> None:
    with child("--parent", str(os.getpid()), "--library", str(node.library)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(timeout=120) == 0


def test_opening_the_simulated_driver_again_is_given_no_more_time_than_any_call(
    node: SimulatedNode,
) -> None:
    """It opens at once, and was allowed 30 s: so a hang in that moment was told after 30 s."""
    pace = ("--wait-seconds", "0.05", "--reopen-seconds", "0.1")
    with child("--library", str(node.library), *pace) as process:
        assert process.stdout is not None
        kinds: list[str] = []
        while kinds.count("inventory") < 3:
            kinds.append(json.loads(process.stdout.readline())["kind"])
            if kinds[-1] == "inventory":
                node.temperature(0, 40 + len(kinds))
        process.kill()
    assert kinds.count("starting") == 1


def test_a_simulated_node_that_nobody_changes_is_opened_once(node: SimulatedNode) -> None:
    """It was opened every 10 s, changed or not."""
    pace = ("--wait-seconds", "0.02", "--probe-seconds", "0.02", "--reopen-seconds", "0.02")
    with child("--library", str(node.library), *pace) as process:
        assert process.stdout is not None
        kinds: list[str] = []
        while kinds.count("probes") < 20:
            kinds.append(json.loads(process.stdout.readline())["kind"])
        process.kill()
    assert kinds.count("inventory") == 1


def test_the_child_stays_below_twenty_mib(node: SimulatedNode) -> None:
    with child("--library", str(node.library)) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["kind"] != "beat":
            pass
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        process.kill()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(resident.split()[1]) <= 20 * 1024


async def old_driver(tmp_path: Path) -> Path:
    """The library of `OLD_DRIVER`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source = tmp_path / "old.c"
    source.write_text(OLD_DRIVER, encoding="utf-8")
    library = tmp_path / "libnvidia-ml.so.1"
    build = await asyncio.create_subprocess_exec(
        *(compiler, "-shared", "-fPIC", str(source), "-o", str(library))
    )
    assert await build.wait() == 0
    return library


async def test_parts_of_cards_are_no_cards_whatever_the_environment_says(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NVML_MPS_DEVICE_ENUMERATION NVML 13.5 shows the parts that MPS knows as devices of their own."""
    monkeypatch.setenv("NVML_MPS_DEVICE_ENUMERATION", "1")
    watch = start(await old_driver(tmp_path), PATIENT)
    assert len((await watch.seen(Inventory)).cards) == 1


async def test_what_a_library_lacks_is_unknown_and_no_fault(tmp_path: Path, start: Start) -> None:
    watch = start(await old_driver(tmp_path), PATIENT)
    (card,) = (await watch.seen(Inventory)).cards
    assert (card.uuid, card.memory_mib, card.is_mig) == ("GPU-old", 0, False)
    assert await watch.seen(Probe) == Probe("GPU-old")
