"""Processes on one card see each other's memory and share its time, and the dead leave nothing."""

import contextlib
import ctypes
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.simulator_cuda.nodes import (
    NATIVE,
    V100_MIB,
    Node,
    described,
    slice_uuid_of,
    sliced,
    uuid_of,
)

CONTEXT_MIB = 240  # 3 MiB for each of 80 multiprocessors


@contextlib.contextmanager
def tenant(node: Node, program: Path, *words: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs until the block is left."""
    process = subprocess.Popen(
        [str(program), *words],
        env=node.environment(**extra),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.fixture
def program(compiled: Callable[[str], Path]) -> Path:
    """The program whose arguments say what it does."""
    return compiled("tenant")


def _free_mib(node: Node, program: Path, **extra: str) -> int:
    return int(node.run(program, "free", **extra).stdout)


def test_memory_held_by_one_process_is_missing_for_another(node: Node, program: Path) -> None:
    """Both contexts count, and the memory of the first."""
    with tenant(node, program, "hold", "1000") as holder:
        assert _line(holder) == "held"

        assert _free_mib(node, program) == V100_MIB - 1000 - 2 * CONTEXT_MIB


def test_a_killed_process_holds_nothing(node: Node, program: Path) -> None:
    """Nobody had to be told: the next who looks sees it."""
    with tenant(node, program, "hold", "1000") as holder:
        assert _line(holder) == "held"
        holder.send_signal(signal.SIGKILL)
        holder.wait()

        assert _free_mib(node, program) == V100_MIB - CONTEXT_MIB


def test_a_context_costs_what_the_environment_says(node: Node, program: Path) -> None:
    """So that 337 MiB in all can be shown, as in the source's proof."""
    free = _free_mib(node, program, GPU_SIMULATOR_CONTEXT_MIB="337")

    assert free == V100_MIB - 337


NVML_READER = """
import ctypes, sys
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
class Use(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]
nvml = ctypes.CDLL(sys.argv[1])
handle, memory, use = ctypes.c_void_p(), Memory(), Use()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
assert nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)) == 0
print(memory.used >> 20, use.gpu)
"""


def _nvml(node: Node) -> tuple[int, int]:
    """Used MiB and percent of the first card, as libnvidia-ml tells another process."""
    told = subprocess.run(
        [sys.executable, "-c", NVML_READER, str(NATIVE / "libnvidia-ml.so.1")],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return int(told[0]), int(told[1])


NVML_LISTER = (
    NVML_READER.split("print(")[0]
    + """
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong)]
count, processes = ctypes.c_uint(8), (Process * 8)()
assert nvml.nvmlDeviceGetComputeRunningProcesses(handle, ctypes.byref(count), processes) == 0
print(*(f"{processes[i].pid}:{processes[i].bytes >> 20}" for i in range(count.value)))
"""
)


def _listed_mib(node: Node) -> dict[int, int]:
    """MiB by process, as libnvidia-ml tells another one."""
    told = subprocess.run(
        [sys.executable, "-c", NVML_LISTER, str(NATIVE / "libnvidia-ml.so.1")],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return {int(pid): int(mib) for pid, mib in (one.split(":") for one in told)}


def test_nvml_shows_what_cuda_took(node: Node, program: Path) -> None:
    """One state file: the two libraries cannot disagree."""
    with tenant(node, program, "hold", "97") as holder:
        assert _line(holder) == "held"

        assert _nvml(node)[0] == 98 + CONTEXT_MIB  # 97 MiB take 49 blocks of 2 MiB


def test_nvml_shows_a_busy_card_as_busy(node: Node, program: Path) -> None:
    """Utilisation is the part of the last sixth of a second with a kernel on the card."""
    with tenant(node, program, "flood", "2000000") as busy:
        assert _line(busy) == "busy"
        _go(busy)
        seen = 0
        for _ in range(50):
            seen = _nvml(node)[1]
            if seen == 100:
                break

        assert seen == 100


def _took_ms(
    node: Node, program: Path, *counts: str, each_sees: Sequence[Mapping[str, str]] = ()
) -> list[float]:
    """Milliseconds that tenants took for so many kernels of 1 ms, started together.

    Their time moves in steps (src/simulator/cuda/steps.h), so a loaded machine changes nothing.

    Args:
        node: Where they run.
        program: The tenant.
        counts: How many kernels each has.
        each_sees: More of each one's environment.
    """
    environments = each_sees or [{}] * len(counts)
    with contextlib.ExitStack() as stack:
        tenants = [
            stack.enter_context(
                tenant(node, program, "work", "1000000", count, str(len(counts)), **extra)
            )
            for count, extra in zip(counts, environments, strict=True)
        ]
        for each in tenants:
            assert _line(each) == "ready"
        for each in tenants:
            _go(each)
        return [float(_line(each)) for each in tenants]


def test_two_busy_tenants_get_half_the_card_each(node: Node, program: Path) -> None:
    """Equal work at the same time takes each of them twice as long as alone."""
    took = _took_ms(node, program, "400", "400")

    assert took == pytest.approx([800, 800], rel=0.01)


def test_who_is_alone_again_gets_the_whole_card(node: Node, program: Path) -> None:
    """100 ms of work beside 500 ms of it: 200 ms shared, then 400 ms alone."""
    took = _took_ms(node, program, "100", "500")

    assert took == pytest.approx([200, 600], rel=0.01)


def test_the_work_of_a_killed_process_stops(node: Node, program: Path) -> None:
    """A flood of second-long kernels is gone from the card soon after its process."""
    with tenant(node, program, "flood", "30000000000") as busy:
        assert _line(busy) == "busy"
        busy.send_signal(signal.SIGKILL)
        busy.wait()
        took = _took_ms(node, program, "100")

    assert took[0] <= 200


def test_a_hundredfold_clock_runs_a_minute_in_a_second(node: Node, program: Path) -> None:
    """60 s of kernels are 60 s of virtual time or, beside other work, more; but not of this machine's.

    On a busy machine both take longer: it is the one that is held against the other.
    """
    with tenant(
        *(node, program, "work", "100000000", "600", "0"), GPU_SIMULATOR_CLOCK_SPEED="100"
    ) as one:
        assert _line(one) == "ready"
        began = time.monotonic()
        _go(one)
        took_ms = float(_line(one))

        assert took_ms >= 60_000
        assert (time.monotonic() - began) * 1000 < took_ms / 2


def test_imported_memory_is_charged_to_its_exporter_only(node: Node, program: Path) -> None:
    """The importer sees the exporter's bytes and pays nothing."""
    with tenant(node, program, "export", "64") as exporter:
        handle = _line(exporter)
        told = node.run(program, "import", handle).stdout.split()

        assert told == ["0", "77"]


def test_nvml_lists_imported_memory_with_both_processes(node: Node, program: Path) -> None:
    """Their figures are more than the card's together."""
    with (
        tenant(node, program, "export", "64") as exporter,
        tenant(node, program, "import", _line(exporter)) as importer,
    ):
        assert _line(importer) == "0 77"
        listed = _listed_mib(node)

        assert listed == {exporter.pid: CONTEXT_MIB + 64, importer.pid: CONTEXT_MIB + 64}
        assert _nvml(node)[0] == 2 * CONTEXT_MIB + 64


def test_devices_follow_the_runtimes_list_and_then_the_programs(
    make_node: Callable[[str], Node], program: Path, tmp_path: Path
) -> None:
    """NVIDIA_VISIBLE_DEVICES says what is there, CUDA_VISIBLE_DEVICES in which order."""
    node = make_node(described(3))
    mounts = tmp_path / "mounts"
    mounts.mkdir()
    for number in (0, 2):
        (mounts / uuid_of(number)).touch()
    lists = {
        "all": {},
        "one": {"NVIDIA_VISIBLE_DEVICES": uuid_of(1)},
        "mounts": {"NVIDIA_VISIBLE_DEVICES": str(mounts)},
        "turned": {"CUDA_VISIBLE_DEVICES": "2,0"},
        "both": {
            "NVIDIA_VISIBLE_DEVICES": f"{uuid_of(1)},{uuid_of(2)}",
            "CUDA_VISIBLE_DEVICES": uuid_of(2)[:13],
        },
        "cut": {"CUDA_VISIBLE_DEVICES": "1,7,0"},
        "twice": {"CUDA_VISIBLE_DEVICES": "1,1"},
    }
    seen = {
        name: [
            line.split()[0] for line in node.run(program, "devices", **extra).stdout.splitlines()
        ]
        for name, extra in lists.items()
    }

    assert seen == {
        "all": ["00000000", "00000001", "00000002", "0"],
        "one": ["00000001", "0"],
        "mounts": ["00000000", "00000002", "0"],
        "turned": ["00000002", "00000000", "0"],
        "both": ["00000002", "0"],
        "cut": ["00000001", "0"],
        "twice": ["100"],
    }


def test_a_mig_slice_is_a_device_of_its_own_size(
    make_node: Callable[[str], Node], program: Path
) -> None:
    """What one slice holds is not missing in the other."""
    node = make_node(sliced())
    with tenant(node, program, "hold", "4000", NVIDIA_VISIBLE_DEVICES=slice_uuid_of(0)) as holder:
        assert _line(holder) == "held"
        neighbour = _free_mib(node, program, NVIDIA_VISIBLE_DEVICES=slice_uuid_of(1))
        told = node.run(program, "devices", NVIDIA_VISIBLE_DEVICES=slice_uuid_of(1)).stdout
        refused = node.run(program, "hold", "1000", NVIDIA_VISIBLE_DEVICES=slice_uuid_of(0))

    assert neighbour == 4864 - 14 * 3
    assert told == "00000001 Tesla V100-SXM2-16GB MIG 1g.5gb\n0\n"
    assert refused.returncode == 1
    assert "2 is not 0" in refused.stderr


def test_mig_slices_share_no_time(make_node: Callable[[str], Node], program: Path) -> None:
    """Two busy slices each take as long as alone."""
    own = [{"NVIDIA_VISIBLE_DEVICES": slice_uuid_of(instance)} for instance in range(2)]
    took = _took_ms(make_node(sliced()), program, "200", "200", each_sees=own)

    assert took == pytest.approx([200, 200], rel=0.01)


@pytest.mark.parametrize(
    ("loading", "expected"),
    [pytest.param("EAGER", "8 8\n", id="at once"), pytest.param("LAZY", "0 8\n", id="at use")],
)
def test_a_module_takes_memory_that_nobody_allocated(
    node: Node, program: Path, loading: str, expected: str
) -> None:
    """With lazy loading, only a launch shows it."""
    extra = {"CUDA_MODULE_LOADING": loading, "GPU_SIMULATOR_MODULE_MIB": "8"}

    assert node.run(program, "modules", **extra).stdout == expected


def test_a_lost_card_fails_every_call_and_a_hang_ends_when_it_ends(
    node: Node, program: Path, control: ctypes.CDLL
) -> None:
    """What `simulate` does to the node, CUDA programs feel."""

    def change(line: str) -> None:
        assert control.gpusim_set(str(node.state).encode(), line.encode()) == 0

    with tenant(node, program, "use") as user:
        assert _line(user) == "ready"
        _go(user)
        assert _line(user) == "0"
        change("cards.0.lost=1")
        _go(user)
        assert _line(user) == "999"
        change("cards.0.lost=0")
        change("hang=1")
        _go(user)
        assert user.stdout is not None
        assert select.select([user.stdout], [], [], 0.3)[0] == []
        change("hang=0")

        assert _line(user) == "0"


def test_without_a_node_there_is_no_device(node: Node, program: Path) -> None:
    """The state file stands for the driver."""
    told = node.run(program, "devices", GPU_SIMULATOR_STATE="/nonexistent")

    assert told.stdout == "100\n"


def test_a_child_of_an_initialised_process_cannot_use_the_driver(node: Node, program: Path) -> None:
    """As with the real driver: fork first, or exec."""
    assert node.run(program, "fork").stdout == "3 3\n"
