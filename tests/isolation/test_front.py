"""A pod may name anything in LD_PRELOAD, or bring the driver under any name: it stays behind us."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.isolation.box import MIB, PATIENCE_SECONDS, Box, native_directory

pytestmark = pytest.mark.skipif(
    "GPUSLICE_SANITIZER" in os.environ, reason="a sanitizer's library insists on being first"
)
SLICE = 2154 * MIB
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
FRONTS = ("libc.so.6", "libcuda.so.1", "libm.so.6:libnvidia-ml.so.1:libc.so.6")
ASK = "init\nretain\ninfo\n"
NO_DEVICE = 100


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


@pytest.mark.parametrize("front", FRONTS)
def test_what_a_pod_preloads_does_not_stand_before_us(box: Box, front: str) -> None:
    """Neither libc's own dlsym nor the driver itself; looked up or linked."""
    looked_up = run(box, [box.programs / "client"], front)
    linked = run(box, [box.programs / "linked", str(1000 * MIB), str(1500 * MIB)], front)

    assert looked_up.stdout.split()[-1] == str(SLICE), looked_up.stderr
    assert linked.stdout.split() == ["0", "0", "0", "2", str(SLICE)], linked.stderr


def test_the_loaders_own_list_does_not_stand_before_us_either(box: Box) -> None:
    """ld.so --preload needs no variable."""
    if not LOADER.exists():
        pytest.skip(f"no {LOADER}")
    command = [str(LOADER), "--preload", f"libc.so.6:{ours()}", str(box.programs / "client")]
    if "--preload" not in subprocess.run([LOADER, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this glibc's loader has no --preload")
    ran = run(box, command, "", LD_PRELOAD=None)

    assert ran.stdout.split()[-1] == str(SLICE), ran.stderr


def test_a_program_run_by_the_loader_stays_so(box: Box) -> None:
    """Its arguments and those of the loader are what they were."""
    if not LOADER.exists():
        pytest.skip(f"no {LOADER}")
    cat = shutil.which("cat") or "cat"
    ran = run(box, [LOADER, "--inhibit-cache", cat, "/proc/self/cmdline"], "libc.so.6")

    assert ran.stdout.split("\0")[:-1] == [
        str(LOADER),
        "--inhibit-cache",
        cat,
        "/proc/self/cmdline",
    ]


def test_a_process_that_starts_anew_is_told_the_same(box: Box) -> None:
    """argv[0], empty and odd arguments, its name, every other variable."""
    script = (
        "import os, sys; print(sys.orig_argv[1:], os.environ['X'], open('/proc/self/comm').read())"
    )
    words = ["-I", "-c", script, "", "two words", "naïve"]
    told = [
        subprocess.run(
            ["another name", *words],
            executable=sys.executable,
            env=box.environment | {"LD_PRELOAD": preload, "X": "a=b"},
            capture_output=True,
            text=True,
            check=False,
        )
        for preload in ("", f"libc.so.6:{ours()}")
    ]
    ran = subprocess.run(
        ["another name", "/proc/self/cmdline"],
        executable=shutil.which("cat") or "cat",
        env=box.environment | {"LD_PRELOAD": f"libc.so.6:{ours()}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert told[0].stdout
    assert told[1].stdout == told[0].stdout, told[1].stderr
    assert ran.stdout == "another name\0/proc/self/cmdline\0"


def test_a_script_is_run_once_more_by_its_interpreter(box: Box, tmp_path: Path) -> None:
    """The kernel has put the interpreter before its words already."""
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable} -I\nimport sys; print(sys.argv)\n")
    script.chmod(0o755)
    ran = run(box, [script, "word"], "libc.so.6")

    assert ran.stdout == f"['{script}', 'word']\n"


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


def executions(box: Box, front: str, **more: str | None) -> int:
    """How often a harmless program is executed."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    command = ["strace", "-f", "-e", "trace=execve", "-E", f"LD_PRELOAD={front}:{ours()}"]
    ran = run(box, [*command, "/bin/true"], "", LD_PRELOAD=None, **more)
    return ran.stderr.count("execve(")


@pytest.mark.parametrize("front", ["libm.so.6", "libc.so.6:libm.so.6"])
def test_nothing_starts_anew_without_need(box: Box, front: str) -> None:
    """A library that does not answer for the driver may stand anywhere; without a slice all may."""
    assert executions(box, "libm.so.6") == 1
    assert executions(box, front, GPUSLICE_ROOT=None) == 1


def test_it_starts_anew_once(box: Box) -> None:
    """Never in a circle, also where our own path is named first and does not come first."""
    assert executions(box, "libc.so.6") == 2
    assert executions(box, f"{ours()}:libc.so.6") == 1


def test_what_cannot_start_anew_gets_no_card(box: Box) -> None:
    """Without /proc, for instance. It is said, and the program itself goes on."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to hide /proc")
    hide = 'mount -t tmpfs none /proc && LD_PRELOAD="$0" exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hide]
    for front in ("libc.so.6", "libcuda.so.1"):
        ran = run(
            box,
            [*command, f"{front}:{ours()}", box.programs / "linked", "1", "1"],
            "",
            LD_PRELOAD=None,
        )

        assert ran.stdout.split()[0] in {str(NO_DEVICE), "802"}, front
        assert "cannot be started with our library before it" in ran.stderr


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
