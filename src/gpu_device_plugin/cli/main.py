"""`gpu-device-plugin`: the one program of this project."""

import asyncio
import os
import sys
from pathlib import Path

import click
import msgspec

from gpu_device_plugin import __version__
from gpu_device_plugin.apps.agent.desk import SOCKET_NAME, ask
from gpu_device_plugin.cli.logs import configure_logs
from gpu_device_plugin.cli.simulate import simulate
from gpu_device_plugin.config import Settings, describe, kind_of, load_settings
from gpu_device_plugin.errors import ConfigError, EdgeError, GpuPluginError

EXIT_USAGE = 2
_RUN_DIR = "/run/gpu-device-plugin"
_run_dir = click.option(
    "--run-dir",
    default=lambda: os.environ.get("GPU_DEVICE_PLUGIN_RUN_DIR", _RUN_DIR),
    help=f"The agent's --run-dir (default {_RUN_DIR}).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpu-device-plugin")
def cli() -> None:
    """Fractions of GPUs, schedulable and real."""


def _agent_options(command: click.Command) -> click.Command:
    """One option for each setting, so that a flag can never be forgotten here."""
    texts = describe()
    for field in reversed(msgspec.structs.fields(Settings)):
        flag = "--" + field.name.replace("_", "-")
        is_switch = kind_of(field) is bool
        command.params.insert(
            0,
            click.Option(
                [flag],
                is_flag=is_switch,
                default=None,
                help=f"{texts[field.name]} [default: {_shown(field.default)}]",
                metavar=None if is_switch else "VALUE",
            ),
        )
    return command


def _shown(default: object) -> str:
    return str(getattr(default, "value", default)) or "none"


@cli.command()
@click.option("--config", type=click.Path(path_type=Path), help="A YAML file of settings.")
def agent(config: Path | None, **flags: object) -> None:
    """Serve this node's cards to its kubelet."""
    from gpu_device_plugin.apps.agent.run import run_agent

    file = config or (
        Path(os.environ["GPU_DEVICE_PLUGIN_CONFIG"])
        if os.environ.get("GPU_DEVICE_PLUGIN_CONFIG")
        else None
    )
    settings = load_settings(flags, os.environ, file)
    configure_logs(settings.log_level, settings.log_format)
    sys.exit(asyncio.run(run_agent(settings)))


_agent_options(agent)


@cli.command()
@click.argument("pod", metavar="NAMESPACE/POD")
@_run_dir
def why(pod: str, run_dir: str) -> None:
    """Tell what was decided about a pod on this node, and why."""
    namespace, slash, name = pod.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise ConfigError(f"{pod!r} is not NAMESPACE/POD")
    question = {"command": "why", "namespace": namespace, "name": name}
    click.echo(asyncio.run(ask(Path(run_dir) / SOCKET_NAME, question)), nl=False)


@cli.command()
@click.argument("card", metavar="INDEX|UUID")
@_run_dir
def recover(card: str, run_dir: str) -> None:
    """Say that a card is well again, after it has been reset or replaced."""
    question = {"command": "recover", "card": card}
    click.echo(asyncio.run(ask(Path(run_dir) / SOCKET_NAME, question)), nl=False)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


cli.add_command(simulate)


def main() -> None:
    """Run the program; errors that we know become one line and an exit code."""
    try:
        cli(standalone_mode=True)
    except ConfigError as error:
        click.echo(f"gpu-device-plugin: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except (EdgeError, GpuPluginError) as error:
        click.echo(f"gpu-device-plugin: {error}", err=True)
        sys.exit(1)
