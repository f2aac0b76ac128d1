"""How a program of the command line ends: exit codes, and one line for an error."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from gpu_device_plugin.errors import ConfigError, GpuPluginError, NotKnownError

EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 3, 130, 143
_CODES = {ConfigError: EXIT_USAGE, NotKnownError: EXIT_UNKNOWN}


def run_program(command: click.Command, name: str, arguments: Sequence[str] | None) -> NoReturn:
    """Run a command and end the process."""
    try:
        sys.exit(command.main(arguments, prog_name=name, standalone_mode=False))
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} -h'.", err=True)
        _end(name, error.format_message(), error.exit_code)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except GpuPluginError as error:
        _end(name, str(error), _CODES.get(type(error), EXIT_FAILED))


def _end(name: str, text: str, code: int) -> NoReturn:
    click.echo(f"{name}: {text}", err=True)
    sys.exit(code)
