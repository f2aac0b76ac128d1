"""Of nvidia-smi's private table three entries of one driver are known; all else goes out as it is."""

import json
import subprocess
import sys

import pytest
from tests.isolation.conftest import MakeBox
from tools.harness.isolation.box import NO_PERMISSION, PATIENCE_SECONDS, SLICE, Box

# Which entries of the table are not the driver's, or the result.
ASK = """
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
library.nvmlInit_v2()
table = ctypes.POINTER(ctypes.c_size_t)()
key = bytes([0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4])
result = library.nvmlInternalGetExportTable(ctypes.byref(table), key)
class Owner(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
ours = []
for number in range(1, table[0] // 8 if result == 0 else 0):
    owner = Owner()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(table[number]), ctypes.byref(owner))
    if table[number] and found and b"libgpuslice" in owner.file:
        ours.append(number)
print(json.dumps([result, ours]))
"""


def asked(box: Box) -> object:
    """The result, and the entries that are ours."""
    ran = subprocess.run(
        [sys.executable, "-c", ASK],
        env=box.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("driver", "ours"),
    [("470.57.02", []), ("535.309.01", [213, 214, 215]), ("550.54.14", []), ("580.65.06", [])],
)
def test_only_what_is_known_is_answered_by_us(
    make_box: MakeBox, driver: str, ours: list[int]
) -> None:
    """A number that means something else in another driver must never lead to us."""
    box = make_box(driver=driver)
    box.allow(SLICE)

    assert asked(box) == [0, ours]


@pytest.mark.parametrize("driver", ["470.57.02", "535.309.01", "580.65.06"])
def test_a_closed_container_has_no_table(make_box: MakeBox, driver: str) -> None:
    """Whatever the driver."""
    box = make_box(driver=driver)
    box.write("nonsense\n")

    assert asked(box) == [NO_PERMISSION, []]
