"""What a setting is, and the one reader: flag, then environment, then file, then default.

A setting is a field `some_name` of a frozen dataclass, made by `setting`. It has the flag
`--some-name`, the environment variable `GPU_DEVICE_PLUGIN_SOME_NAME` and the key `some_name` in the
file. An unknown key in the file is an error; so is an unknown flag (the CLI sees to that). Unknown
environment variables are not: Kubernetes itself makes some with our prefix for a Service.
"""

import dataclasses
import difflib
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from gpu_device_plugin.domain.wording import wanted_number
from gpu_device_plugin.errors import ConfigError, clip
from gpu_device_plugin.settings.bounded_yaml import read_yaml

ENVIRONMENT_PREFIX = "GPU_DEVICE_PLUGIN_"
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off", ""})
Value = TypeVar("Value")
Kind = TypeVar("Kind")
Choice = TypeVar("Choice", bound=enum.Enum)


class LogLevel(enum.Enum):
    """The least severe log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.Enum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a program.

    Attributes:
        own_variables: Environment variables beside that with our prefix, which goes first.
        bounds: Range or pattern, as `msgspec.Meta` takes them.
        convert: Makes the value of a text (of a tuple of texts if `is_list`), or raises ConfigError.
        is_list: The flag may be repeated, and a file may have a list.
        extra: What only a program's own code reads.
        value: Path of the chart's value where a source or its part of the chart fixes it; otherwise it is the
            key in camel case.
    """

    text: str
    own_variables: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    bounds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    convert: Callable[[Any], Any] | None = None
    is_list: bool = False
    extra: Any = None
    value: str = ""
    key: str = ""
    kind: Any = str
    default: Any = None
    heading: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variables(self) -> tuple[str, ...]:
        return (ENVIRONMENT_PREFIX + self.key.upper(), *self.own_variables)

    @property
    def choices(self) -> tuple[str, ...]:
        is_choice = isinstance(self.kind, enum.EnumMeta)
        return tuple(str(member.value) for member in self.kind) if is_choice else ()

    @property
    def shown_default(self) -> str:
        """The default as one writes it; empty where there is none, or it is false."""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return str(getattr(self.default, "value", self.default)) if self.default else ""

    def value_of(self, given: object, source: str) -> Any:
        """The setting's value; ConfigError, which begins with the source, where it is malformed."""
        if given is None and self.default is None:
            return None
        try:
            return self._parse(given)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
        except (msgspec.ValidationError, ValueError) as error:
            why: object = error
            if self.kind in {int, float}:
                least, most = self.bounds.get("ge"), self.bounds.get("le")
                why = wanted_number(least, most, is_whole=self.kind is int)
            raise ConfigError(f"{source}: {clip(str(given))!r} is not valid: {why}") from error

    def _parse(self, given: Any) -> Any:
        if self.is_list:
            texts = given if isinstance(given, list | tuple) else str(given).split(",")
            return (self.convert or ",".join)(tuple(map(str, texts)))
        if self.kind is bool:
            return (self.convert or bool)(_as_bool(given))
        # YAML reads a bare `on` or `off` as a boolean, and a bare number as a number.
        text = ("on" if given else "off") if isinstance(given, bool) else given
        if self.choices and not self.convert:
            return choice(self.kind, text)
        plain = self.kind if self.kind in {int, float} else str
        text = str(text) if plain is str and isinstance(text, int) else text
        value = msgspec.convert(text, Annotated[plain, msgspec.Meta(**self.bounds)], strict=False)
        return self.convert(value) if self.convert else value


def setting(default: Value, text: str, *own_variables: str, **more: Any) -> Value:
    """A field that is a setting."""
    made = Setting(text=text, own_variables=own_variables, **more)
    return dataclasses.field(default=default, metadata={"setting": made})


def settings_of(kind: type) -> tuple[Setting, ...]:
    """Every setting of a program, with the heading of the class that has it."""
    fields: Any = dataclasses.fields(kind)
    classes: Any = kind.__mro__
    return tuple(
        dataclasses.replace(
            each.metadata["setting"],
            key=each.name,
            kind=get_args(each.type)[0] if isinstance(each.type, UnionType) else each.type,
            default=each.default,
            heading=next(g.HEADING for g in classes if each.name in g.__annotations__),
        )
        for each in fields
    )


def load(
    kind: type[Kind], flags: Mapping[str, object], environ: Mapping[str, str], *files: Path | None
) -> tuple[Kind, dict[str, str]]:
    """The settings, and where each value that was given came from, by key.

    A flag that is None was not given, an empty variable counts as unset, and a later file takes
    precedence.

    ConfigError: A key is unknown, or a value is malformed.
    """
    every = settings_of(kind)
    given: dict[str, tuple[object, str]] = {}
    for file in filter(None, files):
        content = read_yaml(file)
        _check_keys(file, content, [each.key for each in every])
        given |= {key: (value, f"{file}: {key}") for key, value in content.items()}
    for each in every:
        variable = next((name for name in each.variables if environ.get(name)), None)
        if variable is not None:
            given[each.key] = environ[variable], variable
        if flags.get(each.key) is not None:
            given[each.key] = str(flags[each.key]), each.flag
    values = {each.key: each.value_of(*given[each.key]) for each in every if each.key in given}
    return kind(**values), {key: source for key, (_, source) in given.items()}


def choice(kind: type[Choice], value: object, wanted: str = "wanted one of") -> Choice:
    """The member with that value."""
    try:
        return kind(str(value))
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise ConfigError(f"{clip(str(value))!r} is not valid: {wanted} {known}") from error


def directory(text: str) -> str:
    """An absolute path."""
    if not text.startswith("/"):
        raise ConfigError(f"{clip(text)!r} is not an absolute path")
    return text


def optional_directory(text: str) -> str:
    """An absolute path, or none."""
    return directory(text) if text else text


def _check_keys(file: Path, keys: Iterable[object], known: list[str]) -> None:
    for key in sorted(str(key) for key in keys if key not in known):
        hint = suggest_key(key, known, "--help lists them, as flags")
        raise ConfigError(f"{file}: unknown key {clip(key)!r}; {hint}")


def suggest_key(key: str, known: list[str], otherwise: str) -> str:
    """A hint for an unknown key: the known key that is nearest, or `otherwise` where none is near."""
    near = difflib.get_close_matches(clip(key), known, 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _as_bool(value: object) -> bool:
    text = str(value).strip().lower()
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise ValueError("wanted true or false")
