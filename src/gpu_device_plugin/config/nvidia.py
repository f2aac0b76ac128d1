"""NVIDIA's configuration file, version v1, in YAML or JSON: every key checked, none dropped.

The keys and their defaults are those of NVIDIA's device plugin 0.20. It ignores unknown keys, and
parses `rename`, `devices` and patterns without using them; here the first is an error and the
others work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from gpu_device_plugin.config.sources import read_yaml
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
    devices,
    resource_name,
)
from gpu_device_plugin.errors import ConfigError, clip

VERSION = "v1"


class _Section(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A section; None is a key that is not there."""


class _Plugin(_Section, frozen=True):
    pass_device_specs: bool | None = None
    device_list_strategy: str | tuple[str, ...] | None = None
    device_id_strategy: str | None = msgspec.field(default=None, name="deviceIDStrategy")
    cdi_annotation_prefix: str | None = None
    nvidia_ctk_path: str | None = msgspec.field(default=None, name="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: str | None = None


class _Gfd(_Section, frozen=True):
    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: str | int | None = None
    output_file: str | None = None
    machine_type_file: str | None = None


class _Flags(_Section, frozen=True):
    mig_strategy: str | None = None
    fail_on_init_error: bool | None = None
    mps_root: str | None = None
    nvidia_driver_root: str | None = None
    nvidia_dev_root: str | None = None
    gdrcopy_enabled: bool | None = None
    gds_enabled: bool | None = None
    mofed_enabled: bool | None = None
    use_node_feature_api: bool | None = msgspec.field(default=None, name="useNodeFeatureAPI")
    device_discovery_strategy: str | None = None
    plugin: _Plugin = _Plugin()
    gfd: _Gfd = _Gfd()


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


class _Imex(_Section, frozen=True):
    channel_ids: tuple[int, ...] | None = msgspec.field(default=None, name="channelIDs")
    required: bool | None = None


class _File(_Section, frozen=True):
    version: str = VERSION
    flags: _Flags = _Flags()
    resources: _Resources = _Resources()
    sharing: _Sharing = _Sharing()
    imex: _Imex = _Imex()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says.

    Attributes:
        path: The file.
        values: The agent's setting -> its value here and the key's path in the file.
        sharing: Replicas.
        gpu_patterns: Models and their resource names.
        mig_patterns: Profiles and their resource names.
    """

    path: str
    values: Mapping[str, tuple[Any, str]]
    sharing: Sharing = field(default_factory=Sharing)
    gpu_patterns: tuple[Pattern, ...] = ()
    mig_patterns: tuple[Pattern, ...] = ()


# Keys whose name is another than that of the setting with hyphens taken out.
_SETTINGS: Final = {
    "nvidia_driver_root": "driver_root",
    "nvidia_dev_root": "dev_root",
    "nvidia_ctk_path": "nvidia_cdi_hook_path",
    "container_driver_root": "driver_root_ctr_path",
    "channel_ids": "imex_channel_ids",
    "required": "imex_required",
    "oneshot": "gfd_oneshot",
    "no_timestamp": "gfd_no_timestamp",
    "sleep_interval": "gfd_sleep_interval",
    "output_file": "gfd_output_file",
    "use_node_feature_api": "use_node_feature_api",
}


def read_config_file(file: Path) -> ConfigFile:
    """Read NVIDIA's configuration file.

    Raises:
        ConfigError: It cannot be read, or a key is unknown, malformed or impossible; the text
            has the file and the key's path.
    """
    content = _without_null(read_yaml(file))
    _check_kind(file, content)
    try:
        wire = msgspec.convert(content, _File)
        return _config_file(file, wire)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        raise ConfigError(f"{file}: {path.rstrip('`') or 'the file'}: {what}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _without_null(value: Any) -> Any:
    """Without keys that have no value: an empty section is one that is not there."""
    if isinstance(value, dict):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list) else value


def _check_kind(file: Path, content: Mapping[str, object]) -> None:
    """The two files that are easily mistaken for each other, and another version of this one."""
    version = content.get("version", VERSION)
    if version != VERSION:
        raise ConfigError(f"{file}: version: unknown version: {clip(str(version))}")
    foreign = sorted(str(key) for key in content if key not in _known())
    if foreign:
        known = ", ".join(_known())
        raise ConfigError(
            f"{file}: {clip(foreign[0])}: unknown key; NVIDIA's configuration has {known}. "
            f"The agent's own settings are read by --config"
        )


def _known() -> tuple[str, ...]:
    return _File.__struct_encode_fields__


def _config_file(file: Path, wire: _File) -> ConfigFile:
    return ConfigFile(
        path=str(file),
        values={
            **_values(wire.flags, "flags"),
            **_values(wire.flags.plugin, "flags.plugin"),
            **_values(wire.flags.gfd, "flags.gfd"),
            **_values(wire.imex, "imex"),
        },
        sharing=_sharing(wire.sharing),
        gpu_patterns=_patterns(wire.resources.gpus, "resources.gpus"),
        mig_patterns=_patterns(wire.resources.mig, "resources.mig"),
    )


def _values(section: _Section, path: str) -> dict[str, tuple[Any, str]]:
    """The values that are there, by the agent's setting."""
    return {
        _SETTINGS.get(each.name, each.name): (value, f"{path}.{each.encode_name}")
        for each in msgspec.structs.fields(section)
        if not isinstance(value := getattr(section, each.name), _Section) and value is not None
    }


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
