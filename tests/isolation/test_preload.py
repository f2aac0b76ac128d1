"""A pod that preloads the driver or libc gets no card; one that brings the driver is capped by it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.harness.compiling import ROOT, compile_kept
from tools.harness.isolation.box import MIB, PATIENCE_SECONDS, SLICE, Box, native_directory

pytestmark = pytest.mark.skipif(
    "GPUSLICE_SANITIZER" in os.environ, reason="a sanitizer's library insists on being first"
)
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
FRONTS = ("libc.so.6", "libcuda.so.1", "libm.so.6:libnvidia-ml.so.1:libc.so.6")
ASK = "init\nretain\ninfo\n"
NO_DEVICE = 100
NOT_READY = "802"


def ours() -> str:
    return str(native_directory() / "libgpuslice.so")


def run(
    box: Box, command: Sequence[str | Path], front: str, **more: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs it with `front` before us in the list, as glibc does it with /etc/ld.so.preload."""
    environment: dict[str, str | None] = {
        **box.environment,
        "LD_PRELOAD": f"{front}:{ours()}",
        **more,
    }
    return subprocess.run(
        command,
        env={name: value for name, value in environment.items() if value is not None},
        input=ASK,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def refuses(ran: subprocess.CompletedProcess[str]) -> bool:
    """No card, and one line that says why."""
    told = ran.stderr.count("LD_PRELOAD names the driver or the C library")
    return told == 1 and ran.stdout.split()[0] in {str(NO_DEVICE), NOT_READY}


@pytest.mark.parametrize("front", FRONTS)
def test_who_preloads_the_driver_or_libc_gets_no_card(box: Box, front: str) -> None:
    """Neither libc's own dlsym nor the driver itself leads round us; looked up or linked."""
    looked_up = run(box, [box.programs / "client"], front)
    linked = run(box, [box.programs / "linked", str(1000 * MIB), str(1500 * MIB)], front)

    assert refuses(linked), linked
    assert str(SLICE) not in linked.stdout
    assert "LD_PRELOAD names the driver or the C library" in looked_up.stderr
    assert str(SLICE) not in looked_up.stdout.split()


def test_the_loaders_own_list_does_not_lead_round_us_either(box: Box) -> None:
    """ld.so --preload needs no variable."""
    if not LOADER.exists():
        pytest.skip(f"no {LOADER}: not glibc, or another machine")
    command = [str(LOADER), "--preload", f"libc.so.6:{ours()}", str(box.programs / "linked")]
    if "--preload" not in subprocess.run([LOADER, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this glibc's loader has no --preload")

    assert refuses(run(box, [*command, "1", "1"], "", LD_PRELOAD=None))


def test_a_program_without_cuda_goes_on(box: Box) -> None:
    """It is the same process, with its words; the line is said where a slice is."""
    ran = run(box, [shutil.which("cat") or "cat", "/proc/self/cmdline"], "libc.so.6")
    outside = run(box, ["/bin/true"], "libc.so.6", GPUSLICE_ROOT=None)

    assert ran.returncode == 0
    assert ran.stdout.split("\0")[1:-1] == ["/proc/self/cmdline"]
    assert outside.stderr == ""


@pytest.mark.parametrize("program", ["client", "linked"])
def test_a_wrapper_in_front_that_asks_us_is_capped(box: Box, program: str) -> None:
    """With a dlsym and a cuMemAlloc of its own; it called itself through us without end."""
    words = [str(1000 * MIB), str(1500 * MIB)] if program == "linked" else []
    ran = run(box, [box.programs / program, *words], str(box.programs / "libfront.so"))

    assert ran.stdout.split()[-1] == str(SLICE), ran
    assert program == "client" or ran.stdout.split()[:4] == ["0", "0", "0", "2"]


@pytest.mark.parametrize("program", ["client", "linked"])
def test_a_wrapper_that_looks_the_driver_up_past_us_gets_no_card(box: Box, program: str) -> None:
    """The line names it: nothing else would tell its owner why there is no card."""
    front = str(box.programs / "libfront.so")
    words = ["1", "1"] if program == "linked" else []
    ran = run(box, [box.programs / program, *words], front, FRONT="tables")

    assert f"no GPU for this container: {front}, of LD_PRELOAD" in ran.stderr, ran
    assert ran.stdout.split()[0] in {str(NO_DEVICE), NOT_READY}


@pytest.mark.parametrize("order", ["libm.so.6:{ours}", "{ours}:libc.so.6"])
def test_what_does_not_answer_for_the_driver_may_stand_anywhere(box: Box, order: str) -> None:
    """An allocator, for instance; and behind us anything may."""
    command: list[str | Path] = [box.programs / "linked", "1", "1"]
    ran = run(box, command, "", LD_PRELOAD=order.format(ours=ours()))

    assert ran.stdout.split()[-1] == str(SLICE), ran.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=4096:glibc.cpu.hwcaps=-AVX2"),
        ("LD_BIND_NOW", "1"),
        ("LD_DYNAMIC_WEAK", "1"),
        ("LD_ORIGIN_PATH", "/usr"),
    ],
)
def test_the_loaders_other_settings_change_nothing(box: Box, name: str, value: str) -> None:
    """None of them changes who is found first."""
    for program, *words in (("client",), ("linked", "1", "1")):
        ran = run(box, [box.programs / program, *words], "libm.so.6", **{name: value})

        assert ran.stdout.split()[-1] == str(SLICE), ran.stderr


USE = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
total, context = ctypes.c_size_t(), ctypes.c_void_p()
results = [driver.cuInit(0), driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0)]
results += [driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)]
pointer = ctypes.c_uint64()
results.append(driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total.value)))
print(*results, total.value)
"""


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so.535.309.01", "harmless.so"])
@pytest.mark.parametrize("way", ["path", "directory"])
def test_a_private_copy_of_the_driver_is_the_driver(
    box: Box, tmp_path: Path, name: str, way: str
) -> None:
    """By its path, or found through LD_LIBRARY_PATH: what is inside says what it is."""
    private = tmp_path / "private"
    private.mkdir()
    shutil.copy(box.node.drivers / "libcuda.so.1", private / name)
    asked = str(private / name) if way == "path" else name
    ran = subprocess.run(
        [sys.executable, "-c", USE, asked],
        env=box.environment | {"LD_LIBRARY_PATH": f"{private}:{box.node.drivers}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stdout.split() == ["0", "0", "0", "0", "2", str(SLICE)], ran.stderr


def test_a_vdso_linked_at_a_kernels_address_is_read(tmp_path: Path) -> None:
    """As those of gVisor and user-mode Linux are: programs with the library in front crashed there."""
    isolation = ROOT / "src" / "isolation"
    sources = [ROOT / "tests" / "isolation" / "vdso.c", isolation / "driver" / "libc_symbols.c"]
    command: list[str | Path] = ["cc", "-D_GNU_SOURCE", f"-I{isolation}", *sources]
    told = subprocess.check_output([compile_kept(command, tmp_path / "vdso")], text=True)

    assert told == "C library 0, driver 0\n"
