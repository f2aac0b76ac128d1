"""`gpu-device-plugin`: the one program of this project."""

import gpu_device_plugin.cli.plain_structlog  # first

# isort: split
import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import structlog

import gpu_device_plugin
from gpu_device_plugin import __version__
from gpu_device_plugin.agent.node_checks.admin_socket import SOCKET_NAME, ask
from gpu_device_plugin.cli.program import run_program, until_sigterm
from gpu_device_plugin.cli.setting_options import SettingsCommand, setting_option
from gpu_device_plugin.errors import shorten
from gpu_device_plugin.settings.agent_settings import Settings, load_settings
from gpu_device_plugin.settings.controller_settings import (
    ControllerSettings,
    load_controller_settings,
)
from gpu_device_plugin.settings.setting import ENVIRONMENT_PREFIX, LogFormat, suggest_key

_FIRST = ("timestamp", "level", "event")
_MOST_ENTRIES = 64
_LONGEST_TRACE = 16_384
_run_dir = setting_option("run_dir", "The --run-dir of the agent on this node.")


_ELSEWHERE = {
    "check-upgrade": "lifecycle",
    "cleanup": "lifecycle",
    "clear-nodes": "lifecycle",
    "limit-keeper": "card_commands",
    "mig": "card_commands",
    "mps-daemon": "card_commands",
    "page": "page",
    "simulate": "simulate",
    "uninstall": "lifecycle",
}
"""Commands and the modules beside this one that have them."""


class _Program(click.Group):
    """Imports a command of another module when it is asked for: an agent has no use for it."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            module = import_module(f"gpu_device_plugin.cli.{_ELSEWHERE[cmd_name]}")
            self.add_command(getattr(module, cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_ELSEWHERE, *super().list_commands(ctx)})


@click.group(
    cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="gpu-device-plugin %(version)s")
def cli() -> None:
    """Share GPUs between pods by memory and compute, with enforced limits.

    `agent` runs on every GPU node, and `controller` once in a cluster. `page` shows the whole
    cluster in a browser. `why` and `recover` are for a person on a GPU node or in the agent's pod.
    The chart's hooks run `uninstall`, `clear-nodes` and `check-upgrade`. `cleanup` removes what an
    uninstall leaves on a node. `simulate` needs no GPU.
    """
    configure_logs("info", LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON)


_config = click.option(
    "--config",
    envvar=ENVIRONMENT_PREFIX + "CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="A YAML file of settings; keys are the flags' names with underscores.",
)


@cli.command(cls=SettingsCommand, settings=Settings)
@_config
def agent(config: Path | None, **flags: object) -> None:
    """Serve this node's cards to its kubelet, until SIGTERM.

    Each flag has an environment variable, GPU_DEVICE_PLUGIN_ and its name in capitals
    (--state-dir: GPU_DEVICE_PLUGIN_STATE_DIR), and a key in the file of --config. The flag
    takes precedence over the environment, the environment over the file, and a label of the
    Node over all of them.

    Exit codes: 0 ended on request, 1 failed, 2 wrong settings or a second agent on this node,
    75 the driver has changed or the node's label names other settings: start the agent again.
    """
    import signal

    # It asks to read NVIDIA's configuration again, which has not been read yet; else it ends the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from gpu_device_plugin.agent.node_checks.node_settings import choose, file_of

    if "NVIDIA_MIG_MONITOR_DEVICES" in os.environ:
        from gpu_device_plugin.disk.capabilities import give_up_sys_admin

        give_up_sys_admin()
    from gpu_device_plugin.agent.run_agent import run_agent

    _warn_of_unknown(os.environ)  # before an error that it may explain
    settings, chosen = load_settings(flags, os.environ, config), ""
    configure_logs(settings.log_level.value, settings.log_format)
    if settings.node_settings_dir and not settings.standalone:
        chosen = asyncio.run(choose(settings))
        settings = load_settings(flags, os.environ, config, file_of(settings, chosen))
    sys.exit(asyncio.run(run_agent(settings, chosen=chosen)))


@cli.command(cls=SettingsCommand, settings=ControllerSettings)
@_config
def controller(config: Path | None, **flags: object) -> None:
    """Answer kube-scheduler as its extender, until SIGTERM.

    A pod then goes only to a node where one card has room for it, and waits while there is none.
    Flags, environment variables and file work as for `agent`.

    Exit codes: 0 ended on request, 1 failed, 2 wrong settings.
    """
    from gpu_device_plugin.controller.run_controller import run_controller

    _warn_of_unknown(os.environ)
    settings = load_controller_settings(flags, os.environ, config)
    configure_logs(settings.log_level.value, settings.log_format)
    asyncio.run(until_sigterm(run_controller(settings)))


@cli.command()
@click.argument("pod", metavar="NAMESPACE/POD")
@_run_dir
def why(pod: str, run_dir: str) -> None:
    """Show what a pod on this node got, or why it was refused.

    Shows what the pod asked for, what each card had free at that moment, what the agent decided
    and why, and what the pod holds now. The agent keeps its last 1000 decisions until it is
    restarted.
    """
    from gpu_device_plugin.cli.pod_argument import parse_pod

    namespace, name = parse_pod(pod)
    question = {"command": "why", "namespace": namespace, "name": name}
    click.echo(asyncio.run(ask(Path(run_dir) / SOCKET_NAME, question)), nl=False)


@cli.command()
@click.argument("card", metavar="INDEX|UUID")
@_run_dir
def recover(card: str, run_dir: str) -> None:
    """Count a card as healthy again after its reset.

    Some faults (XID 48, 74, 95, 119, 120 and unknown ones) keep a card unhealthy until the
    driver reports its reset or is loaded again, or until this command is given. The command is
    refused while NVML still asks for a reset. A failed probe or a new XID takes the card out again.
    INDEX is the index that nvidia-smi shows.
    """
    question = {"command": "recover", "card": card}
    click.echo(asyncio.run(ask(Path(run_dir) / SOCKET_NAME, question)), nl=False)


@cli.command()
def version() -> None:
    """Print the versions of program and library, and the commit.

    The commit is the one that the image or the checkout was built from; the library's version is
    the name of its directory on a node.
    """
    from gpu_device_plugin.agent.admission.library_installer import own_version

    click.echo(f"gpu-device-plugin {__version__}")
    click.echo(f"commit {commit() or 'unknown'}")
    click.echo(f"library {own_version() or 'not built'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program."""
    run_program(cli, "gpu-device-plugin", arguments)


def configure_logs(level: str, log_format: LogFormat) -> None:
    """JSON lines for machines, aligned text for a terminal."""
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _short,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
    )


def _warn_of_unknown(variables: Iterable[str]) -> None:
    """Of those that are nearly a setting's; Kubernetes too makes some with our prefix, for a Service."""
    settings = (*fields(Settings), *fields(ControllerSettings))
    known = ["config", *(each.name for each in settings)]
    for name in variables:
        key = name.partition(ENVIRONMENT_PREFIX)[2].lower()
        is_known = key in known or "_port" in key or key.endswith("_service_host")
        if not is_known and (hint := suggest_key(key, known, "")):
            structlog.get_logger("settings").warning("unknown variable", name=name, hint=hint)


def _short(
    _logger: object, _method: str, line: structlog.types.EventDict
) -> structlog.types.EventDict:
    """What happened comes first, and no value is longer than a text may be, whatever stands in it."""
    trace = line.pop("exception", None)
    short = {key: _value(line[key]) for key in dict.fromkeys((*_FIRST, *line))}
    return short if trace is None else {**short, "exception": str(trace)[-_LONGEST_TRACE:]}


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        more = len(value) - _MOST_ENTRIES
        shown = [_value(each) for each in value[:_MOST_ENTRIES]]
        return [*shown, f"and {more} more"] if more > 0 else shown
    return shorten(value) if isinstance(value, str) else value


_PACKAGE = Path(gpu_device_plugin.__file__).parent
_CHECKOUT = _PACKAGE.parents[1]


def commit() -> str:
    """As the image's build wrote it beside the package, or of the checkout; else empty."""
    written = _PACKAGE / "COMMIT"
    if written.is_file():
        return written.read_text(encoding="utf-8").strip()
    if not (_CHECKOUT / ".git").exists():
        return ""
    command = ["git", "-C", str(_CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
