"""CUDA's own runtime library, shared or linked in, gets our functions by whichever way it asks.

The runtime of the build's package is NVIDIA's. It gets nowhere on the simulated driver, which is
not NVIDIA's and has none of its private tables; but by then it has looked up every function that it
will ever call, and those are what is held against the list here.
"""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.test_build import symbols
from tools.harness.isolation.box import PATIENCE_SECONDS, SLICE, native_directory
from tools.harness.isolation.compile import compile_bundled, compile_runtime, runtime_directory

# What a program of the runtime's can take memory with, or start work with.
EXPECTED = {
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
    "cuMemGetInfo_v2",
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx_ptsz",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
    "cuDevicePrimaryCtxRetain",
}


@pytest.fixture(params=["libcudart.so.12", "libcudart_static.a"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The program, linked to one of the two."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")
    try:
        directory = runtime_directory()
    except subprocess.CalledProcessError:
        pytest.skip("cuda.h is not installed (nvidia-cuda-runtime-cu12)")
    if not (directory / request.param).exists():
        pytest.skip(f"the package nvidia-cuda-runtime-cu12 brought no {request.param}")
    return compile_runtime(tmp_path, request.param)


def kept_by(
    make_box: MakeBox, command: list[Path], version: str
) -> tuple[Counter[tuple[str, ...]], str]:
    """Which driver functions it keeps, and whose they are; and its errors. It has come back."""
    box = make_box()
    box.allow(SLICE)
    ran = subprocess.run(
        command,
        env=box.environment
        | {
            "GPU_SIMULATOR_CUDA_VERSION": version,
            "LD_LIBRARY_PATH": f"{native_directory()}:{runtime_directory()}",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return Counter(tuple(line.split()) for line in ran.stdout.splitlines()[1:]), ran.stderr


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("version", ["12090", "13000"])
def test_the_runtime_keeps_no_driver_function_that_we_stand_in_for(
    make_box: MakeBox, program: Path, version: str
) -> None:
    """Seen elsewhere: new entry points, per-thread streams and graphs by cuGetProcAddress."""
    kept, errors = kept_by(make_box, [program], version)
    hooked = {name for name, *_ in symbols()[0]}

    assert {name for name, owner in kept if owner == "libgpuslice.so"} >= EXPECTED
    assert {name for name, owner in kept if owner != "libgpuslice.so"} & hooked == set()
    assert "is new here" not in errors


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("program", ["libcudart.so.12"], indirect=True)
def test_a_program_that_brings_its_own_runtime_comes_back(
    make_box: MakeBox, program: Path, tmp_path: Path
) -> None:
    """Seen in HAMi 1834: with CUDA 13.2 its first call hung, by a bundled libcudart."""
    bundled = tmp_path / "libs" / program.with_suffix(".so.12").name
    bundled.parent.mkdir()
    shutil.copy(runtime_directory() / "libcudart.so.12", bundled)
    kept, errors = kept_by(make_box, [compile_bundled(tmp_path), bundled], "13020")
    hooked = {name for name, *_ in symbols()[0]}

    assert {name for name, owner in kept if owner == "libgpuslice.so"} >= EXPECTED
    assert {name for name, owner in kept if owner != "libgpuslice.so"} & hooked == set()
    assert "is new here" not in errors
