"""The promise: help is complete, an error names the thing, and the exit code tells which kind."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from gpu_device_plugin import __version__
from gpu_device_plugin.agent.node_checks.admin_socket import SOCKET_NAME
from gpu_device_plugin.cli.main import cli, main
from gpu_device_plugin.settings.agent_settings import Settings
from gpu_device_plugin.settings.nvidia_settings import IgnoredSettings, NvidiaSettings
from gpu_device_plugin.settings.setting import ENVIRONMENT_PREFIX, settings_of

COMMANDS = (
    "agent",
    "check-upgrade",
    "cleanup",
    "clear-nodes",
    "controller",
    "limit-keeper",
    "mig",
    "mps-daemon",
    "page",
    "recover",
    "simulate",
    "uninstall",
    "version",
    "why",
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own settings."""
    for name in (*os.environ,):
        if name.startswith(ENVIRONMENT_PREFIX) or name in ("NODE_NAME", "KUBECONFIG"):
            monkeypatch.delenv(name)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    code = ended.value.code
    return code if isinstance(code, int) else 0, captured.out, captured.err


@contextmanager
def desk(run_dir: Path, answer: dict[str, object]) -> Iterator[list[dict[str, str]]]:
    """Something that listens where an agent would, and answers one question."""
    asked: list[dict[str, str]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / SOCKET_NAME))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as stream:
                asked.append(json.loads(stream.readline()))
                stream.write(json.dumps(answer) + "\n")

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        thread.join(timeout=5)


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)])
def test_every_command_has_help_that_fits_80_columns(words: tuple[str, ...]) -> None:
    """No text is cut off with dots but in a list of commands."""
    result = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80)

    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize("words", [("check-upgrade", "--mode"), ("uninstall", "--timeout")])
def test_help_shows_what_a_command_is_about_before_how_it_reaches_the_cluster(
    words: tuple[str, str],
) -> None:
    output = CliRunner().invoke(cli, [words[0], "--help"]).output

    assert output.index(f"  {words[1]} ") < output.index("  --kubeconfig ")
    assert "<=" not in output  # click's way to show what a number may be


@pytest.mark.parametrize("words", [("agent",), ("controller",), ("mig", "apply")])
def test_help_breaks_no_name_at_a_hyphen(words: tuple[str, ...]) -> None:
    """So that it can be found and copied."""
    output = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).output

    assert not re.findall(r"[A-Za-z]-$", output, re.MULTILINE)
    assert output.isascii()


@pytest.mark.parametrize("words", [(), ("mig",)])
def test_a_call_without_a_verb_shows_help_and_succeeds(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, output, errors = run(capsys, *words)

    assert (code, errors) == (0, "")
    assert output == run(capsys, *words, "--help")[1]


def test_the_list_of_commands_is_whole() -> None:
    """Each with a sentence that was not cut off."""
    result = CliRunner().invoke(cli, ["--help"], terminal_width=78)  # as on 80 columns

    listed = result.output.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_the_agent_has_a_flag_for_every_setting() -> None:
    """None can be forgotten."""
    output = CliRunner().invoke(cli, ["agent", "--help"]).output

    for each in settings_of(Settings):
        assert re.search(rf"{each.flag}[ ,]", output)


def test_the_help_of_the_agent_has_its_own_settings_before_nvidias() -> None:
    """A newcomer needs none of the latter."""
    output = CliRunner().invoke(cli, ["agent", "--help"]).output

    groups = re.findall(r"^(\S.*):$", output, re.MULTILINE)
    ordered = [Settings.HEADING, NvidiaSettings.HEADING, IgnoredSettings.HEADING, "Options"]
    assert groups == ordered
    assert output.index("--node-name") < output.index("--mig-strategy") < output.index("--config ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("agent", "--bogus"), "no option '--bogus'\n"),
        (("agent", "--mod"), "no option '--mod'; did you mean '--mode'?\n"),
        (("bogus",), "bogus"),
        (("simulat",), "no command 'simulat'; did you mean 'simulate'?"),
        (("check-upgrade",), "--mode is missing: wanted one of core_mem, cgpu,"),
        (
            ("uninstall", "--timeout", "0"),
            "--timeout: '0' is not valid: wanted a whole number from",
        ),
        (("agent", "--node-name", "n", "--metrics-address", "x"), "--metrics-address: 'x' is not"),
        (("agent",), "--node-name (NODE_NAME)"),
        (("agent", "--mode"), "option '--mode' requires an argument"),
        (("agent", "--node-name", "n", "--log-level", "loud"), "wanted one of debug, info,"),
        (
            ("agent", "--node-name", "n", "--recovery-seconds", "x"),
            "wanted a number from 1 to 86400",
        ),
        (("agent", "--node-name", "n", "--mode", "cgpuu"), "--mode: 'cgpuu'"),
        (("agent", "--node-name", "n", "--recovery-seconds", "0"), "--recovery-seconds"),
        (("agent", "--node-name", "n", "--run-dir", "x"), "--run-dir: 'x'"),
        (("agent", "--config", "/nowhere.yaml"), "/nowhere.yaml"),
        (("why", "pod-without-namespace"), "pod-without-namespace"),
        (("why", "a/b/c"), "a/b/c"),
        (("why",), "NAMESPACE/POD"),
        (("recover",), "INDEX|UUID"),
        (("simulate", "create", "--profile", "v1000"), "v1000"),
        (("simulate", "xid", "79", "--card", "0", "--state", "/nowhere"), "/nowhere"),
    ],
)
def test_a_wrong_word_is_named_and_is_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    named: str,
) -> None:
    """Flag, value, file or argument; the line that says so begins with the program's name."""
    monkeypatch.setenv(
        "GPU_DEVICE_PLUGIN_STATE_DIR", str(tmp_path)
    )  # that of an agent here is taken
    code, _, errors = run(capsys, *words)

    assert code == 2, errors
    assert named in errors
    assert errors.splitlines()[-1].startswith("gpu-device-plugin: ")


def test_an_unknown_key_of_the_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the file that it stands in."""
    file = tmp_path / "settings.yaml"
    file.write_text("node_name: n1\nmemory-unit: GiB\n")

    code, _, errors = run(capsys, "agent", "--config", str(file))

    assert code == 2
    assert f"{file}: unknown key 'memory-unit'" in errors


def test_mig_apply_without_a_driver_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("mig", "apply", "MIG1g", "--kubelet-dir", str(tmp_path), "--nvml-library", "/no.so")
    code, _, errors = run(capsys, *words)

    assert code == 1
    assert re.match(r"gpu-device-plugin: libnvidia-ml\.so\.1 is not (in|on) this ", errors)
    assert "/no.so: cannot open" in errors


@pytest.mark.parametrize("words", [("why", "default/a"), ("recover", "0")])
def test_without_an_agent_the_socket_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Exit code 1: the settings are right, the agent is not there."""
    code, _, errors = run(capsys, *words, "--run-dir", str(tmp_path))

    assert code == 1
    assert errors.startswith(f"gpu-device-plugin: {tmp_path / SOCKET_NAME}: no agent answers")


def test_why_asks_the_agent_and_prints_its_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As they are."""
    with desk(tmp_path, {"text": "decided\n"}) as asked:
        code, output, _ = run(capsys, "why", "default/a", "--run-dir", str(tmp_path))

    assert (code, output) == (0, "decided\n")
    assert asked == [{"command": "why", "namespace": "default", "name": "a"}]


def test_what_the_agent_does_not_know_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A script can tell an unknown pod from an agent that is away."""
    with desk(tmp_path, {"error": "pod default/a: nothing", "is_unknown": True}):
        code, _, errors = run(capsys, "why", "default/a", "--run-dir", str(tmp_path))

    assert (code, errors) == (3, "gpu-device-plugin: pod default/a: nothing\n")


def test_what_the_agent_refuses_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit code 1, on standard error."""
    with desk(tmp_path, {"error": "no card '9' on this node"}) as asked:
        code, output, errors = run(capsys, "recover", "9", "--run-dir", str(tmp_path))

    assert (code, output) == (1, "")
    assert errors == "gpu-device-plugin: no card '9' on this node\n"
    assert asked == [{"command": "recover", "card": "9"}]


def test_the_run_directory_can_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the agent's pod, where a person has only to type the pod's name."""
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}RUN_DIR", str(tmp_path))
    with desk(tmp_path, {"text": "yes\n"}):
        code, output, _ = run(capsys, "why", "default/a")

    assert (code, output) == (0, "yes\n")


@pytest.mark.parametrize("words", [("why", "default/a"), ("recover", "0")])
@pytest.mark.parametrize("value", ["", "/elsewhere"])
def test_an_empty_variable_is_none_and_the_agents_default_holds(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, str], value: str
) -> None:
    """As the agent reads it. The command only reads its words: this machine may have an agent there."""
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}RUN_DIR", value)
    name, *arguments = words
    context = cli.commands[name].make_context(name, arguments)

    assert context.params["run_dir"] == (value or Settings().run_dir)


def test_a_cleanup_looks_where_the_environment_tells_the_agent_to_write(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of its directories, unless a flag names another one."""
    for key in ("state", "run", "library", "kubelet"):
        monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}{key.upper()}_DIR", str(tmp_path / key))
    (tmp_path / "state").mkdir()
    code, _, errors = run(capsys, "cleanup")

    assert code == 1
    assert str(tmp_path / "kubelet" / "pod-resources") in errors
    assert "lock" not in errors


def test_the_file_of_settings_can_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable that the page of settings names."""
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}CONFIG", "/nowhere.yaml")
    code, _, errors = run(capsys, "agent")

    assert code == 2
    assert "/nowhere.yaml: cannot be read" in errors


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_a_variable_that_is_nearly_a_settings_is_warned_of(
    program: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of Kubernetes' for a Service, nor one of ours for tests, nor another program's."""
    for name in ("STATE_DIRECTORY", "METRICS_PORT", "METRICS_SERVICE_HOST", "E2E_LANE", "MODE"):
        monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}{name}", "default")
    _, _, errors = run(capsys, program, "--kubeconfig", "/nowhere")
    told = [json.loads(line) for line in errors.splitlines() if "unknown variable" in line]

    assert [(line["name"], line["hint"]) for line in told] == [
        (f"{ENVIRONMENT_PREFIX}STATE_DIRECTORY", "did you mean 'state_dir'?")
    ]


def test_the_version_is_told_in_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """As a command, with commit and library, and as a flag."""
    first, commit, library = run(capsys, "version")[1].splitlines()
    assert first == f"gpu-device-plugin {__version__}"
    assert re.fullmatch(r"commit (unknown|[0-9a-f]{12}(-dirty)?|.*-g[0-9a-f]{12}(-dirty)?)", commit)
    assert re.fullmatch(rf"library ({re.escape(__version__)}-[0-9a-f]{{12}}|not built)", library)
    assert run(capsys, "--version")[1] == f"{first}\n"


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("cli.main", {"grpc", "aiohttp", "gpu_device_plugin.simulation"}),
        ("nvml.child", {"argparse", "dataclasses", "typing", "uuid"}),
        ("agent.run_agent", {"numpy", "gpu_device_plugin.controller"}),
    ],
)
def test_the_agent_does_not_load_what_only_others_need(module: str, others: set[str]) -> None:
    """It stands on every node, with little memory, and is to start within a second."""
    loaded = f"import sys, gpu_device_plugin.{module}; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", loaded], check=True, capture_output=True, text=True
    ).stdout

    assert not others & set(output.split())


@pytest.mark.parametrize("name", ["controller", "uninstall", "clear-nodes", "page"])
def test_a_command_without_a_usable_kubeconfig_ends_at_once(name: str, tmp_path: Path) -> None:
    """Waiting would bring none; an agent goes on, because it serves without the API server too."""
    gone = tmp_path / "gone"
    ended = subprocess.run(
        [sys.executable, "-m", "gpu_device_plugin", name, f"--kubeconfig={gone}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"gpu-device-plugin: kubeconfig {gone}: ")
    assert ended.stderr.count("\n") == 1
