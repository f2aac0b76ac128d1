"""The promise: the demo tells the truth, in 80 columns, and leaves nothing behind."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKEN = """
from tools.demo import run_demo as run, story
from tools.demo.__main__ import main
run.PROFILE = "mixed"
story.START_SECONDS = story.SOON_SECONDS = 3.0
raise SystemExit(main())
"""


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A short path: Unix sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as path:
        yield Path(path)


def play(tmp: Path, *program: str) -> tuple[int, str]:
    """Exit status and output of a demo, or of another program, whose temporary files lay in `tmp`."""
    # As in a container of a CUDA image: NVIDIA_VISIBLE_DEVICES is not for the simulated cards.
    around = {"TMPDIR": str(tmp), "COLUMNS": "80", "NO_COLOR": "1", "NVIDIA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, *(program or ("-m", "tools.demo"))]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | around,
        timeout=600,
        check=False,
    )
    deadline = time.monotonic() + 60
    while users(tmp) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert users(tmp) == []
    assert list(tmp.iterdir()) == []
    return done.returncode, done.stdout


def users(tmp: Path) -> list[str]:
    """Processes that know the directory: by their command line, or by their slice."""
    found = []
    for place in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
        try:
            text = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        known = str(tmp) if place.name == "cmdline" else f"GPUSLICE_ROOT={tmp}"
        found += [text] if known in text else []
    return found


@pytest.mark.long
def test_the_demo_keeps_every_promise_within_80_columns(tmp: Path) -> None:
    code, output = play(tmp)

    assert code == 0, output
    assert "FAILED" not in output
    assert re.search(r"\b(4\d) of \1 checks passed", output)
    assert max(len(line) for line in output.splitlines()) <= 80


def test_a_broken_promise_is_told_and_is_exit_code_1(tmp: Path) -> None:
    """Other cards than promised: what was expected and what was seen stand there."""
    code, output = play(tmp, "-c", BROKEN)

    assert code == 1, output
    assert "FAILED  allocatable of gpu-a" in output
    assert re.search(r"expected +\d+, \d+, \d+\n +seen +\d+, \d+, \d+\n", output)
    assert "Pods ask" not in output
