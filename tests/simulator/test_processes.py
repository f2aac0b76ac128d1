"""Memory that one program takes shows in every other, and goes with it."""

import json
import shutil
import subprocess
import sys

import pytest
from tests.simulator.conftest import MakeNode
from tests.simulator.programs import PRELUDE, end, environment, hear, run, start, started, until

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_TAKE = """
def take(card, mib, instance=0xFFFFFFFF):
    control("gpusim_occupy", card, ctypes.c_uint32(instance), ctypes.c_uint64(mib * MIB))
"""
_READ = """
nvml.nvmlInit()
say([nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(i)).used // MIB
     for i in range(nvml.nvmlDeviceGetCount())])
"""


def test_two_programs_share_a_card(node: SimulatedNode) -> None:
    """A third sees the sum on that card, nothing on the other, and both in the list."""
    first = start(node, _TAKE + "take(1, 337); say(os.getpid()); time.sleep(600)")
    second = start(node, _TAKE + "take(1, 100); say(os.getpid()); time.sleep(600)")
    try:
        pids = {hear(first), hear(second)}

        assert run(node, _READ) == [0, 437]
        assert {process.pid for process in node.view().processes} == pids
    finally:
        end(first)
        end(second)

    assert run(node, _READ) == [0, 0]
    assert node.view().processes == ()


def test_a_card_has_no_more_than_its_memory(node: SimulatedNode) -> None:
    """The byte over is refused while others hold the rest."""
    with started(node, _TAKE + "take(0, 16000); say(0); time.sleep(600)") as first:
        hear(first)

        seen = run(
            node,
            """
            library = ctypes.CDLL("libnvidia-ml.so.1")
            def code(size):
                return library.gpusim_occupy(
                    os.environ["NODE"].encode(), 0, ctypes.c_uint32(0xFFFFFFFF),
                    ctypes.c_uint64(size))
            say([code(160 * MIB + 1) < 0, code(160 * MIB)])
            """,
        )

        assert seen == [True, 0]


def test_exec_gives_the_memory_back(node: SimulatedNode) -> None:
    """The pid and its start time stay the same, but the driver's file is closed."""
    with started(
        node, _TAKE + "take(0, 200); say(1); os.execvp('sleep', ['sleep', '600'])"
    ) as program:
        hear(program)

        assert until(lambda: node.view().processes == ())


def test_a_program_does_not_inherit_memory_through_exec(node: SimulatedNode) -> None:
    """The new image has the old one's pid, yet holds nothing."""
    seen = run(
        node,
        _TAKE + "take(0, 200); take(1, 1)\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {PRELUDE + _READ!r}])",
    )

    assert seen == [0, 0]


def test_a_forked_child_does_not_keep_its_parents_memory(node: SimulatedNode) -> None:
    """A child that outlives its parent holds nothing of the card."""
    with started(
        node,
        _TAKE
        + """
take(0, 200)
if os.fork():
    time.sleep(600)
say("child")
sys.stdin.readline()
""",
    ) as program:  # closes the child's input, which ends it
        assert hear(program) == "child"
        assert [process.used_bytes >> 20 for process in node.view().processes] == [200]
        program.kill()
        program.wait()

        assert node.view().processes == ()


def test_programs_in_another_pid_namespace_are_counted_alive(node: SimulatedNode) -> None:
    """A container's pid 1 is not this machine's pid 1: it lives as long as it lives there."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")
    with started(
        node,
        """
        import subprocess
        inner = "import ctypes, os, time; library = ctypes.CDLL('libnvidia-ml.so.1'); " \\
            "print(library.gpusim_occupy(os.environ['NODE'].encode(), 0, " \\
            "ctypes.c_uint32(0xFFFFFFFF), ctypes.c_uint64(64 << 20)), os.getpid(), flush=True); " \\
            "time.sleep(600)"
        child = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", inner],
            stdout=subprocess.PIPE, text=True)
        say((child.stdout.readline() or "-1 0").split())
        sys.stdin.readline()
        child.kill()
        child.wait()
        say("ended")
        sys.stdin.readline()
        """,
    ) as program:
        answer = hear(program)
        assert isinstance(answer, list)
        code, inner_pid = answer
        if code == "-1":
            pytest.skip("this user may not make a pid namespace")
        seen = node.view()

        assert [process.used_bytes >> 20 for process in seen.processes] == [64]
        assert inner_pid == "1"
        assert seen.processes[0].pid != 1  # the pid as this namespace sees it
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
        assert hear(program) == "ended"
        assert until(lambda: node.view().processes == ())


def test_a_mig_slice_has_its_own_memory_and_processes(make_node: MakeNode) -> None:
    """What one slice holds is nothing to the next; the card lists all with their instances."""
    node = make_node("a100-mig", cards=1)
    with started(node, _TAKE + "take(0, 500, 8); say(os.getpid()); time.sleep(600)") as program:
        pid = hear(program)

        seen = run(
            node,
            """
            nvml.nvmlInit()
            card = nvml.nvmlDeviceGetHandleByIndex(0)
            slices = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, i) for i in range(7)]
            processes = nvml.nvmlDeviceGetComputeRunningProcesses_v3
            say([
                [nvml.nvmlDeviceGetMemoryInfo(one).used // MIB for one in slices],
                [[p.pid, p.gpuInstanceId, p.computeInstanceId] for p in processes(card)],
                [len(processes(one)) for one in slices],
            ])
            """,
        )

        assert seen == [[0, 500, 0, 0, 0, 0, 0], [[pid, 8, 0]], [0, 1, 0, 0, 0, 0, 0]]


def told_in_a_namespace(node: SimulatedNode, program: str) -> object:
    """What a program says in a pid namespace of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")
    told = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", PRELUDE + program],
        env=environment(node),
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in told.stderr:
        pytest.skip("this user may not make a pid namespace")
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_a_namespace_lists_only_whom_it_can_see(node: SimulatedNode) -> None:
    """A process outside it has no pid in there; the memory that it holds is seen all the same."""
    ask = """
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
say([len(nvml.nvmlDeviceGetComputeRunningProcesses(card)), nvml.nvmlDeviceGetMemoryInfo(card).used >> 20])
"""
    with started(node, _TAKE + "take(0, 64); say(os.getpid()); time.sleep(600)") as program:
        hear(program)
        assert told_in_a_namespace(node, ask) == [0, 64]
        assert len(node.view().processes) == 1


@pytest.mark.parametrize(
    ("driver", "listed"),
    [
        ("535.104.05", []),
        ("535.113.01", [[1, 0]]),
        ("560.35.03", [[1, 0]]),
        ("565.57.01", [[1, 64]]),
        ("570.148.08", [[1, 64]]),
    ],
)
def test_in_a_pid_namespace_a_driver_tells_what_its_version_tells(
    make_node: MakeNode, driver: str, listed: list[list[int]]
) -> None:
    """Nobody; its processes with 0 bytes; its processes with their memory. On the host, all of it."""
    node = make_node("v100", cards=1, driver_version=driver)
    ask = (
        _TAKE
        + """
take(0, 64)
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
get = nvml.nvmlDeviceGetComputeRunningProcesses
say([[each.pid, (each.usedGpuMemory or 0) // MIB] for each in get(card)])
"""
    )
    outside = run(node, ask)
    assert isinstance(outside, list)
    assert [mib for _, mib in outside] == [64]
    assert told_in_a_namespace(node, ask) == listed


def test_calls_take_as_long_as_they_are_asked_to(node: SimulatedNode) -> None:
    """Where cards sleep or are many, a call takes milliseconds."""
    program = """
    nvml.nvmlInit()
    begun = time.monotonic()
    for _ in range(10):
        nvml.nvmlDeviceGetHandleByIndex(0)
    say(time.monotonic() - begun)
    """

    assert float(str(run(node, program, GPU_SIMULATOR_NVML_CALL_US="3000"))) >= 0.03
