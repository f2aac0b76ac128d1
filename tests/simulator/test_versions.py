"""Every struct version is answered, and an old driver lacks what it lacked."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from tests.simulator.conftest import MakeNode
from tests.simulator.programs import run

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_SYMBOLS = Path(__file__).parents[2] / "src" / "simulator" / "nvml" / "symbols.def"
_FUNCTION_NOT_FOUND = 13


def test_process_lists_come_in_every_version(node: SimulatedNode) -> None:
    """Version 1 is 16 bytes an entry, 2 and 3 add the instances, the detailed list is 5 fields."""
    seen = run(
        node,
        """
        control("gpusim_occupy", 1, ctypes.c_uint32(0xFFFFFFFF), ctypes.c_uint64(337 * MIB))
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(1)
        class One(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]
        count, room = ctypes.c_uint(2), (One * 2)()
        library = ctypes.CDLL("libnvidia-ml.so.1")
        code = library.nvmlDeviceGetComputeRunningProcesses(card, ctypes.byref(count), room)
        answers = [[code, count.value, room[0].pid == os.getpid(), room[0].used // MIB]]
        for version in ("_v2", "_v3"):
            found = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses" + version)(card)
            answers.append([[one.pid == os.getpid(), one.usedGpuMemory // MIB, one.gpuInstanceId]
                            for one in found])
        detail = nvml.nvmlDeviceGetRunningProcessDetailList(
            card, nvml.nvmlProcessDetailList_v1, 0)
        answers.append([[one.pid == os.getpid(), one.usedGpuMemory // MIB] for one in detail])
        answers.append(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(card))
        answers.append(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v2(card))
        say(answers)
        """,
    )
    listed = [[True, 337, 0xFFFFFFFF]]

    assert seen == [[0, 1, True, 337], listed, listed, [[True, 337]], [], []]


def test_memory_comes_in_both_versions(node: SimulatedNode) -> None:
    """Both agree; a struct of an unknown version is refused, not half filled."""
    node.use(0, memory_mib=100)

    seen = run(
        node,
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        one = nvml.nvmlDeviceGetMemoryInfo(card)
        two = nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)
        wrong = error_of(nvml.nvmlDeviceGetMemoryInfo, card, 7)
        say([one.used // MIB, one.free // MIB, two.used // MIB, two.free // MIB, wrong])
        """,
    )

    assert seen == [100, 16060, 100, 16060, 25]


def test_pci_information_comes_in_every_version(node: SimulatedNode) -> None:
    """The first versions end early: what stands behind them stays as it was."""
    seen = run(
        node,
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        library = ctypes.CDLL("libnvidia-ml.so.1")
        answers = []
        for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"):
            info = nvml.nvmlPciInfo_t()
            info.busId = b"untouched"
            info.pciSubSystemId = 7
            code = library[name](card, ctypes.byref(info))
            answers.append([code, info.busIdLegacy, info.pciSubSystemId != 7, info.busId])
        say(answers)
        """,
    )

    assert seen == [
        [0, "0000:1A:00.0", False, "untouched"],
        [0, "0000:1A:00.0", True, "untouched"],
        [0, "0000:1A:00.0", True, "00000000:1A:00.0"],
    ]


@pytest.mark.parametrize(
    ("driver", "missing"),
    [
        pytest.param("450.102.04", [True, True, True], id="450"),
        pytest.param("470.82.01", [False, True, True], id="470"),
        pytest.param("510.47.03", [False, False, False], id="510"),
    ],
)
def test_an_old_driver_lacks_newer_functions(
    make_node: MakeNode, driver: str, missing: list[bool]
) -> None:
    """Process lists of version 2 came with 470, of version 3 and memory version 2 with 510."""
    seen = run(
        make_node("v100", cards=1, driver_version=driver),
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        say([error_of(nvml.nvmlDeviceGetComputeRunningProcesses_v2, card),
             error_of(nvml.nvmlDeviceGetComputeRunningProcesses_v3, card),
             error_of(nvml.nvmlDeviceGetMemoryInfo, card, nvml.nvmlMemory_v2)])
        """,
    )

    assert seen == [_FUNCTION_NOT_FOUND if lacks else 0 for lacks in missing]


def test_the_library_exports_exactly_its_list_of_symbols(node: SimulatedNode) -> None:
    """symbols.def is the only list, up to the node's driver (570); the gpusim_ controls come beside."""
    entry = re.compile(r"^(?:SYMBOL|UNSUPPORTED)\((\w+), (\d+)\)", re.MULTILINE)
    listed = {name for name, since in entry.findall(_SYMBOLS.read_text()) if int(since) <= 570}
    told = subprocess.run(
        ["nm", "-D", "--defined-only", node.library], check=True, capture_output=True, text=True
    ).stdout
    exported = {line.split()[-1] for line in told.splitlines()}

    assert {name for name in exported if not name.startswith("gpusim_")} == listed


def test_the_list_holds_every_function_that_the_header_declares() -> None:
    """What nvml.h of CUDA 12 declares is there, if only to say that it is not supported."""
    spec = pytest.importorskip("nvidia.nvml_dev", reason="nvidia-nvml-dev-cu12 is not installed")
    header = Path(next(iter(spec.__path__))) / "include" / "nvml.h"
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"DECLDIR\s*\*?\s*(nvml\w+)\s*\(", text))
    listed = set(re.findall(r"^(?:SYMBOL|UNSUPPORTED)\((\w+),", _SYMBOLS.read_text(), re.MULTILINE))

    assert declared - listed == set()


def test_an_unsupported_function_says_so(node: SimulatedNode) -> None:
    """Not supported, and uninitialised before nvmlInit: never a crash."""
    seen = run(
        node,
        """
        library = ctypes.CDLL("libnvidia-ml.so.1")
        before = library.nvmlDeviceGetNvLinkVersion(None, 0, None)
        nvml.nvmlInit()
        say([before, library.nvmlDeviceGetNvLinkVersion(None, 0, None)])
        """,
    )

    assert seen == [1, 3]


def _exports(node: SimulatedNode, library: str, name: str) -> bool:
    return hasattr(ctypes.CDLL(str(node.library.parent / library)), name)


@pytest.mark.parametrize(
    ("library", "name", "drivers"),
    [
        ("libnvidia-ml.so.1", "nvmlDeviceGetMemoryInfo_v2", ["535.261.03", "575.57.08"]),
        ("libnvidia-ml.so.1", "nvmlDeviceGetTemperatureV", ["575.57.08"]),
        ("libnvidia-ml.so.1", "nvmlGetBlacklistDeviceCount", ["450.102.04", "535.261.03"]),
        ("libcuda.so.1", "cuLibraryLoadData", ["535.261.03", "575.57.08"]),
        ("libcuda.so.1", "cuGreenCtxCreate", ["575.57.08"]),
    ],
)
def test_a_library_beside_its_node_exports_what_its_driver_has(
    make_node: MakeNode, library: str, name: str, drivers: list[str]
) -> None:
    """Programs look whether a symbol is there (nvitop on 535), before they call anything."""
    versions = ["450.102.04", "535.261.03", "575.57.08"]
    nodes = {version: make_node("v100", driver_version=version) for version in versions}
    having = [version for version in versions if _exports(nodes[version], library, name)]

    assert set(drivers) <= set(having)
    assert having == [version for version in versions if version >= drivers[0]]


def test_another_driver_brings_its_own_libraries(make_node: MakeNode) -> None:
    """Who loads the library after the upgrade finds what came with it."""
    node = make_node("v100", driver_version="535.261.03")
    before = node.library.read_bytes()
    node.upgrade_driver("575.57.08")

    assert node.library.read_bytes() != before
    assert _exports(node, "libcuda.so.1", "cuGreenCtxCreate")
