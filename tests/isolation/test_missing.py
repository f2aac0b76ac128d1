"""What the driver lacks stays missing, and wrong use gets the driver's own error."""

import json
import subprocess
import sys

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.test_build import symbols
from tools.harness.isolation.box import MIB, PATIENCE_SECONDS, SLICE, Box, native_directory, preload

ASK_CUDA = """
import ctypes, json, sys
libc = ctypes.CDLL(None)
libc.dlsym.restype = ctypes.c_void_p
libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
driver = ctypes.CDLL("libcuda.so.1")
asked = json.load(sys.stdin)
names = {name: bool(libc.dlsym(driver._handle, name.encode())) for name in asked["names"]}
pointer, status = ctypes.c_void_p(), ctypes.c_int()
addresses = []
for base, version, flags in asked["addresses"]:
    pointer.value, status.value = None, 77
    result = [driver.cuGetProcAddress(base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags))]
    result.append(bool(pointer.value))
    if names["cuGetProcAddress_v2"]:
        pointer.value = None
        result.append(driver.cuGetProcAddress_v2(
            base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)))
        result += [bool(pointer.value), status.value]
    addresses.append(result)
print(json.dumps([names, addresses]))
"""
# One call fits all: the card, a count of zero or a struct of zeros, room.
ASK_NVML = """
import ctypes, json, sys
library = ctypes.CDLL("libnvidia-ml.so.1")
card = ctypes.c_void_p()
assert library.nvmlInit_v2() == 0
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)) == 0
answers = {}
for name in json.load(sys.stdin)["names"]:
    for which, handle in (("card", card), ("nobody", ctypes.c_void_p(8))):
        first, second = (ctypes.create_string_buffer(65536) for _ in range(2))
        answers[f"{name} {which}"] = library[name](handle, first, second, ctypes.c_ulonglong(0))
print(json.dumps(answers))
"""


def answers(box: Box, program: str, asked: object, *, with_us: bool) -> object:
    """What the program is told, through us or by the driver alone."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=box.environment
        | {"LD_PRELOAD": preload(native_directory() / box.library) if with_us else ""},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("version", ["11.4", "12.9", ""])
def test_cuda_names_are_there_where_the_drivers_are(make_box: MakeBox, version: str) -> None:
    """By dlsym and by both cuGetProcAddress, for each version, just before and with each stream."""
    hooks, others = symbols()
    drivers = native_directory() / "drivers" / version if version else native_directory()
    if not (drivers / "libcuda.so.1").exists():
        pytest.skip(f"not built: {drivers} (make native)")
    box = make_box()
    box.allow(SLICE)
    number = {"11.4": 11040, "12.9": 12090, "": 13000}[version]
    box.variables |= {
        "LD_LIBRARY_PATH": f"{drivers}:{native_directory()}",
        "GPU_SIMULATOR_CUDA_VERSION": str(number),
    }
    asked = {
        "names": [*(name for name, *_ in hooks), *sorted(others["CUDA_PASS"])],
        "addresses": [
            (base, asked_version, flags)
            for _, base, since, _ in hooks
            for asked_version in (since - 1, since, number)
            for flags in (0, 1, 2)
        ],
    }
    raw = answers(box, ASK_CUDA, asked, with_us=False)

    assert answers(box, ASK_CUDA, asked, with_us=True) == raw
    assert isinstance(raw, list)
    if version == "11.4":
        assert raw[0]["cuMemAlloc_v2"]
        assert not raw[0]["cuLaunchKernelEx"]


@pytest.mark.parametrize("driver", ["418.87.01", "450.102.04", "470.57.02", "535.309.01"])
def test_nvml_functions_answer_where_the_drivers_do(make_box: MakeBox, driver: str) -> None:
    """Not found, not supported, a wrong handle: the driver's own results."""
    _, others = symbols()
    box = make_box(driver=driver)
    box.allow(SLICE)
    asked = {"names": sorted(others["NVML_HOOK"])}
    raw = answers(box, ASK_NVML, asked, with_us=False)

    assert answers(box, ASK_NVML, asked, with_us=True) == raw
    assert isinstance(raw, dict)
    lists = (f"nvmlDeviceGetComputeRunningProcesses_v{number} card" for number in (2, 3))
    found = [raw[name] != 13 for name in lists]
    assert found == [int(driver[:3]) >= 470, int(driver[:3]) >= 510]


def test_our_own_question_does_not_need_the_newest_list(make_box: MakeBox) -> None:
    """What a context cost is measured with any driver's list."""
    box = make_box(driver="418.87.01")
    box.allow(SLICE)
    program = box.start()

    assert program("info") == [0, SLICE - 240 * MIB, SLICE]


def test_wrong_use_gets_the_drivers_error(box: Box) -> None:
    """Too early, no such device, no place for the answer; a call too early spoilt the card for good."""
    with_us, without = box.run("wrong"), box.run("wrong", LD_PRELOAD="")

    assert with_us.stdout.splitlines() == without.stdout.splitlines(), with_us.stderr
    assert with_us.stdout.splitlines()[-1] == "started: cuMemAlloc_v2 0"
    assert "no such device: cuMemCreate 101" in with_us.stdout
