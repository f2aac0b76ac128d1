"""The agent's directories, as options of other commands."""

from collections.abc import Callable
from typing import TypeVar

import click

from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.config.sources import ENVIRONMENT_PREFIX

_Command = TypeVar("_Command", bound=Callable[..., None])
_defaults = Settings()


def directory_option(key: str, text: str) -> Callable[[_Command], _Command]:
    """An option with the flag, the environment variable and the default of the agent's setting.

    Args:
        key: The setting.
        text: What it is, for the help.
    """
    return click.option(
        f"--{key.replace('_', '-')}",
        envvar=ENVIRONMENT_PREFIX + key.upper(),
        show_envvar=True,
        default=getattr(_defaults, key),
        show_default=True,
        metavar="PATH",
        help=text,
    )
