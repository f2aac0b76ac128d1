"""Compiles tests/isolation/programs/*.c with the system's compiler, against the headers of the build."""

import subprocess
import sys
from pathlib import Path

from tools.harness.compiling import compile_kept
from tools.harness.isolation.box import native_directory

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAMS = _ROOT / "tests" / "isolation" / "programs"
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]


def header_directory(name: str) -> str:
    """Where a header of NVIDIA's lies; CalledProcessError when it is not installed."""
    finder = _ROOT / "src" / "find_header.py"
    command = [sys.executable, str(finder), name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def compile_programs(directory: Path) -> Path:
    """Each program under its name; a shared library where the name begins with lib."""
    includes = ["-isystem", header_directory("cuda.h"), "-isystem", header_directory("nvml.h")]
    for source in sorted(_PROGRAMS.glob("*.c")):
        name = source.stem
        if "LINKED TO THE RUNTIME" in source.read_text():
            continue
        shared = ["-shared", "-fPIC"] if name.startswith("lib") else []
        command = ["cc", *_FLAGS, *includes, str(source), *shared]
        if "LINKED TO THE DRIVER" in source.read_text():
            command += [f"-L{native_directory()}", "-Wl,--no-as-needed", "-l:libcuda.so.1"]
        target = directory / (f"{name}.so" if shared else name)
        compile_kept([*command, "-ldl", "-lpthread"], target)
    return directory


def runtime_directory() -> Path:
    """Where libcudart.so.12 and libcudart_static.a lie; CalledProcessError without the package."""
    return Path(header_directory("cuda.h")).parent / "lib"


def compile_runtime(directory: Path, library: str) -> Path:
    """The program of CUDA's runtime, linked to this library of it."""
    program = directory / library.split(".", maxsplit=1)[0]
    command = ["cc", *_FLAGS, str(_PROGRAMS / "runtime.c")]
    libraries = [str(runtime_directory() / library), "-ldl", "-lrt", "-lpthread"]
    return compile_kept([*command, *libraries], program)


def compile_bundled(directory: Path) -> Path:
    """The same program for a runtime that it loads from a file of its own."""
    program = directory / "bundled"
    command = ["cc", *_FLAGS, "-DBUNDLED", str(_PROGRAMS / "runtime.c"), "-ldl"]
    return compile_kept(command, program)
