"""NVIDIA's configuration: which file counts, what it says, and what the settings make of it.

The file has version v1, in YAML or JSON; its keys and their defaults are those of NVIDIA's device
plugin 0.20. That plugin ignores unknown keys, and parses `rename`, `devices` and patterns without
using them; here the first is an error and the others work. The choice of a file is that of NVIDIA's
config-manager (R-730).
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from gpu_device_plugin.domain.grants.container_edits import DeviceAccess
from gpu_device_plugin.domain.nvidia.configuration import (
    FEWEST_REPLICAS,
    Configuration,
    FeatureSettings,
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
    check,
    devices,
    resource_name,
)
from gpu_device_plugin.domain.nvidia.mig_devices import wrong_profile
from gpu_device_plugin.errors import ConfigError, clip
from gpu_device_plugin.settings.bounded_yaml import read_text, yaml_object
from gpu_device_plugin.settings.nvidia_settings import Fallback, NvidiaSettings, named_by_nvidia
from gpu_device_plugin.settings.setting import suggest_key

__all__ = [
    "FEWEST_REPLICAS",
    "Configuration",
    "FeatureSettings",
    "wrong_profile",
]  # the agent names no scheme
VERSION = "v1"
_NAMED = "default"
_WRITTEN_SECONDS = 1.0
"""A file that changed so recently may be half written; it is read at the next check."""
_AT = re.compile(r"(.*) - at `\$\.(.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_Stamp: TypeAlias = tuple[str, tuple[int, int, int] | None]


class _Section(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A section; None is a key that is not there."""


def _flags(path: str, **sections: Any) -> Any:
    """The section at a path: a key for each setting that stands there, and further sections."""
    here = [pair for pair in named_by_nvidia() if pair[1].path and pair[1].section == path]
    keys: list[tuple[str, Any, None]] = [
        (each.key, (names.kind or (bool if each.kind is bool else str)) | None, None)
        for each, names in here
    ]
    return msgspec.defstruct(
        path or "File",
        [*keys, *((name, kind, kind()) for name, kind in sections.items())],
        bases=(_Section,),
        frozen=True,
        rename={each.key: names.path.rpartition(".")[2] for each, names in here},
    )


class _Pattern(_Section, frozen=True):
    pattern: str
    name: str


class _Resources(_Section, frozen=True):
    gpus: tuple[_Pattern, ...] = ()
    mig: tuple[_Pattern, ...] = ()


class _SharedResource(_Section, frozen=True):
    name: str
    replicas: int
    rename: str = ""
    devices: str | int | tuple[str | int, ...] = "all"


class _Replicated(_Section, frozen=True):
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: tuple[_SharedResource, ...] = ()


class _Sharing(_Section, frozen=True):
    time_slicing: _Replicated | None = None
    mps: _Replicated | None = None


File = _flags(
    "",
    version=str,
    flags=_flags("flags", plugin=_flags("flags.plugin"), gfd=_flags("flags.gfd")),
    resources=_Resources,
    sharing=_Sharing,
    imex=_flags("imex"),
)
"""What a file may have; the chart checks the same (tools/nvidia_schema.py)."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says; `values` is setting -> its value here and the key's path in the file."""

    path: str
    text: str
    values: Mapping[str, tuple[Any, str]]
    sharing: Sharing = field(default_factory=Sharing)
    gpu_patterns: tuple[Pattern, ...] = ()
    mig_patterns: tuple[Pattern, ...] = ()


def read_config_file(file: Path) -> ConfigFile:
    """Read NVIDIA's configuration file.

    ConfigError: It cannot be read, or a key is unknown, malformed or impossible; the text has the file
    and the key's path.
    """
    text = read_text(file)
    content = _without_null(yaml_object(file, text))
    _check_kind(file, content)
    try:
        wire = msgspec.convert(content, File)
        return ConfigFile(
            path=str(file),
            text=text,
            values=_values(wire),
            sharing=_sharing(wire.sharing),
            gpu_patterns=_patterns(wire.resources.gpus, "resources.gpus"),
            mig_patterns=_patterns(wire.resources.mig, "resources.mig"),
        )
    except msgspec.ValidationError as error:
        at = _AT.fullmatch(str(error))
        what, path = (at[1], at[2]) if at else (str(error), "")
        if unknown := _UNKNOWN.fullmatch(what):
            what = f"unknown key {clip(unknown[1])!r}; {_key_hint(unknown[1], path)}"
        raise ConfigError(f"{file}: {path or 'the file'}: {what}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _key_hint(key: str, path: str) -> str:
    """Where an unknown key of the section at a path such as `sharing.mps.resources[0]` belongs, or what it may mean."""
    from msgspec import inspect  # for an error's text alone

    sections: dict[str, list[str]] = {}

    def add(kind: Any, at: str) -> None:
        if isinstance(kind, inspect.UnionType):
            for each in kind.types:
                add(each, at)
        elif isinstance(kind, inspect.VarTupleType):
            add(kind.item_type, at)
        elif isinstance(kind, inspect.StructType):
            sections[at] = [each.encode_name for each in kind.fields]
            for field_ in kind.fields:
                add(field_.type, f"{at}.{field_.encode_name}".lstrip("."))

    add(inspect.type_info(File), "")
    if places := [f"{at}.{key}".lstrip(".") for at, keys in sections.items() if key in keys]:
        return f"it belongs to {' or '.join(places)}"
    known = sections[re.sub(r"\[\d+\]", "", path)]
    return suggest_key(key, known, f"the keys here are {', '.join(known)}")


def _without_null(value: Any) -> Any:
    """Without keys that have no value: an empty section is one that is not there."""
    if isinstance(value, dict):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list) else value


def _check_kind(file: Path, content: Mapping[str, object]) -> None:
    """The two files that are easily mistaken for each other, another version, and lost indentation."""
    version = content.get("version", VERSION)
    if version != VERSION:
        raise ConfigError(f"{file}: version: unknown version: {clip(str(version))}")
    sharing = content.get("sharing")
    below = (
        f"sharing.{key}"
        for key in ("resources", "replicas")
        if isinstance(sharing, dict) and key in sharing
    )
    lost = [*below, *(key for key in ("timeSlicing", "mps", "replicas") if key in content)]
    if lost:
        raise ConfigError(
            f"{file}: {lost[0]}: its indentation is lost; replicas are given as "
            f"sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}}}"
        )
    foreign = sorted(str(key) for key in content if key not in File.__struct_encode_fields__)
    if foreign:
        known = ", ".join(File.__struct_encode_fields__)
        raise ConfigError(
            f"{file}: {clip(foreign[0])}: unknown key; NVIDIA's configuration has {known}. "
            f"The agent's own settings are read by --config"
        )


def _values(wire: Any) -> dict[str, tuple[Any, str]]:
    """The values that are there, by the agent's setting."""
    found: dict[str, tuple[Any, str]] = {}
    for each, names in named_by_nvidia():
        value = attrgetter(f"{names.section}.{each.key}")(wire) if names.path else None
        if value is not None:
            found[each.key] = value, names.path
    return found


def _patterns(given: Sequence[_Pattern], path: str) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(each.pattern, _name(each.name, f"{path}[{place}].name"))
        for place, each in enumerate(given)
    )


def _sharing(given: _Sharing) -> Sharing:
    if given.time_slicing is not None and given.mps is not None:
        raise ConfigError("sharing: timeSlicing and mps exclude each other: give one of them")
    if given.mps is not None:
        return _replicated(given.mps, SharingKind.MPS, "sharing.mps", is_one_at_most=True)
    if given.time_slicing is None:
        return Sharing()
    return _replicated(given.time_slicing, SharingKind.TIME_SLICING, "sharing.timeSlicing")


def _replicated(
    given: _Replicated, kind: SharingKind, path: str, *, is_one_at_most: bool = False
) -> Sharing:
    if not given.resources:
        raise ConfigError(f"{path}.resources: no resources specified")
    fails = given.fail_requests_greater_than_one
    return Sharing(
        kind,
        tuple(
            _shared(each, f"{path}.resources[{place}]")
            for place, each in enumerate(given.resources)
        ),
        is_renamed=given.rename_by_default,
        is_one_at_most=is_one_at_most if fails is None else fails,
    )


def _shared(given: _SharedResource, path: str) -> SharedResource:
    try:
        chosen = devices(given.devices)
    except ConfigError as error:
        raise ConfigError(f"{path}.devices: {error}") from error
    return SharedResource(
        name=_name(given.name, f"{path}.name"),
        replicas=given.replicas,
        rename=_name(given.rename, f"{path}.rename") if given.rename else "",
        devices=chosen,
    )


def _name(text: str, path: str) -> str:
    try:
        return resource_name(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def nvidia_configuration(settings: NvidiaSettings, path: Path | None = None) -> Configuration:
    """The configuration of settings and file, which is read again; ConfigError names the place."""
    if path is None and settings.config_file:
        path = Path(settings.config_file)
    return _with_file(settings, _no_file() if path is None else read_config_file(path))


def _no_file() -> ConfigFile:
    return ConfigFile("", "", {})


def _with_file(settings: NvidiaSettings, file: ConfigFile) -> Configuration:
    parts: dict[str, dict[str, Any]] = {"": {}, "access": {}, "features": {}}
    for each, names in named_by_nvidia():
        value = getattr(settings, each.key)
        if value is None and each.key in file.values:
            given, place = file.values[each.key]
            value = each.value_of(given, f"{file.path}: {place}")
        if value is not None and names.part:
            group, _, name = names.part.rpartition(".")
            parts[group][name] = value
    configuration = Configuration(
        **parts[""],
        access=DeviceAccess(**parts["access"]),
        features=FeatureSettings(**parts["features"]),
        sharing=file.sharing,
        gpu_patterns=file.gpu_patterns,
        mig_patterns=file.mig_patterns,
    )
    try:
        check(configuration)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}" if file.path else str(error)) from error
    return configuration


def check_twice(settings: NvidiaSettings, sources: Mapping[str, str], config: Path | None) -> None:
    """Check that no setting stands in both files; a bad one counts for nothing."""
    if config is None or not settings.config_file:
        return
    try:
        file = read_config_file(Path(settings.config_file))
    except ConfigError:
        return
    for key, (_, path) in file.values.items():
        if sources.get(key, "").startswith(f"{config}: "):
            raise ConfigError(
                f"{sources[key]} and {file.path}: {path} are the same setting: give one"
            )


@dataclass(frozen=True, slots=True)
class LastRead:
    """What was read last.

    Attributes:
        stamp: Differs when another file was chosen, or the file has changed.
        result: What it says, or what is wrong with it; None before anything was read.
        text: The text of a file that is good; empty without a file.
    """

    stamp: _Stamp | str | None = None
    path: str = ""
    result: Configuration | ConfigError | None = None
    text: str = ""


def read_if_changed(settings: NvidiaSettings, name: str | None, before: LastRead) -> LastRead:
    """Read the file that counts now; `before` itself where it is the same and has not changed.

    A file in force that somebody may still be writing is left for the next check: half of one, or
    an empty one, may be a valid configuration. `name` is the value of the node's label, empty
    without one; None where a setting names the file.
    """
    try:
        file = Path(settings.config_file) if name is None else choose_file(settings, name)
    except ConfigError as error:
        return before if before.stamp == str(error) else LastRead(str(error), "", error)
    stamp: _Stamp = (str(file or ""), _stamp(file))
    is_same_file = before.result is not None and before.path == stamp[0]
    if stamp == before.stamp or (is_same_file and _is_being_written(file)):
        return before
    try:
        found = _no_file() if file is None else read_config_file(file)
        return LastRead(stamp, stamp[0], _with_file(settings, found), found.text)
    except ConfigError as error:
        return LastRead(stamp, stamp[0], error)


def choose_file(settings: NvidiaSettings, name: str) -> Path | None:
    """The file of `--config-file-srcdir`, None without one; ConfigError has NVIDIA's words."""
    directory = Path(settings.config_file_srcdir)
    there = _files(directory)
    asked = name or settings.default_config
    if asked:
        if asked not in there:
            known = ", ".join(there) or "none"
            raise ConfigError(
                f"specified config {asked} does not exist in {directory}; there: {known}"
            )
        return directory / asked
    for fallback in settings.fallback_strategies:
        if fallback is Fallback.NAMED and _NAMED in there:
            return directory / _NAMED
        if fallback is Fallback.SINGLE and len(there) == 1:
            return directory / there[0]
        if fallback is Fallback.EMPTY:
            return None
    raise ConfigError("no config was set, no default was provided, and all fallbacks failed")


def _files(directory: Path) -> list[str]:
    """Names of the files; a mounted ConfigMap has links and hidden directories beside them."""
    try:
        return sorted(
            each.name
            for each in directory.iterdir()
            if not each.name.startswith(".") and each.is_file()
        )
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from error


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Differs when the file does; a ConfigMap replaces the directory that a link leads to."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _is_being_written(file: Path | None) -> bool:
    """Judged by its age; a time in the future tells nothing."""
    try:
        return file is not None and 0 <= time.time() - file.stat().st_mtime < _WRITTEN_SECONDS
    except OSError:
        return False
