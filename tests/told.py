"""The told program of tests/isolation, for tests that need a CUDA program elsewhere."""

import shutil
import sys
from pathlib import Path

from tools.harness.compiling import compile_kept
from tools.harness.isolation.compile import header_directory

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "isolation" / "programs" / "client.c"


def compiler() -> list[str]:
    """This machine's C compiler, or zig's where there is none."""
    return ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]


def compile_program(directory: Path, source: Path = PROGRAM) -> Path:
    """Build it there, under its own name."""
    includes = [header_directory(header) for header in ("cuda.h", "nvml.h")]
    words = ["-std=c11", "-D_GNU_SOURCE", "-O1", str(source), "-ldl"]
    search = [word for path in includes for word in ("-isystem", path)]
    return compile_kept([*compiler(), *search, *words], directory / source.stem)
