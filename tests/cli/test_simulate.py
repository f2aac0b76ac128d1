"""`simulate` says what it made and what it could not do, and exits accordingly."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_device_plugin.cli.program import run_program
from gpu_device_plugin.cli.simulate import simulate


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(simulate, [str(argument) for argument in arguments])


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a call says that ends with 2."""
    with pytest.raises(SystemExit) as ended:
        run_program(simulate, "simulate", [str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A directory with a simulated node of four V100."""
    made = _run("create", "--profile", "v100", "--state", tmp_path)
    assert made.exit_code == 0, made.output
    return tmp_path


def test_create_says_how_the_node_is_used(tmp_path: Path) -> None:
    """The line that the agent needs is there to be copied."""
    made = _run("create", "--profile", "h200", "--cards", 2, "--state", tmp_path)

    assert "2 cards, driver 550.90.07, CUDA 12.4" in made.output
    assert f"--nvml-library {tmp_path / 'libnvidia-ml.so.1'}" in made.output


def test_show_draws_what_happened_to_each_card(state: Path) -> None:
    """One line a card, the worst that is to be said of it at the end."""
    for command in (
        ["use", "--card", 0, "--memory-mib", 337, "--gpu-percent", 30],
        ["temperature", 71, "--card", 0],
        ["lost", "--card", 1],
        ["xid", 48, "--card", 2],
        ["unplug", "--card", 3],
    ):
        assert _run(*command, "--state", state).exit_code == 0

    lines = _run("show", "--state", state).output.splitlines()
    ends = [" ".join(line.split()[-5:]) for line in lines if "Tesla V100" in line]

    assert ends == [
        "/ 16160 30 71 well",
        "/ 16160 0 35 lost",
        "0 35 needs a reset",
        "/ 16160 0 35 unplugged",
    ]


def test_what_was_done_can_be_undone(state: Path) -> None:
    """`restore` takes back what a card reported; `recover` is the agent's command alone."""
    for command in (
        ["lost", "--card", 1],
        ["restore", "--card", 1],
        ["xid", 95, "--card", 2],
        ["restore", "--card", 2],
        ["unplug", "--card", 3],
        ["plug", "--card", 3],
        ["hang"],
        ["unhang"],
    ):
        assert _run(*command, "--state", state).exit_code == 0

    shown = _run("show", "--state", state).output

    assert shown.count(" well") == 4
    assert "hangs" not in shown


def test_a_driver_upgrade_shows(state: Path) -> None:
    """CUDA's version follows."""
    assert _run("driver-upgrade", "550.54.15", "--state", state).exit_code == 0

    assert "driver 550.54.15, CUDA 12.4" in _run("show", "--state", state).output


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param(["xid", 79, "--card", 9], "there is no card 9", id="card"),
        pytest.param(["use", "--card", 0], "give --memory-mib", id="nothing to do"),
        pytest.param(["driver-upgrade", "newest"], "'newest' is not of the form", id="driver"),
        pytest.param(["xid", 0, "--card", 0], "wanted a whole number from 1 to 1000", id="xid"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_status_2(
    state: Path, capsys: pytest.CaptureFixture[str], command: list[object], reason: str
) -> None:
    """Named, and nothing is changed."""
    assert reason in _refused(capsys, *command, "--state", state)


def test_a_card_is_cut_and_made_whole_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show` has the instances; a profile that the model lacks is refused with those it has."""
    assert _run("create", "--profile", "a100", "--cards", 1, "--state", tmp_path).exit_code == 0
    on_card = ("--card", 0, "--state", tmp_path)

    assert _run("cut", "3g.20gb", "1g.5gb", *on_card).exit_code == 0
    shown = _run("show", "--state", tmp_path).output
    assert "3g.20gb" in shown
    assert "1g.5gb" in shown

    assert "has MIG profiles 1g.5gb, 2g.10gb" in _refused(capsys, "cut", "1g.10gb", *on_card)
    assert "give either PROFILES or" in _refused(capsys, "cut", "1g.5gb", "--whole", *on_card)

    assert _run("cut", "--whole", *on_card).exit_code == 0
    assert "3g.20gb" not in _run("show", "--state", tmp_path).output
