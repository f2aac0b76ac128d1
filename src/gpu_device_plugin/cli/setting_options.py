"""Flags of the commands that have settings, and their order in `--help`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpu_device_plugin.settings.agent_settings import Settings
from gpu_device_plugin.settings.setting import Setting, settings_of

_SHORT = 16
"""Choices up to this length are shown in the flag itself, longer ones in its help text."""
_Command = TypeVar("_Command", bound=Callable[..., None])


class SettingsCommand(click.Command):
    """A command with one option for each setting, in groups, so that no flag can be forgotten."""

    def __init__(self, *args: Any, settings: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = {each.key: each for each in in_help_order(settings)}
        self.params[:0] = map(_option, self._settings.values())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            setting = self._settings.get(parameter.name or "")
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(setting.heading if setting else "Options", []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def in_help_order(settings: Any) -> list[Setting]:
    """A program's own settings first, then those of its base classes, each as the class has them."""
    headings = [group.HEADING for group in settings.__mro__[:-1]]
    return sorted(settings_of(settings), key=lambda each: headings.index(each.heading))


def setting_option(key: str, text: str) -> Callable[[_Command], _Command]:
    """An option with the flag, the environment variables and the default of the agent's setting."""
    (setting,) = (each for each in settings_of(Settings) if each.key == key)
    return click.option(
        setting.flag,
        envvar=list(setting.variables),
        show_envvar=True,
        default=None if setting.default is None else setting.shown_default,
        show_default=bool(setting.shown_default),
        metavar=_metavar(setting),
        help=text,
    )


def _option(setting: Setting) -> click.Option:
    told = f" One of {', '.join(setting.choices)}." if len(_shown(setting)) >= _SHORT else ""
    default = f" [default: {setting.shown_default}]" if setting.shown_default else ""
    optional: dict[str, Any] = {"flag_value": "true"} if setting.kind is bool else {}
    return click.Option(
        [setting.flag, *setting.aliases],
        is_flag=False,
        **optional,
        default=None,
        multiple=setting.is_list,
        callback=(lambda _, __, given: ",".join(given) if given else None)
        if setting.is_list
        else None,
        help=setting.text + told + default,
        metavar=_metavar(setting),
    )


def _metavar(setting: Setting) -> str:
    if setting.kind is bool:
        return "[true|false]"
    if setting.kind is float:
        return "SECONDS"
    if len(_shown(setting)) in range(1, _SHORT):
        return _shown(setting)
    key = setting.key
    is_path = key == "kubeconfig" or key.endswith(("_dir", "_library", "_table"))
    return "PATH" if is_path else key.rpartition("_")[2].upper()


def _shown(setting: Setting) -> str:
    return "|".join(setting.choices)
