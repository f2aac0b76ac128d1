"""Flags of the commands that have settings."""

import enum

import click
import msgspec

from gpu_device_plugin.config.sources import FLAG_ALIASES, REPEATED_FLAGS, describe, kind_of

_SHORT = 16
"""Choices up to this length are shown in the flag itself, longer ones in its help text."""


def setting_options(kind: type[msgspec.Struct], command: click.Command) -> None:
    """Give a command one option for each setting, so that no flag can be forgotten."""
    texts = describe(kind)
    for field in reversed(msgspec.structs.fields(kind)):
        flag = "--" + field.name.replace("_", "-")
        option = click.Option(
            [flag, *FLAG_ALIASES.get(field.name, ())],
            is_flag=False,
            flag_value="true" if kind_of(field) is bool else None,
            default=None,
            multiple=field.name in REPEATED_FLAGS,
            callback=_joined if field.name in REPEATED_FLAGS else None,
            help=texts[field.name] + _choices(kind_of(field)) + _shown(field.default),
            metavar=_metavar(field.name, kind_of(field)),
        )
        command.params.insert(0, option)


def _joined(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> str | None:
    """One text; None where the flag is not given."""
    return ",".join(values) if values else None


def _metavar(name: str, kind: object) -> str | None:
    """The placeholder of the value in the help text."""
    if kind is bool:
        return "[true|false]"
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
    if default in (False, "", None):
        return ""
    return f" [default: {getattr(default, 'value', default)}]"
