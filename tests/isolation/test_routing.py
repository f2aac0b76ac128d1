"""However a program finds a driver function, it gets ours where we have one, and nothing else changes."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tools.harness.isolation.box import MIB, SLICE, Box

OURS = "libgpuslice.so"
DRIVERS = "libcuda.so.1"
PER_THREAD = "2"
LEGACY = "1"


def owners(box: Box, *words: str) -> dict[str, str]:
    """Library by name, for one way of looking up."""
    ran = box.run("route", *words)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    return {name: owner for _, name, owner in lines}


WAYS = ("handle", "default", "program", "next", "next-twice")


@pytest.mark.parametrize("way", [*WAYS, "versioned", "versioned-next", "versioned-default"])
def test_dlsym_finds_ours(box: Box, way: str) -> None:
    """Seen elsewhere: a second RTLD_NEXT lookup returned NULL; libc's own dlsym by version."""
    found = owners(
        box, way, "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuDriverGetVersion", "cuNoSuch"
    )

    assert found == {
        "cuMemAlloc_v2": OURS,
        "cuLaunchKernel_ptsz": OURS,
        "cuDriverGetVersion": DRIVERS,
        "cuNoSuch": "-",
    }


@pytest.mark.parametrize("way", ["plugin", "deepbind", "dlmopen"])
def test_a_plugin_finds_ours(box: Box, way: str) -> None:
    """Also one loaded with RTLD_DEEPBIND, which binds to the C library before us."""
    if way != "plugin" and "GPUSLICE_SANITIZER" in os.environ:
        pytest.skip("sanitizers refuse RTLD_DEEPBIND")
    plugin = str(box.programs / "libplugin.so")

    assert owners(box, way, plugin, "cuMemAlloc_v2") == {"cuMemAlloc_v2": OURS}


def test_dlvsym_passes_versions_on(box: Box) -> None:
    """A versioned lookup of other libraries' symbols works as without us."""
    found = owners(box, "dlvsym", "cuMemAlloc_v2")

    assert found["pthread_create"].startswith("libc.so")
    assert found["cuMemAlloc_v2"] == "-"  # the driver has no such version


@pytest.mark.parametrize("way", ["unloaded", "unloaded-program"])
def test_no_driver_is_no_function(box: Box, way: str) -> None:
    """We export the names, but a program that has no driver must not find them."""
    assert owners(box, way, "cuMemAlloc_v2", "nvmlInit_v2") == {
        "cuMemAlloc_v2": "-",
        "nvmlInit_v2": "-",
    }


def test_rtld_next_is_seen_from_its_caller(box: Box) -> None:
    """Seen elsewhere: the caller was lost, and LLVM's OpenMP looped at `import torch`."""
    plugin = str(box.programs / "libplugin.so")
    preload = f"{box.environment['LD_PRELOAD']}:{plugin}"
    ran = box.run("next", LD_PRELOAD=preload)
    # After the program comes the plugin; after the plugin comes the C library.
    assert ran.returncode == 0, ran.stderr
    mine, its = ran.stdout.split()

    assert mine == "ours"
    assert its[0].isdigit()


def test_a_wrapper_behind_us_finds_our_lookup_next(box: Box) -> None:
    """As every interposer asks for what it wraps; it got the C library's, and past the slice."""
    plugin = str(box.programs / "libplugin.so")
    ran = box.run("next", "lookup", LD_PRELOAD=f"{box.environment['LD_PRELOAD']}:{plugin}")

    assert ran.stdout.split() == [OURS, OURS, "-"], ran.stderr


def bringing(directory: Path, brought: Path | str, name: str = "libbringing.so") -> Path:
    """The plugin without CUDA, but for a library that comes with it."""
    plugin = directory / name
    source = Path(__file__).parent / "programs" / "libversion.c"
    command = ["cc", "-shared", "-fPIC", "-o", str(plugin), str(source), "-Wl,--no-as-needed"]
    found = [f"-Wl,-soname,{name}", f"-Wl,-rpath,{directory}"]
    subprocess.run([*command, *found, str(brought)], check=True)
    return plugin


@pytest.mark.skipif("GPUSLICE_SANITIZER" in os.environ, reason="sanitizers refuse RTLD_DEEPBIND")
def test_a_plugin_without_cuda_binds_deeply(box: Box, tmp_path: Path) -> None:
    """To its own functions first, as it asked; nor does a library of the compiler take that from it."""
    plugin = box.programs / "libversion.so"
    with_math = bringing(tmp_path, "-lm")

    assert box.run("route", "binding", str(plugin)).stdout == "ours\n"
    assert box.run("route", "binding", str(with_math)).stdout == "ours\n"


@pytest.mark.skipif("GPUSLICE_SANITIZER" in os.environ, reason="sanitizers refuse RTLD_DEEPBIND")
def test_what_brings_cuda_does_not_bind_deeply_in_a_slice(box: Box, tmp_path: Path) -> None:
    """By its own name for the driver, or by a library that is loaded with it, whatever its name."""
    plugin = bringing(tmp_path, box.programs / "libplugin.so")

    assert box.run("route", "binding", str(plugin)).stdout[0].isdigit()
    inner = bringing(tmp_path, box.programs / "libplugin.so", "libbringing.inner.so")
    plugin = bringing(tmp_path, inner)
    assert box.run("route", "binding", str(plugin)).stdout[0].isdigit()
    words = ("binding", str(box.programs / "libplugin.so"))
    sliced, native = box.run("route", *words), box.run("route", *words, LD_PRELOAD="")
    without_slice = box.run("route", *words, GPUSLICE_ROOT="")

    assert (without_slice.stdout, native.stdout) == ("ours\n", "ours\n")
    assert sliced.stdout[0].isdigit()


def test_a_program_linked_to_the_driver_is_capped(box: Box) -> None:
    """No dlopen, no dlsym: the dynamic loader alone."""
    ran = box.run("linked", str(1000 * MIB), str(1500 * MIB))

    assert ran.stdout.split() == ["0", "0", "0", "2", str(SLICE)], ran.stderr


@pytest.mark.parametrize("way", ["address1", "address2"])
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(("cuMemAlloc", "12000", "0"), (OURS, "_v2"), id="newest"),
        pytest.param(("cuMemAlloc", "2000", "0"), (OURS, "plain"), id="before 3.2"),
        pytest.param(
            ("cuLaunchKernel", "12000", "0"), (OURS, "plain"), id="legacy stream by default"
        ),
        pytest.param(("cuLaunchKernel", "12000", LEGACY), (OURS, "plain"), id="legacy stream"),
        pytest.param(
            ("cuLaunchKernel", "12000", PER_THREAD), (OURS, "_ptsz"), id="per-thread stream"
        ),
        pytest.param(("cuGraphLaunch", "12000", PER_THREAD), (OURS, "_ptsz"), id="graphs too"),
        pytest.param(("cuGraphInstantiate", "11000", "0"), (OURS, "_v2"), id="graph of CUDA 11"),
        pytest.param(
            ("cuGetProcAddress", "11030", "0"), (OURS, "plain"), id="itself, four arguments"
        ),
        pytest.param(
            ("cuGetProcAddress", "12000", "0"), (OURS, "_v2"), id="itself, five arguments"
        ),
        pytest.param(("cuDriverGetVersion", "12000", "0"), (DRIVERS, "plain"), id="not hooked"),
    ],
)
def test_cugetprocaddress_gives_our_version(
    box: Box, way: str, asked: tuple[str, str, str], answer: tuple[str, str]
) -> None:
    """Version and flags decide as they do in the driver."""
    owner, suffix = answer
    ran = box.run("route", way, *asked)
    found, outcome = ran.stdout.splitlines()
    result, status, same = outcome.split()

    assert found.split()[2] == owner, ran.stdout
    assert (result, same) == ("0", suffix)
    assert status == ("0" if way == "address2" else "77")


@pytest.mark.parametrize(
    ("name", "version", "flags"),
    [
        pytest.param("cuNoSuch", 12000, "0", id="unknown symbol"),
        pytest.param("cuMemAllocAsync", 11000, "0", id="version before it existed"),
        pytest.param("NULL", 12000, "0", id="no name"),
        pytest.param("cuMemAlloc", 12000, "0x40", id="unknown flag"),
    ],
)
@pytest.mark.parametrize("way", ["address1", "address2"])
def test_what_the_driver_refuses_stays_refused(
    box: Box, way: str, name: str, version: int, flags: str
) -> None:
    """Result and symbolStatus are exactly the driver's."""
    with_us = box.run("route", way, name, str(version), flags)
    without = box.run("route", way, name, str(version), flags, LD_PRELOAD="")

    assert with_us.stdout == without.stdout


@pytest.mark.parametrize("way", ["name", "address"])
def test_a_tool_that_the_driver_opens_is_capped(box: Box, way: str) -> None:
    """CUDA_INJECTION64_PATH: what it looks up while the driver starts is ours; it had the driver's."""
    tool = str(box.programs / "libtool.so")
    ran = box.run("tooled", way, str(100 * MIB), CUDA_INJECTION64_PATH=tool, TOOL_LOOKS_BY=way)

    assert ran.stdout.split() == [OURS, "19"], ran.stderr


@pytest.mark.parametrize("call", ["first", "context"])
def test_a_constructor_that_calls_the_driver_waits_for_nobody(box: Box, call: str) -> None:
    """It has the loader's lock, for which another thread's first call waited with ours: for ever."""
    ran = box.run("constructing", call, str(box.programs / "libconstructing.so"))

    assert ran.stdout.split() == ["0", "0"], ran


@pytest.mark.parametrize("driver", ["470.57.02", "535.309.01", "575.57.08", "580.65.06"])
def test_what_an_old_driver_lacks_stays_missing(make_box: MakeBox, driver: str) -> None:
    """Seen elsewhere: a hook was returned for a function that the driver lacks, and crashed."""
    box = make_box(driver=driver)
    box.allow(SLICE)
    names = [
        "cuMemAlloc_v2",
        "cuGraphInstantiateWithParams",
        "cuGetProcAddress_v2",
        "cuCtxCreate_v4",
    ]
    ours = owners(box, "handle", *names)
    raw_lines = box.run("route", "handle", *names, LD_PRELOAD="").stdout.splitlines()
    raw = {line.split()[1]: line.split()[2] for line in raw_lines}

    assert {name: owner != "-" for name, owner in ours.items()} == {
        name: owner != "-" for name, owner in raw.items()
    }
    assert ours["cuMemAlloc_v2"] == OURS


def test_programs_without_a_driver_see_nothing_of_us(box: Box) -> None:
    """No file, no memory, no thread: beyond loading, the same system calls."""
    if "GPUSLICE_SANITIZER" in os.environ:
        pytest.skip("a sanitizer makes system calls of its own")

    def calls(preload: str) -> list[str]:
        traced = subprocess.run(
            ["strace", "-f", "/bin/true"],
            env={"LD_PRELOAD": preload, "GPUSLICE_ROOT": str(box.root), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        ).stderr
        # What the loader does ends with the munmap of its cache.
        after = traced.rsplit("munmap(", 1)[-1]
        return [line.split("(")[0] for line in after.splitlines()[1:]]

    try:
        without = calls("")
    except FileNotFoundError:
        pytest.skip("no strace")

    assert calls(box.environment["LD_PRELOAD"]) == without
    assert not (box.root / "state").exists()
