"""From the settings under NVIDIA's names to fields of the configuration."""

import enum
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from gpu_device_plugin.domain.container_edits import ListStrategy
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    AllocationPolicy,
    IdStrategy,
    MigStrategy,
)
from gpu_device_plugin.errors import ConfigError, clip

Table: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Setting -> the field that it is, and what makes the field's value of it."""


def converted(found: Mapping[str, tuple[Any, str]], table: Table) -> dict[str, Any]:
    """Field -> value, for the settings of a table that are given.

    Args:
        found: Setting -> its value, and where it came from.
        table: Which settings.

    Raises:
        ConfigError: A value is malformed; the text begins with where it came from.
    """
    fields: dict[str, Any] = {}
    for key, (name, convert) in table.items():
        if key in found:
            value, source = found[key]
            try:
                fields[name] = convert(value)
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"{source}: {error}") from error
    return fields


def _one_of(kind: type[enum.StrEnum]) -> Callable[[Any], enum.StrEnum]:
    def converted(value: str) -> enum.StrEnum:
        if value not in [str(member) for member in kind]:
            raise ConfigError(f"{clip(str(value))!r} is not valid: wanted one of {', '.join(kind)}")
        return kind(value)

    return converted


def _strategies(value: str | tuple[str, ...]) -> tuple[enum.StrEnum, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not names:
        raise ConfigError(f"the list is empty: wanted some of {', '.join(ListStrategy)}")
    return tuple(dict.fromkeys(_one_of(ListStrategy)(name.strip()) for name in names))


def _channels(value: str | tuple[int, ...]) -> tuple[int, ...]:
    numbers = value.split(",") if isinstance(value, str) else value
    channels = tuple(int(number) for number in numbers if str(number).strip())
    if channels not in {(), (0,)}:
        raise ConfigError(f"{clip(repr(value))} is not valid: wanted no channel, or 0")
    return channels


def _directory(value: str) -> str:
    if value and not value.startswith("/"):
        raise ConfigError(f"{clip(value)!r} is not an absolute path")
    return value


def _discovery(value: str) -> str:
    if value not in {"auto", "nvml"}:
        raise ConfigError(f"{clip(value)!r} is not valid: wanted auto or nvml; Tegra is not served")
    return value


def _as_it_is(value: Any) -> Any:
    return value


FEATURE_FIELDS: Final[Table] = {
    "gfd": ("is_on", _as_it_is),
    "gfd_output_file": ("output_file", _as_it_is),
    "machine_type_file": ("machine_type_file", _as_it_is),
    "gfd_no_timestamp": ("has_timestamp", operator.not_),
}
ACCESS_FIELDS: Final[Table] = {
    "device_list_strategy": ("strategies", _strategies),
    "pass_device_specs": ("passes_nodes", _as_it_is),
    "cdi_annotation_prefix": ("annotation_prefix", _as_it_is),
}
FIELDS: Final[Table] = {
    "mig_strategy": ("mig_strategy", _one_of(MigStrategy)),
    "fail_on_init_error": ("fails_on_init_error", _as_it_is),
    "device_id_strategy": ("id_strategy", _one_of(IdStrategy)),
    "shared_devices_allocation_policy": ("allocation_policy", _one_of(AllocationPolicy)),
    "gdrcopy_enabled": ("is_gdrcopy_on", _as_it_is),
    "gds_enabled": ("is_gds_on", _as_it_is),
    "mofed_enabled": ("is_mofed_on", _as_it_is),
    "imex_channel_ids": ("imex_channels", _channels),
    "imex_required": ("is_imex_required", _as_it_is),
    "mps_root": ("mps_root", _directory),
    "mig_profile": ("mig_profile", _as_it_is),
    "driver_root": ("driver_root", _directory),
    "dev_root": ("dev_root", _directory),
    "device_discovery_strategy": ("discovery", _discovery),
}
