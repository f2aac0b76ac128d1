"""How a program of the command line shows help, and how it ends: exit codes, and one line for an error."""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from difflib import get_close_matches
from math import inf, nan
from textwrap import TextWrapper
from typing import Any, NoReturn

import click
import structlog

from gpu_device_plugin.domain.wording import wanted_number
from gpu_device_plugin.errors import ConfigError, GpuPluginError, NotKnownError, clip

EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN, EXIT_INTERRUPTED = 1, 2, 3, 130
_CODES = {ConfigError: EXIT_USAGE, NotKnownError: EXIT_UNKNOWN}
# Help breaks lines between words only: a name with hyphens stays in one piece, to be found and copied.
TextWrapper.wordsep_re = TextWrapper.wordsep_simple_re


class Number(click.ParamType[float]):
    """A number within bounds."""

    name = "number"

    def __init__(self, least: int, most: int | None = None, kind: type[float] = int) -> None:
        self._least, self._most, self._kind = least, most, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            found = self._kind(value)
        except ValueError:
            found = nan
        if not self._least <= found <= (inf if self._most is None else self._most):
            wanted = wanted_number(self._least, self._most, is_whole=self._kind is int)
            self.fail(f"{clip(str(value))!r} is not valid: {wanted}", param, ctx)
        return found


async def until_sigterm(work: Coroutine[Any, Any, None]) -> None:
    """Do it until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        structlog.get_logger("program").info("ended")


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
        _end(name, _text(error, name), error.exit_code)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except GpuPluginError as error:
        _end(name, str(error), _CODES.get(type(error), EXIT_FAILED))


def _text(error: click.ClickException, name: str) -> str:
    """What is wrong: which flag, argument or command, what was given, and what it may be."""
    near: Sequence[str] = ()
    text = error.message
    if isinstance(error, click.BadParameter) and error.param is not None:
        text = _bad(error, error.param)
    elif isinstance(error, click.exceptions.NoSuchCommand) and error.ctx is not None:
        names = getattr(error.ctx.command, "list_commands", lambda _: ())(error.ctx)
        text = f"no command {error.command_name!r}"
        near = get_close_matches(error.command_name, names)
    elif isinstance(error, click.NoSuchOption) and error.ctx is not None:
        text, params = f"no option {error.option_name!r}", error.ctx.command.params
        known = {name.lstrip("-"): name for param in params for name in param.opts}
        near = [known[n] for n in get_close_matches(error.option_name.lstrip("-"), known)]
        verbs = getattr(error.ctx.command, "commands", {}).values()
        if any(error.option_name in param.opts for verb in verbs for param in verb.params):
            text, near = (
                f"{text} before the verb: options follow it, as in `{name} VERB {error.option_name} ...`",
                (),
            )
    elif isinstance(error, click.UsageError):
        text = text[:1].lower() + text[1:].rstrip(".")
    return text + (f"; did you mean {' or '.join(map(repr, near))}?" if near else "")


def _bad(error: click.BadParameter, param: click.Parameter) -> str:
    name = param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name
    choices = param.type.choices if isinstance(param.type, click.Choice) else ()
    wanted = f": wanted one of {', '.join(map(str, choices))}" if choices else ""
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing{wanted}"
    given, _, _ = error.message.partition(" is not one of ")  # as click has it
    return f"{name}: {given} is not valid{wanted}" if wanted else f"{name}: {error.message}"


def _end(name: str, text: str, code: int) -> NoReturn:
    click.echo(f"{name}: {text}", err=True)
    sys.exit(code)
