"""The library exports its list and nothing else, keeps its hands off the host, and loads anywhere."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.harness.isolation.box import native_directory

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "isolation"
HOOK = re.compile(r'^CUDA_HOOK\((\w+), "(\w+)", (\d+), (\w+)\)', re.MULTILINE)
OTHER = re.compile(r"^(CUDA_CALL|CUDA_PASS|NVML_HOOK)\((\w+)\)", re.MULTILINE)
ENTRY_POINTS = {"dlsym", "dlvsym", "dlopen", "dlmopen"}
GLIBC_FLOOR = (2, 17)


def symbols() -> tuple[list[tuple[str, str, int, str]], dict[str, set[str]]]:
    """Hooks with base, version and streams; the other names by macro."""
    text = (SOURCES / "driver" / "symbols.def").read_text()
    hooks = [(name, base, int(since), streams) for name, base, since, streams in HOOK.findall(text)]
    others: dict[str, set[str]] = {}
    for macro, name in OTHER.findall(text):
        others.setdefault(macro, set()).add(name)
    return hooks, others


def dynamic_symbols(library: Path, *options: str) -> set[str]:
    """Names in the dynamic symbol table, without versions."""
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    told = subprocess.run(
        ["nm", "-D", *options, library], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in told.splitlines()}


def library() -> Path:
    """The built library."""
    path = native_directory() / "libgpuslice.so"
    if not path.exists():
        pytest.skip(f"{path.name} is not built (make native)")
    return path


def test_exports_are_the_list() -> None:
    """Every hook of symbols.def, the four entry points, nothing else."""
    hooks, others = symbols()
    wanted = {name for name, *_ in hooks} | others["NVML_HOOK"] | ENTRY_POINTS

    assert dynamic_symbols(library(), "--defined-only") == wanted


@pytest.mark.parametrize(
    "name",
    [
        "exit",
        "abort",
        "_exit",
        "umask",
        "signal",
        "sigaction",
        "pthread_create",
        "setenv",
        "system",
    ],
)
def test_the_host_application_is_left_alone(name: str) -> None:
    """Seen elsewhere: exit() on errors, umask(0), signal handlers, threads."""
    assert name not in dynamic_symbols(library(), "--undefined-only")


def test_one_look_runs_at_load() -> None:
    """The compiler's own frame_dummy, and the look at who stands before us (hook/start.c); no more."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    sections = subprocess.run(
        ["readelf", "-SW", library()], capture_output=True, text=True, check=True
    ).stdout
    match = re.search(r"\.init_array\s+INIT_ARRAY\s+\w+\s+\w+\s+(\w+)", sections)

    assert match is not None
    assert int(match[1], 16) <= 16


def test_it_is_hardened() -> None:
    """Relocations are read-only, the stack is not executable, and it stays loaded."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    told = subprocess.run(
        ["readelf", "-ldW", library()], capture_output=True, text=True, check=True
    ).stdout

    assert "GNU_RELRO" in told
    assert "NOW" in told
    assert "NODELETE" in told
    assert re.search(r"GNU_STACK.* RW ", told)


def header() -> str:
    """cudaTypedefs.h of the build."""
    finder = ROOT / "src" / "find_header.py"
    command = [sys.executable, str(finder), "cudaTypedefs.h"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("cudaTypedefs.h is not installed")
    return (Path(found.stdout.strip()) / "cudaTypedefs.h").read_text()


def test_versions_are_those_of_the_header() -> None:
    """`base` and `since` of each hook, where the header is as new."""
    text = header()
    hooks, _ = symbols()
    known = set(re.findall(r"\bPFN_(\w+_v\d+(?:_ptsz|_ptds)?)\b", text))
    newest = max(int(version) for version in re.findall(r"_v(\d+)\b", text))
    missing = [
        name
        for name, base, since, _ in hooks
        if since <= newest
        and f"{base}_v{since}{''.join(re.findall('_ptsz$|_ptds$', name))}" not in known
    ]

    assert missing == []


def test_nothing_of_the_header_that_changes_the_books_is_forgotten() -> None:
    """Each versioned function that takes, frees, loads, launches or waits is hooked, or harmless."""
    hooks, others = symbols()
    handled = {(base, since) for _, base, since, _ in hooks}
    asked = others["CUDA_PASS"] | others["CUDA_CALL"]
    harmless = {re.sub(r"(_v\d)?(_ptsz)?$", "", name) for name in asked}
    shape = re.compile(
        r"\bPFN_(cuMem\w*(?:Alloc|Create)\w*|cuArray\w*Create|cuMipmappedArrayCreate"
        r"|cuGraphLaunch|cuGraphInstantiate\w*|cuLaunch\w*|cuMulticastCreate"
        r"|\w+CtxCreate|\w+CtxDestroy|cuCtxDetach|cuDevicePrimaryCtxRe\w+|cuModule(?:Unl|L)oad\w*"
        r"|cuLibrary(?:Unl|L)oad\w*|cuFuncLoad|cuMemFree\w*|cuMemRelease|cuMemUnmap|cuMemPoolDestroy"
        r"|cu(?:Mipmapped)?ArrayDestroy|cuGraphExecDestroy|cu\w+Synchronize"
        r"|cuGraphAddMemAllocNode)_v(\d+)(?:_ptsz)?\b"
    )
    found = {(name, int(since)) for name, since in shape.findall(header())}
    forgotten = {
        (name, since)
        for name, since in found - handled
        # The per-thread variant came later than the function itself.
        if name not in harmless and (name, since) != ("cuLaunchKernel", 7000)
    }

    assert found
    assert forgotten == set()


@pytest.mark.long
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_release_loads_with_an_old_c_library(machine: str, tmp_path: Path) -> None:
    """Built by zig for both machines, it needs nothing newer than glibc 2.17."""
    for tool in ("cmake", "objdump"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} (apt install cmake binutils)")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no ziglang package")
    compiler = tmp_path / "zigcc"
    compiler.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {machine}-linux-gnu.2.17 "$@"\n'
    )
    compiler.chmod(0o755)
    finder = ROOT / "src" / "find_header.py"
    headers = {
        name: subprocess.run(
            [sys.executable, str(finder), f"{name}.h"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("cuda", "nvml")
    }
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(SOURCES), "-B", str(build), f"-DCMAKE_C_COMPILER={compiler}"]
    configure += [f"-DCUDA_INCLUDE={headers['cuda']}", f"-DNVML_INCLUDE={headers['nvml']}"]
    configure += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    for command in (configure, ["cmake", "--build", str(build), "--target", "gpuslice"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    told = subprocess.run(
        ["objdump", "-T", build / "libgpuslice.so"], capture_output=True, text=True, check=False
    )
    versions = {
        tuple(int(part) for part in version.split("."))
        for version in re.findall(r"GLIBC_([\d.]+)", told.stdout)
    }

    assert versions, told.stderr
    assert max(versions) <= GLIBC_FLOOR
