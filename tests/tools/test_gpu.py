"""The checks of `make gpu` hold where the cap is kept, fail where it is not, and say what is missing.

The card is the simulated driver's; what PyTorch would do, nothing here tells.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.isolation.test_limit_hook import cgroup_tree
from tools.bench.rows import Row
from tools.gpu import compute, limits, memory
from tools.gpu.card import Card, chosen
from tools.gpu.kept import Kept
from tools.gpu.place import Place
from tools.gpu.simulated import simulated_base

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "build" / "native"
MIB = 1024 * 1024
CARD = Card("GPU-1", "Test V100", "580.1", "13.0", 16384 * MIB, 16000 * MIB, 384 * MIB, {})


def gpu(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m tools.gpu`."""
    return subprocess.run(
        [sys.executable, "-m", "tools.gpu", *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def built() -> None:
    """Skips where the libraries or a compiler are missing."""
    if not (NATIVE / "libgpuslice.so").exists() or not (NATIVE / "libcuda.so.1").exists():
        pytest.skip("not built: make native")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")


@pytest.mark.usefixtures("built")
def test_without_a_card_it_says_so_and_ends_well(tmp_path: Path) -> None:
    """One line names what was looked for; the document stays as it is."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a card: make gpu measures it")
    document = tmp_path / "benchmarks.md"

    done = gpu("--document", str(document))

    assert done.returncode == 0, done.stderr
    assert "no GPU: looked for libnvidia-ml.so.1 and /dev/nvidia*" in done.stdout
    assert not document.exists()


@pytest.mark.usefixtures("built")
def test_names_and_memory_pass_on_the_simulated_card(tmp_path: Path) -> None:
    """Every check that asks the driver runs, is met, and is not written down as a real one's."""
    document = tmp_path / "benchmarks.md"

    done = gpu("--simulated", "--document", str(document), "routing", "memory", "pytorch")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED" in done.stdout
    assert "missed" not in done.stdout
    for kind in memory.KINDS:
        assert f"{kind}: refused with CUDA's own out of memory: 2" in done.stdout
    assert "PyTorch in a slice: not run: " in done.stdout
    assert not document.exists()


@pytest.mark.usefixtures("built")
def test_the_drivers_own_limits_answer_what_is_open_about_them() -> None:
    """Which questions are closed by that, and which are not."""
    cgroup_tree()
    done = gpu("--simulated", "--count", "500", "limits")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "above the driver's limit: 2 (CUDA_ERROR_OUT_OF_MEMORY (2)) met" in done.stdout
    assert "a limit of 1 MiB above the total, and of the total: 2 and 0" in done.stdout
    assert "still open: " in done.stdout
    assert "MPS: whose cgroup is charged" in done.stdout.partition("still open: ")[2]


def test_no_limit_is_asked_of_an_older_driver(tmp_path: Path) -> None:
    """What it would do with the call, nobody has said."""
    place = Place(tmp_path, tmp_path, {}, CARD, 1, 1, "", is_simulated=True)
    [row] = limits.measure(place)
    assert row.measured == "not run: driver 580.1 has none, 615 is the first"


@pytest.mark.long
@pytest.mark.usefixtures("built")
def test_time_and_cost_are_measured_on_the_simulated_card() -> None:
    """The figures of a shared machine are not judged here; that there are figures is."""
    chapters = ("facts", "cost", "compute", "slices")
    done = gpu("--simulated", "--seconds", "0.2", "--count", "500", *chapters)

    assert "the check itself" not in done.stdout, done.stdout
    assert "added to a launch, memory cap: " in done.stdout
    for what in compute.TELLS.values():
        for percent in compute.PERCENTS:
            assert f"{what}, {percent} %: the card's time: " in done.stdout
    assert "tenants of 10 and 90 % at once, work completed: 1:" in done.stdout
    if os.geteuid() == 0:
        assert "the agent offers of the card: 15 units of 16160 MiB" in done.stdout
        assert "work of the slice of 60 %, of the three's: " in done.stdout


@pytest.mark.long
@pytest.mark.usefixtures("built")
def test_the_first_half_hour_runs_on_the_simulated_card() -> None:
    """Imports and graphs are judged, time is not; what needs PyTorch says that it did not run."""
    chapters = ("empties", "beside", "imports", "starting", "graphs", "models", "vllm")
    done = gpu("--simulated", "--seconds", "0.2", *chapters)

    assert "the check itself" not in done.stdout, done.stdout
    assert "of them at 50 %: the card's time: " in done.stdout
    assert "20 ms sync at 60 % beside 100 µs at 30 %: the card's time: " in done.stdout
    assert "an import in a slice of 2 GiB succeeds: 0 (0) met" in done.stdout
    assert "the slice shows the same to: 0 MiB (≤ 8 MiB) met" in done.stdout
    # In the chapter, and once more at the end.
    assert done.stdout.count("not run: NVIDIA's runtime library") == 2 * 3


def test_a_run_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    """What ran to its end is kept, for this card and driver only."""
    library = tmp_path / "library"
    library.write_bytes(b"one")
    whole = [Row("share", "30 %", "30.1 %", is_met=True)]
    kept = Kept(tmp_path / "gpu.json", CARD, library)
    kept.save("graphs", whole)
    kept.save("compute", [Row("compute: the check itself", "runs to its end", "no", is_met=False)])

    again = Kept(tmp_path / "gpu.json", CARD, library)
    assert again.rows("graphs") == whole
    assert again.rows("compute") is None
    other = replace(CARD, driver="590.1")
    assert Kept(tmp_path / "gpu.json", other, library).rows("graphs") is None
    library.write_bytes(b"built again")
    assert Kept(tmp_path / "gpu.json", CARD, library).rows("graphs") is None


def test_the_idlest_card_is_measured_that_processes_may_share() -> None:
    """Modes are left as they are, and what a scheduler made visible is kept to."""
    free = {"has_mig": False, "is_exclusive": False, "free": 8, "pids": {}}
    cards: list[dict[str, Any]] = [
        {**free, "uuid": "GPU-a", "has_mig": True},
        {**free, "uuid": "GPU-b", "is_exclusive": True},
        {**free, "uuid": "GPU-c", "pids": {1: 1}, "free": 9},
        {**free, "uuid": "GPU-d"},
    ]

    def uuid(visible: str) -> str | None:
        found = chosen(cards, visible)
        return found["uuid"] if found else None

    assert uuid("") == "GPU-d"
    assert uuid("2") == "GPU-c"
    assert uuid("GPU-c,GPU-d") == "GPU-d"
    assert uuid("GPU-a,GPU-b") is None


@pytest.mark.usefixtures("built")
def test_a_library_that_keeps_no_cap_fails() -> None:
    """With another library preloaded nothing is capped: memory and names say so, the status too."""
    other = str(NATIVE / "libnvidia-ml.so.1")

    done = gpu("--simulated", "--library", other, "routing", "memory")

    assert done.returncode == 1
    assert "linear: asked for by calls beyond the cap" in done.stdout
    led_elsewhere = re.search(
        r"names that do not lead to the library in a slice: (\d+) of (\d+)", done.stdout
    )
    assert led_elsewhere is not None, done.stdout
    assert led_elsewhere[1] == led_elsewhere[2] != "0"
    assert "checks failed" in done.stdout


@pytest.mark.usefixtures("built")
def test_a_simulated_card_is_never_taken_for_a_real_one(tmp_path: Path) -> None:
    """Where the simulated driver is what programs find, nothing is measured as if it were not."""
    base = simulated_base(tmp_path, {})
    document = tmp_path / "benchmarks.md"

    done = gpu("--document", str(document), "routing", **base)

    assert done.returncode == 1
    assert "the driver here is the simulated one" in done.stdout
    assert not document.exists()
