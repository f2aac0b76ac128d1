"""The promise: at most five tests may fail once in .ci/run, and are named; whatever fails twice fails it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "unstable.py"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
TEST = '''
from pathlib import Path
def test_{name}():
    """Fails as often as that."""
    runs = Path("{name}.runs")
    runs.write_text(str(before := int(runs.read_text()) + 1 if runs.exists() else 1))
    assert before > {times}, "run " + str(before)
'''


def tree(place: Path, **times: int) -> None:
    """A file of tests for each name up to its underscore, each failing so many times."""
    (place / "pytest.ini").write_text("[pytest]\n")
    for name, count in times.items():
        with (place / f"test_{name.split('_')[0]}.py").open("a") as file:
            file.write(TEST.format(name=name, times=count))


def unstable(place: Path, *words: str) -> tuple[int, list[str]]:
    """Exit status, and what the script itself prints."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *words],
        cwd=place,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    ours = ("unstable:", "failed twice:", "once more", "6 have failed")
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith(ours)]


def first(place: Path, *command: str, options: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """The tests that run by this command, or all."""
    words = ["first", "check", "--again", shlex.join(PYTEST), *options, "--"]
    return unstable(place, *words, *(command or PYTEST))


def test_what_passes_the_second_time_is_named_with_its_first_failure(tmp_path: Path) -> None:
    tree(tmp_path, a_sound=0, a_once=1)

    assert first(tmp_path) == (0, ["once more at the end: test_a.py::test_a_once"])
    assert unstable(tmp_path, "again") == (
        0,
        ["unstable: test_a.py::test_a_once: AssertionError: run 1"],
    )
    assert (tmp_path / "a_sound.runs").read_text() == "1", "it ran alone"


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    tree(tmp_path, a_once=1, a_twice=2)

    assert first(tmp_path)[0] == 0
    assert unstable(tmp_path, "again") == (
        1,
        [
            "failed twice: test_a.py::test_a_twice: AssertionError: run 2",
            "unstable: test_a.py::test_a_once: AssertionError: run 1",
        ],
    )


@pytest.mark.parametrize(("count", "status"), [(5, 0), (6, 1)])
def test_more_than_five_fail(tmp_path: Path, count: int, status: int) -> None:
    """Of all commands together; a sixth ends the run."""
    tree(tmp_path, **{f"a_{number}": 1 for number in range(3)})
    tree(tmp_path, **{f"b_{number}": 1 for number in range(count - 3)})

    assert first(tmp_path, *PYTEST, "test_a.py")[0] == 0
    found, told = first(tmp_path, *PYTEST, "test_b.py")
    assert found == status
    assert status == 0 or told == ["6 have failed, more than 5: none runs once more"]
    assert status or len(unstable(tmp_path, "again")[1]) == 5


def test_a_command_that_fails_by_something_else_fails_at_once(tmp_path: Path) -> None:
    """A session that never ended tells nothing of its tests."""
    tree(tmp_path, a_once=1)

    assert first(tmp_path, "sh", "-c", "exit 3") == (3, [])
    assert first(tmp_path, *PYTEST, "no_such_file.py") == (4, [])
    assert first(tmp_path, options=("--sessions", "2")) == (1, [])


def test_a_file_of_two_clusters_runs_again_whole(tmp_path: Path) -> None:
    """As tests/e2e/run.sh runs them: two sessions in one command."""
    tree(tmp_path, a_once=1, a_sound=0, b_once=1)
    lanes = [f"GPU_DEVICE_PLUGIN_E2E_LANE={x} {shlex.join(PYTEST)} test_{x}.py" for x in "ab"]
    command = ("sh", "-c", f"{lanes[0]}; one=$?; {lanes[1]} && exit $one")

    assert first(tmp_path, *command, options=("--sessions", "2", "--files")) == (
        0,
        ["once more at the end: test_a.py test_b.py"],
    )
    assert unstable(tmp_path, "again")[1] == [
        "unstable: test_a.py: AssertionError: run 1",
        "unstable: test_b.py: AssertionError: run 1",
    ]
    assert (tmp_path / "a_sound.runs").read_text() == "2"


def test_nothing_runs_again_where_nothing_failed(tmp_path: Path) -> None:
    tree(tmp_path, a_sound=0)

    assert first(tmp_path) == (0, [])
    assert unstable(tmp_path, "again") == (0, [])
