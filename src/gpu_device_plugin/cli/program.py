"""How a program of the command line shows help, and how it ends: exit codes, and one line for an error."""

import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

import click

from gpu_device_plugin.errors import ConfigError, GpuPluginError, NotKnownError

EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN, EXIT_INTERRUPTED = 1, 2, 3, 130
_CODES = {ConfigError: EXIT_USAGE, NotKnownError: EXIT_UNKNOWN}
_HYPHEN, _UNBROKEN = "-", "\N{NON-BREAKING HYPHEN}"


class _Help(click.HelpFormatter):
    """Breaks lines between words only: a name with hyphens stays in one piece, to be found and copied."""

    def write(self, string: str) -> None:
        """What is written, with plain hyphens again."""
        super().write(string.replace(_UNBROKEN, _HYPHEN))

    def write_text(self, text: str) -> None:
        """A paragraph."""
        super().write_text(text.replace(_HYPHEN, _UNBROKEN))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """A list of names with a text each."""
        kept = [(name, text.replace(_HYPHEN, _UNBROKEN)) for name, text in rows]
        super().write_dl(kept, col_max, col_spacing)


click.Context.formatter_class = _Help


def run_program(command: click.Command, name: str, arguments: Sequence[str] | None) -> NoReturn:
    """Run a command and end the process."""
    try:
        sys.exit(command.main(arguments, prog_name=name, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit()
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
