"""The promise: the demo tells the truth, in 80 columns, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.sweeps import sweep

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600.0


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A short path: Unix sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as path:
        yield Path(path)


@contextmanager
def playing(tmp: Path, *program: str) -> Iterator[subprocess.Popen[str]]:
    """A demo, or another program, in a process of its own, whose temporary files lie in `tmp`."""
    process = subprocess.Popen(
        [sys.executable, *(program or ("-m", "tools.demo"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "TMPDIR": str(tmp),
            "COLUMNS": "80",
            "NO_COLOR": "1",
            # As in a container of a CUDA image: this is not for the simulated cards.
            "NVIDIA_VISIBLE_DEVICES": "0",
        },
        # A test run in a shell's background ignores Ctrl-C, and its children would as well.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What it printed up to the first line with `text`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} was never printed:\n{''.join(lines)}")


def command_lines(text: str, where: str = "cmdline") -> dict[int, str]:
    """Processes whose command line contains `text`, by pid."""
    found = {}
    for entry in Path("/proc").glob(f"[0-9]*/{where}"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found[int(entry.parent.name)] = line
    return found


def users(tmp: Path) -> dict[int, str]:
    """Processes that know the directory: by their command line, or by their slice."""
    return command_lines(str(tmp)) | command_lines(f"GPUSLICE_ROOT={tmp}", "environ")


def assert_no_process(tmp: Path) -> None:
    """Within seconds no process knows the directory."""
    deadline = time.monotonic() + 60
    while users(tmp) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert users(tmp) == {}


def assert_nothing_is_left(tmp: Path) -> None:
    """No process that knows the directory, and no file in it."""
    assert_no_process(tmp)
    assert list(tmp.iterdir()) == []


@pytest.mark.long
def test_the_demo_keeps_every_promise_within_80_columns(tmp: Path) -> None:
    """Exit code 0, every figure right, no line too long, nothing left."""
    with playing(tmp) as process:
        output, _ = process.communicate(timeout=SECONDS)

    assert process.returncode == 0, output
    assert "FAILED" not in output
    assert re.search(r"gpu-a +core_mem .* 60 +400 +4\b", output)
    assert re.search(r"gpu-b +cgpu .* 60 +- +4\b", output)
    assert re.search(r"cuda-sample +gpu-a +2 units, 30 % +card 0: 2154 MiB", output)
    assert re.search(r"two-cards +gpu-b +8 units on 2 cards +cards 0 and 1: 4309 MiB each", output)
    assert re.search(r"card 0 +aabbbb\.{9} +6/15 +80 % +a cuda-sample, b chat", output)
    assert "the largest free slice is 15 units (16160 MiB) on card 2" in output
    assert "percentage must" in output
    assert "without card 1: 45, 300, 3" in output
    assert "with card 1: 60, 400, 4" in output
    assert re.search(r"cuda-sample +337MiB / 2154MiB +\d+% +1\b", output)
    assert re.search(r"node gpu-a +\d+MiB / 16160MiB +\d+% +3\b", output)
    assert "cuda-sample asks 2048 MiB: CUDA_ERROR_OUT_OF_MEMORY (2)" in output
    assert "chat meanwhile: goes on" in output
    assert re.findall(r"^ +([\w-]+) +[#.]*\|[#.]* +[\d.]+ %", output, re.MULTILINE) == [
        "cuda-sample",
        "chat",
        "trainer",
    ]
    assert re.search(r"\b(\d+) of \1 checks passed", output)
    assert max(len(line) for line in output.splitlines()) <= 80
    assert_nothing_is_left(tmp)


@sweep("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_demo_that_is_ended_leaves_nothing(tmp: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C in the middle: the agents end, their files go."""
    with playing(tmp) as process:
        read_until(process, "Pods ask")
        assert command_lines(str(tmp))
        process.send_signal(number)
        output, _ = process.communicate(timeout=SECONDS)

    assert process.returncode == code, output
    assert "nothing of it is left" in output
    assert_nothing_is_left(tmp)


def test_an_agent_that_ends_fails_the_demo(tmp: Path) -> None:
    """Exit code 1, and the end of its log."""
    with playing(tmp) as process:
        read_until(process, "What the nodes offer")
        lines = command_lines(str(tmp))
        agent = next(pid for pid, line in lines.items() if "--node-name gpu-a" in line)
        os.kill(agent, signal.SIGKILL)
        output, _ = process.communicate(timeout=SECONDS)

    assert process.returncode == 1, output
    assert "the agent has ended with exit code -9" in output
    assert_nothing_is_left(tmp)


BROKEN = """
from tools.demo import run_demo as run, story
from tools.demo.__main__ import main
run.PROFILE = "mixed"
story.START_SECONDS = story.SOON_SECONDS = 3.0
raise SystemExit(main())
"""


def test_a_broken_promise_is_told_and_is_exit_code_1(tmp: Path) -> None:
    """Other cards than promised: what was expected and what was seen stand there."""
    with playing(tmp, "-c", BROKEN) as process:
        output, _ = process.communicate(timeout=SECONDS)

    assert process.returncode == 1, output
    assert "FAILED  allocatable of gpu-a" in output
    assert "expected  60, 400, 4" in output
    assert re.search(r"seen +\d+, \d+, \d+\n", output)
    assert "Pods ask" not in output
    assert_nothing_is_left(tmp)
