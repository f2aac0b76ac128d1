"""`gpu-device-plugin`: the one program of this project."""

import asyncio
import enum
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from gpu_device_plugin import __version__
from gpu_device_plugin.apps.agent.lifecycle.admin_socket import SOCKET_NAME, ask
from gpu_device_plugin.cli.demo import demo
from gpu_device_plugin.cli.directories import directory_option
from gpu_device_plugin.cli.lifecycle import check_upgrade, cleanup, uninstall
from gpu_device_plugin.cli.logs import configure_logs
from gpu_device_plugin.cli.simulate import simulate
from gpu_device_plugin.config import ENVIRONMENT_PREFIX, Settings, describe, kind_of, load_settings
from gpu_device_plugin.errors import ConfigError, GpuPluginError

EXIT_FAILED = 1
EXIT_USAGE = 2
_SHORT = 16
"""Choices up to this length are shown in the flag itself, longer ones in its help text."""
_run_dir = directory_option("run_dir", "The --run-dir of the agent on this node.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpu-device-plugin")
def cli() -> None:
    """Fractions of GPUs, schedulable and real.

    `agent` runs on every GPU node. `why` and `recover` are for a person on such a node, or in
    the agent's pod. The chart's hooks run `uninstall` and `check-upgrade`; `cleanup` removes
    what an uninstall leaves on a node. `demo` and `simulate` need no GPU.
    """


def _agent_options(command: click.Command) -> click.Command:
    """One option for each setting, so that no flag can be forgotten."""
    texts = describe()
    for field in reversed(msgspec.structs.fields(Settings)):
        flag = "--" + field.name.replace("_", "-")
        option = click.Option(
            [flag],
            is_flag=kind_of(field) is bool,
            default=None,
            help=texts[field.name] + _choices(kind_of(field)) + _shown(field.default),
            metavar=_metavar(field.name, kind_of(field)),
        )
        command.params.insert(0, option)
    return command


def _metavar(name: str, kind: object) -> str | None:
    """The placeholder of the value in the help text; None for a switch."""
    if kind is bool:
        return None
    if kind is float:
        return "SECONDS"
    if len(_values(kind)) in range(1, _SHORT):
        return _values(kind)
    is_path = name == "kubeconfig" or name.endswith(("_dir", "_library", "_table"))
    return "PATH" if is_path else name.rpartition("_")[2].upper()


def _choices(kind: object) -> str:
    alternatives = _values(kind)
    is_told = len(alternatives) < _SHORT
    return "" if is_told else f" One of {alternatives.replace('|', ', ')}."


def _values(kind: object) -> str:
    """The values of a setting that has a fixed set of them."""
    is_choice = isinstance(kind, type) and issubclass(kind, enum.Enum)
    return "|".join(str(member.value) for member in kind) if is_choice else ""  # type: ignore[attr-defined]


def _shown(default: object) -> str:
    if default in (False, ""):
        return ""
    return f" [default: {getattr(default, 'value', default)}]"


@cli.command()
@click.option(
    "--config",
    envvar=ENVIRONMENT_PREFIX + "CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="A YAML file of settings; keys are the flags' names with underscores.",
)
def agent(config: Path | None, **flags: object) -> None:
    """Serve this node's cards to its kubelet, until SIGTERM.

    Each flag has an environment variable, GPU_DEVICE_PLUGIN_ and its name in capitals
    (--state-dir: GPU_DEVICE_PLUGIN_STATE_DIR), and a key in the file of --config. The flag
    takes precedence over the environment, the environment over the file, and a label of the
    Node over all of them.

    Exit codes: 0 ended on request, 1 failed, 2 wrong settings or a second agent on this node,
    75 to be started again because the driver has changed.
    """
    from gpu_device_plugin.apps.agent.run import run_agent

    settings = load_settings(flags, os.environ, config)
    configure_logs(settings.log_level, settings.log_format)
    sys.exit(asyncio.run(run_agent(settings)))


_agent_options(agent)


@cli.command()
@click.argument("pod", metavar="NAMESPACE/POD")
@_run_dir
def why(pod: str, run_dir: str) -> None:
    """Show what a pod on this node got, or why it was refused.

    Shows what it asked, what each card had free at that moment, what was decided and why, and
    what it holds now. The agent keeps its last 1000 decisions until it is restarted.
    """
    namespace, slash, name = pod.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise ConfigError(f"{pod!r} is not NAMESPACE/POD; for instance default/cuda-sample")
    question = {"command": "why", "namespace": namespace, "name": name}
    click.echo(asyncio.run(ask(Path(run_dir) / SOCKET_NAME, question)), nl=False)


@cli.command()
@click.argument("card", metavar="INDEX|UUID")
@_run_dir
def recover(card: str, run_dir: str) -> None:
    """Take a card back into service after its reset.

    Some faults (XID 48, 74, 95, 119, 120 and unknown ones) keep a card out of service until
    the driver reports its reset, is loaded again, or this command is given. A fault that is
    still there takes the card out again. INDEX is NVML's, as nvidia-smi shows it.
    """
    question = {"command": "recover", "card": card}
    click.echo(asyncio.run(ask(Path(run_dir) / SOCKET_NAME, question)), nl=False)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


for _command in (simulate, demo, uninstall, check_upgrade, cleanup):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; errors of ours become one line and an exit code."""
    try:
        cli(arguments, standalone_mode=True)
    except ConfigError as error:
        click.echo(f"gpu-device-plugin: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except GpuPluginError as error:
        click.echo(f"gpu-device-plugin: {error}", err=True)
        sys.exit(EXIT_FAILED)
