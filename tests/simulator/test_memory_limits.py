"""From driver 615 on the driver counts memory by cgroup, and refuses what is above a hard limit.

A directory of any file system stands for a cgroup here; GPU_SIMULATOR_CGROUP puts a program into one.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator.conftest import MakeNode
from tests.simulator.programs import hear, run, started

from gpu_device_plugin.simulation.driver_library import set_fields
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_GIB = 1 << 30
_MAX = (1 << 64) - 1
_NO_PERMISSION, _INVALID, _NOT_SUPPORTED, _OPERATING_SYSTEM, _NOT_FOUND = 4, 2, 3, 17, 6
_ACCOUNTING = {"misc": 0, "dmem": 1, "off": 2}
_OUT_OF_MEMORY = 2

_NVML = """
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
def limit(place, hard, soft=0, device=card):
    given = nvml.c_nvmlSetMemoryLimits_v1_t(place and place.encode(), soft, hard)
    return error_of(nvml.nvmlDeviceSetMemoryLimits_v1, device, given)
def limits(place):
    asked = nvml.c_nvmlGetMemoryLimits_v1_t(place and place.encode())
    code = error_of(nvml.nvmlDeviceGetMemoryLimits_v1, card, asked)
    return code or [asked.softLimit, asked.hardLimit, asked.currentUsed]
"""
_CUDA = """
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
def opened():
    return cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
def taken(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
def told():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return [free.value // MIB, total.value // MIB]
"""
# A context takes 100 MiB: what is left of a limit comes out in whole numbers.
_EXACT = {"GPU_SIMULATOR_CONTEXT_MIB": "100"}


@pytest.fixture
def limited(make_node: MakeNode) -> Callable[[str], SimulatedNode]:
    """A node of one V100 with a driver that counts in this way."""

    def make(accounting: str) -> SimulatedNode:
        node = make_node("v100", cards=1, driver_version="615.71.09")
        set_fields(node.state, [f"memory_accounting={_ACCOUNTING[accounting]}"])
        return node

    return make


@pytest.fixture
def leaf(tmp_path: Path) -> str:
    """A container's cgroup below a pod's."""
    place = tmp_path / "pod" / "container"
    place.mkdir(parents=True)
    return str(place.resolve())


def _limit(node: SimulatedNode, place: str | Path, hard: int, soft: int = 0) -> object:
    return run(node, _NVML + f"say(limit({str(place)!r}, {hard}, {soft}))")


def _limits(node: SimulatedNode, place: str | Path) -> object:
    return run(node, _NVML + f"say(limits({str(place)!r}))")


def test_an_older_driver_has_neither_function(node: SimulatedNode) -> None:
    """A program that looks for the symbol finds none, as with a real driver of that time."""
    names = '("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")'
    found = f'say([hasattr(ctypes.CDLL("libnvidia-ml.so.1"), name) for name in {names}])'
    assert run(node, found) == [False, False]


def test_checks_come_in_the_order_of_the_header(limited: Callable[[str], SimulatedNode]) -> None:
    """Rights before arguments, arguments before what the card can, the path last."""
    program = """
import threading
none = "/no/such/cgroup"
bare = [error_of(nvml.nvmlDeviceSetMemoryLimits_v1, None, nvml.c_nvmlSetMemoryLimits_v1_t())]
"""
    program += _NVML
    program += """
total = nvml.nvmlDeviceGetMemoryInfo(card).total
codes = [limit(None, 1), limit(none, 1, soft=2), limit(none, total + 1), limit(none, total, device=None),
         limit(none, total), limits(None), limits(none)]
libc = ctypes.CDLL(None)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.syscall(126 if os.uname().machine == "x86_64" else 91, header, data) == 0
codes += [limit(None, 1), limits(None)]
say(bare + codes)
"""
    seen = run(limited("misc"), program)
    assert seen == [1, *[_INVALID] * 4, _OPERATING_SYSTEM, _INVALID, _OPERATING_SYSTEM, 4, _INVALID]


@pytest.mark.parametrize(
    ("accounting", "unset"),
    [
        pytest.param("misc", _NOT_SUPPORTED, id="misc"),
        pytest.param("dmem", [0, _MAX, 0], id="dmem"),
    ],
)
def test_a_limit_is_read_back_and_each_backend_has_its_answer_where_none_is_set(
    limited: Callable[[str], SimulatedNode], leaf: str, accounting: str, unset: object
) -> None:
    """nvml.h says NOT_FOUND, the drivers' code something else: there is a switch."""
    node = limited(accounting)
    assert _limits(node, leaf) == unset
    set_fields(node.state, ["unset_is_not_found=1"])
    assert _limits(node, leaf) == _NOT_FOUND
    assert _limit(node, leaf, 2 * _GIB) == 0
    assert _limits(node, leaf) == [0, 2 * _GIB, 0]
    assert _limit(node, leaf, _MAX) == 0
    assert _limits(node, leaf) == [0, _MAX, 0]


def test_a_driver_without_accounting_or_a_card_in_mig_mode_supports_neither(
    limited: Callable[[str], SimulatedNode], leaf: str
) -> None:
    """The functions are there all the same."""
    off = limited("off")
    assert [_limit(off, leaf, _GIB), _limits(off, leaf)] == [_NOT_SUPPORTED] * 2
    cut = limited("dmem")
    set_fields(cut.state, ["cards.0.mig_capable=1", "cards.0.mig_enabled=1"])
    assert [_limit(cut, leaf, _GIB), _limits(cut, leaf)] == [_NOT_SUPPORTED] * 2


@pytest.mark.parametrize("accounting", ["misc", "dmem"])
def test_a_process_is_refused_above_the_limit_of_its_cgroup_and_sees_it(
    limited: Callable[[str], SimulatedNode], leaf: str, accounting: str
) -> None:
    """Contexts count, managed memory does not; a process of another cgroup has the card."""
    node = limited(accounting)
    _limit(node, leaf, _GIB)
    program = (
        _CUDA
        + """
seen = [opened(), told(), taken(900), told(), taken(64), cuda.cuMemFree_v2(pointer), taken(64)]
managed = cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(4096 * MIB), 1)
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
two = nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)
one = nvml.nvmlDeviceGetMemoryInfo(card)
say([*seen, managed, [two.total // MIB, two.used // MIB, two.free // MIB], one.total // MIB])
"""
    )
    inside = run(node, program, GPU_SIMULATOR_CGROUP=leaf, **_EXACT)
    assert inside == [
        *(0, [924, 1024], 0, [24, 1024], _OUT_OF_MEMORY, 0, 0, 0),
        *([1024, 164, 860], 16160),
    ]
    outside = run(
        node, _CUDA + "say([opened(), told()[1], taken(8000)])", GPU_SIMULATOR_CGROUP="/other"
    )
    assert outside == [0, 16160, 0]


@pytest.mark.parametrize(
    ("accounting", "refused"),
    [pytest.param("misc", 0, id="misc"), pytest.param("dmem", _OUT_OF_MEMORY, id="dmem")],
)
def test_a_limit_above_binds_all_below_with_dmem_and_the_nearest_alone_with_misc(
    limited: Callable[[str], SimulatedNode], leaf: str, accounting: str, refused: int
) -> None:
    """A limit of the pod alone binds in both, and nobody is told of it."""
    node = limited(accounting)
    _limit(node, Path(leaf).parent, _GIB)
    program = _CUDA + "say([opened(), told()[1], taken(1000)])"
    assert run(node, program, GPU_SIMULATOR_CGROUP=leaf, **_EXACT) == [0, 16160, _OUT_OF_MEMORY]
    _limit(node, leaf, 2 * _GIB)
    assert run(node, program, GPU_SIMULATOR_CGROUP=leaf, **_EXACT) == [0, 2048, refused]


def test_misc_counts_from_the_first_limit_on_and_dmem_from_the_start(
    limited: Callable[[str], SimulatedNode], leaf: str
) -> None:
    """A limit below what is in use: misc refuses it, dmem takes it and refuses what follows."""
    program = _CUDA + "say(opened())\nsys.stdin.readline()\nsay([taken(200), taken(200)])"
    seen = {}
    for accounting in ("misc", "dmem"):
        node = limited(accounting)
        with started(node, program, GPU_SIMULATOR_CGROUP=leaf, **_EXACT) as process:
            assert hear(process) == 0
            below = [_limit(node, leaf, 50 << 20), _limit(node, leaf, 300 << 20)]
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            after = hear(process)
            seen[accounting] = [*below, after, _limit(node, leaf, 100 << 20)]
    assert seen == {
        "misc": [0, 0, [0, _OUT_OF_MEMORY], _INVALID],
        "dmem": [0, 0, [0, _OUT_OF_MEMORY], 0],
    }


def test_what_a_soft_limit_adds_above_stays_with_dmem(
    limited: Callable[[str], SimulatedNode], leaf: str
) -> None:
    """Also when the cgroup is gone; without a soft limit there is nothing to stay."""
    node = limited("dmem")
    pod = Path(leaf).parent
    _limit(node, leaf, 2 * _GIB)
    assert _limits(node, pod) == [0, _MAX, 0]
    _limit(node, leaf, 2 * _GIB, _GIB)
    Path(leaf).rmdir()
    assert _limits(node, pod) == [_GIB, _MAX, 0]


@pytest.mark.parametrize("event", ["reload", "reset", "new leaf"])
def test_limits_end_with_the_driver_the_card_and_the_cgroup(
    limited: Callable[[str], SimulatedNode], leaf: str, event: str
) -> None:
    """A cgroup made again at the same path is another one."""
    node = limited("dmem")
    _limit(node, leaf, _GIB)
    if event == "reload":
        node.upgrade_driver("615.71.09")
    elif event == "reset":
        node.lose(0)
        node.restore(0)
    else:
        Path(leaf).rename(f"{leaf}-before")
        Path(leaf).mkdir()
    assert _limits(node, leaf) == [0, _MAX, 0]
    program = _CUDA + "say([opened(), told()[1]])"
    assert run(node, program, GPU_SIMULATOR_CGROUP=leaf) == [0, 16160]
