"""What `make gpu-cluster` does before a card is there: parts, steps, the image without programs."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.bench.report import with_section
from tools.bench.rows import Row, shown
from tools.gpu.card import find
from tools.gpu.compute import MOST_KEPT, kept_row
from tools.gpu.place import ROOT, CheckError, answer, compile_card, library_base, on_card, started
from tools.gpu.simulated import simulated_base
from tools.gpu_cluster import decode
from tools.gpu_cluster.driver_root import copy_driver
from tools.gpu_cluster.page import BARE, ROWS, write
from tools.gpu_cluster.parts import MOST_BYTES, SUMS, PartError, packed, write_sums
from tools.gpu_cluster.pod_root import machine_image
from tools.gpu_cluster.steps import Record, Step

HALVES = "slices of 50 and 50 %"
NATIVE = ROOT / "build" / "native"


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 100)))
def test_every_file_is_in_one_part_that_is_not_too_large(sizes: dict[str, int]) -> None:
    parts = packed(sizes, 60)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    assert all(len(part) == 1 or sum(map(sizes.__getitem__, part)) <= 60 for part in parts)


def test_sums_are_of_every_file_and_a_part_too_large_to_travel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(b"zero")
    (tmp_path / "start").write_bytes(b"")
    assert write_sums(tmp_path) == [("part-0", 4), ("start", 0)]
    assert write_sums(tmp_path) == [("part-0", 4), ("start", 0)], "the list is no part of itself"
    first, _ = (tmp_path / SUMS).read_text().splitlines()
    assert first == f"{hashlib.sha256(b'zero').hexdigest()}  part-0"

    with (tmp_path / "part-1").open("wb") as large:
        large.truncate(MOST_BYTES + 1)
    with pytest.raises(PartError, match="part-1"):
        write_sums(tmp_path)


def test_a_failed_step_stops_those_that_need_it_and_no_other(tmp_path: Path) -> None:
    file, said = tmp_path / "rows.json", list[str]()

    def fails() -> Sequence[Row]:
        raise OSError("no room")

    def reads() -> Sequence[Row]:
        written = json.loads(file.read_text())["steps"]
        return [shown("written before", ", ".join(written))]

    record = Record(file, {"simulated": ""}, said.append, lambda: "its log ends so")
    rows = record.run(
        (
            Step("first", lambda: [Row("share", "30 %", "31 %", is_met=False)]),
            Step("broken", fails),
            Step("after it", list, ("first", "broken")),
            Step("after that", list, ("after it",)),
            Step("apart", reads, ("first",)),
        )
    )

    assert [row.what for row in rows if row.is_met is False] == ["share", "broken"]
    steps = json.loads(file.read_text())["steps"]
    told = {name: [row["measured"] for row in step["rows"]] for name, step in steps.items()}
    assert told == {
        "first": ["31 %"],
        "broken": ["no room"],
        "after it": ["not run: needs broken"],
        "after that": ["not run: needs after it"],
        "apart": ["first, broken, after it, after that"],
    }
    assert "its log ends so" in said
    assert "    share: 31 % (30 %) **missed**" in said


def test_the_image_has_the_machines_links_and_library_directories(tmp_path: Path) -> None:
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (tmp_path / "etc/ld.so.conf.d/x.conf").write_text("/usr/local/cuda/lib64")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").mkdir()

    image = machine_image(tmp_path)

    assert image.links == {"bin": "usr/bin"}
    assert image.files["etc/ld.so.conf"] == b"/usr/local/cuda/lib64\n"


def test_a_driver_is_copied_without_what_its_machine_lacks(tmp_path: Path) -> None:
    theirs = tmp_path / "machine/usr/lib64"
    theirs.mkdir(parents=True)
    (theirs / "libcuda.so.580.1").write_text("cuda")
    (theirs / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    # Debian's alternatives are absolute links, which lead out of a machine that is mounted elsewhere.
    (theirs / "libnvidia-ml.so").symlink_to("/etc/alternatives/none")

    copy_driver(tmp_path / "machine", tmp_path / "driver")

    ours = tmp_path / "driver/usr/lib/x86_64-linux-gnu"
    assert {path.name for path in ours.iterdir()} == {"libcuda.so.580.1", "libcuda.so.1"}
    assert (ours / "libcuda.so.1").read_text() == "cuda"
    assert not list((tmp_path / "driver/usr/bin").iterdir())

    program = tmp_path / "machine/usr/lib/nvidia/current/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text("smi")
    # An empty file in an earlier place is one that another tool mounts over, in other containers.
    earlier = tmp_path / "machine/usr/bin/nvidia-smi"
    earlier.parent.mkdir()
    earlier.touch()
    program.with_name("nvidia-cuda-mps-control").write_text("mps")
    copy_driver(tmp_path / "machine", tmp_path / "again")
    assert (tmp_path / "again/usr/bin/nvidia-smi").read_text() == "smi"
    assert (tmp_path / "again/usr/bin/nvidia-cuda-mps-control").read_text() == "mps"


def test_links_of_the_machine_lead_to_its_own_files(tmp_path: Path) -> None:
    """Absolute ones too, although its root is mounted elsewhere."""
    theirs = tmp_path / "machine/usr/local/nvidia/lib64"
    theirs.mkdir(parents=True)
    (theirs / "libcuda.so.580.1").write_text("cuda")
    (theirs / "libcuda.so.1").symlink_to("/usr/local/nvidia/lib64/libcuda.so.580.1")

    copy_driver(tmp_path / "machine", tmp_path / "driver")

    ours = tmp_path / "driver/usr/lib/x86_64-linux-gnu"
    assert (ours / "libcuda.so.1").read_text() == "cuda"


def _told(tokens: Sequence[int], p50_ns: int) -> dict[str, Any]:
    return {
        "pieces": len(tokens),
        "took_ns": 10**9,
        "p50_ns": p50_ns,
        "p99_ns": 2 * p50_ns,
        "tokens": tokens,
    }


def test_two_models_are_compared_with_one_alone() -> None:
    alone = _told(range(100), 10_000_000)
    rates, gaps, same, other = decode.rows(
        HALVES,
        alone,
        [_told(range(50), 20_000_000), _told([0, 1, 7, 3, *range(4, 30)], 15_000_000)],
    )

    assert rates.measured == "50.0 and 30.0; together 80 % of one alone"
    assert gaps.measured == "20.00 / 40.00 ms and 15.00 / 30.00 ms; p50 200 %, 150 % of one alone"
    assert (same.measured, same.is_met) == ("the same 50", True)
    assert (other.measured, other.is_met) == ("another at 2", False)
    (*_, silent) = decode.rows(HALVES, alone, [_told([], 1)])
    assert silent.is_met is False, "no token at all is no proof"
    (*_, beside) = decode.rows("MPS, 50 and 50 %", alone, [_told([5], 1)])
    assert beside.is_met is None, "a framework may choose other kernels where MPS is"


def test_a_page_has_what_a_run_measured_that_was_cut_off(tmp_path: Path) -> None:
    """As each step left it, and the checks without a cluster beside it; nothing of a simulated card."""
    document = tmp_path / "benchmarks.md"
    document.write_text("# Benchmarks\n")
    about = {"simulated": "", "date": "2026-12-01 10:00 UTC", "kernel": "6.1"}

    def fails() -> Sequence[Row]:
        raise KeyboardInterrupt

    steps = (
        Step("first", lambda: [Row("share", "30 %", "30.5 %", is_met=True)]),
        Step("cut", fails),
    )
    with pytest.raises(KeyboardInterrupt):
        Record(tmp_path / ROWS, about, lambda _: None, str).run(steps)
    write(tmp_path, document)
    assert "| share | 30 % | 30.5 % | met |" in document.read_text()
    assert "measured it on 2026-12-01 10:00 UTC on Linux 6.1" in document.read_text()

    (tmp_path / ROWS).unlink()
    (tmp_path / BARE).write_text(with_section("# Benchmarks\n", "## On a real card\n"))
    write(tmp_path, document)
    assert "## On a real card" in document.read_text()
    assert "30.5 %" in document.read_text(), "a section that was not measured stays"

    (tmp_path / BARE).unlink()
    (tmp_path / ROWS).write_text(json.dumps({**about, "simulated": "1", "steps": {}}))
    with pytest.raises(FileNotFoundError, match="a real card"):
        write(tmp_path, document)


def test_a_limit_that_does_nothing_is_no_throughput_kept() -> None:
    """A lower clock gives a slice more than its share, but never the whole card."""
    met = {part: kept_row("products", 30, part, MOST_KEPT).is_met for part in (0.28, 0.37, 0.6, 1)}
    assert met == {0.28: False, 0.37: True, 0.6: False, 1: False}
    assert kept_row("products", 60, 1, MOST_KEPT).is_met is False


def test_a_program_that_fails_takes_its_neighbours_along() -> None:
    """They are not waited for: a card is there for minutes."""
    forever = ["sh", "-c", "exec 1>&-; while :; do read -r line; done; exec sleep 600"]
    with pytest.raises(CheckError), started([(os.environ, forever)] * 2) as processes:
        answer(processes[0])
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


def test_nobody_begins_before_all_are_ready(tmp_path: Path) -> None:
    """The later ones take longer to be ready; each tells how many were when it began."""
    loop = "while [ ${n:=0} -lt ${1}00000 ]; do n=$((n + 1)); done"
    tell = 'echo "{\\"ready\\": $(ls | wc -l)}"'
    script = f"cd {tmp_path}; {loop}; >file-$1; {tell}; read -r go; {tell}"
    told = decode.at_once(os.environ, [["sh", "-c", script, "sh", name] for name in "012"])
    assert told == [{"ready": 3}] * 3


def test_the_loop_of_kernels_writes_the_same_tokens_each_time(tmp_path: Path) -> None:
    if not (NATIVE / "libcuda.so.1").exists() or shutil.which("cc") is None:
        pytest.skip("not built: make native; or no C compiler: cc")
    base = simulated_base(tmp_path, library_base())
    environment = on_card(base, find(base))
    compile_card(tmp_path / "card", ["cc"])
    loop = [str(tmp_path / "card"), "decode", "10000", "0.3"]

    (alone,) = decode.at_once(environment, [loop])
    both = decode.at_once(environment, [loop, loop])

    assert len(set(alone["tokens"])) == alone["pieces"] > 1
    assert 0 < alone["p50_ns"] <= alone["p99_ns"]
    _, _, *same = decode.rows(HALVES, alone, both)
    assert [row.is_met for row in same] == [True, True]
