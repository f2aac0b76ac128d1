"""What several of these tests need."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jumping clocks, compiled by the system's compiler or by zig."""
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    source = str(HERE / "clock.c")
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library
