"""The settings under the names of NVIDIA's device plugin and its feature discovery.

One that was not given is None, so that NVIDIA's configuration file or the default counts. Flag and
environment take precedence over both files.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from gpu_device_plugin.domain.grants.container_edits import ListStrategy
from gpu_device_plugin.domain.nvidia.configuration import AllocationPolicy, IdStrategy, MigStrategy
from gpu_device_plugin.errors import ConfigError, clip
from gpu_device_plugin.settings.setting import (
    Setting,
    choice,
    optional_directory,
    setting,
    settings_of,
)


class Fallback(StrEnum):
    """What counts where neither the label nor `--default-config` names a file."""

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


def _strategies(names: Sequence[str]) -> tuple[ListStrategy, ...]:
    if not names:
        raise ConfigError(f"the list is empty: wanted some of {', '.join(ListStrategy)}")
    found = tuple(dict.fromkeys(choice(ListStrategy, name.strip()) for name in names))
    if ListStrategy.AUTO in found and len(found) > 1:
        raise ConfigError("auto chooses by itself: leave the others out")
    return found


def _fallbacks(names: Sequence[str]) -> tuple[Fallback, ...]:
    given = [name.strip() for name in names if name.strip()]
    return tuple(choice(Fallback, name, "wanted some of") for name in given)


def _channels(numbers: Sequence[str]) -> tuple[int, ...]:
    channels = [number.strip() for number in numbers if number.strip()]
    if channels not in ([], ["0"]):
        raise ConfigError(f"channelIDs must be [] or [0]; found [{clip(' '.join(channels))}]")
    return tuple(map(int, channels))


def _discovery(text: str) -> str:
    if text not in {"auto", "nvml"}:
        raise ConfigError(f"{clip(text)!r} is not valid: wanted auto or nvml; Tegra is not served")
    return text


def _off(why: str) -> Callable[[bool], bool]:
    """The converter of a switch that cannot be on here."""

    def checked(value: bool) -> bool:  # noqa: FBT001 - a converter
        if value:
            raise ConfigError(f"true is not valid: {why}; leave it out, or false")
        return value

    return checked


def _interval(text: str) -> str:
    """A Go duration in hours, minutes and seconds, or a number of nanoseconds."""
    found = re.fullmatch(_INTERVAL, text)
    hours, minutes, seconds, ns = (int(each or 0) for each in found.groups()) if found else [0] * 4
    if hours * 3600 + minutes * 60 + seconds + ns / 1e9 < _SHORTEST_INTERVAL_SECONDS:
        raise ConfigError(
            f"{clip(text)!r} is not valid: labels follow each change within seconds, not at intervals; "
            f"wanted a time of at least {_SHORTEST_INTERVAL_SECONDS}s, for instance 60s"
        )
    return text


class Names(NamedTuple):
    """What NVIDIA's plugin calls a setting.

    Attributes:
        variables: Its environment variables, separated by spaces.
        path: The key's path in the configuration file.
        part: The field of `Configuration` that it decides, as a path.
        kind: The type of the value in the file, if that is neither a text nor a switch.
    """

    variables: str = ""
    path: str = ""
    part: str = ""
    kind: Any = None

    @property
    def section(self) -> str:
        """Where the key stands in the file, for instance `flags.plugin`."""
        return self.path.rpartition(".")[0]


def of_nvidia(text: str, names: Names, **more: Any) -> Any:
    """A setting that is None where it was not given; arguments as for `setting`."""
    return setting(None, text, *names.variables.split(), extra=names, **more)


_INTERVAL = r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?|(\d+)"
_SHORTEST_INTERVAL_SECONDS = 10
_WITHOUT_EFFECT = "Accepted without effect."


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSettings:
    """Settings of NVIDIA's plugin that decide nothing here."""

    HEADING: ClassVar = "NVIDIA's settings without effect"

    nvidia_cdi_hook_path: str | None = of_nvidia(
        _WITHOUT_EFFECT,
        Names("NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH", "flags.plugin.nvidiaCTKPath"),
        aliases=("--nvidia-ctk-path",),
    )
    driver_root_ctr_path: str | None = of_nvidia(
        _WITHOUT_EFFECT,
        Names("DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT", "flags.plugin.containerDriverRoot"),
        aliases=("--container-driver-root",),
    )
    cdi_feature_flags: str | None = of_nvidia(
        _WITHOUT_EFFECT, Names("CDI_FEATURE_FLAGS"), is_list=True
    )
    cdi_disable_hooks: str | None = of_nvidia(
        _WITHOUT_EFFECT, Names("CDI_DISABLE_HOOKS"), is_list=True
    )
    gfd_oneshot: bool | None = of_nvidia(
        "Only false: the feature labels are kept as long as the agent runs.",
        Names("GFD_ONESHOT", "flags.gfd.oneshot"),
        convert=_off("the agent keeps the feature labels as long as it runs"),
    )
    gfd_sleep_interval: str | None = of_nvidia(
        "Longest age of the feature labels, at least 10s. It changes nothing: each change is written within seconds.",
        Names("GFD_SLEEP_INTERVAL", "flags.gfd.sleepInterval", kind=str | int),
        convert=_interval,
    )
    use_node_feature_api: bool | None = of_nvidia(
        "Only false: the feature labels are written to the node itself, without a NodeFeature object.",
        Names("GFD_USE_NODE_FEATURE_API", "flags.useNodeFeatureAPI"),
        convert=_off("the agent writes the feature labels to the node and no NodeFeature object"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaSettings(IgnoredSettings):
    """Settings of whole cards, replicas and MIG instances; defaults are NVIDIA's."""

    HEADING: ClassVar = "Whole cards, replicas and MIG instances, under NVIDIA's names"

    config_file: str = setting(
        "",
        "NVIDIA's configuration file, version v1, for modes default, mig and topology.",
        "CONFIG_FILE",
    )
    config_file_srcdir: str = setting(
        "",
        "Directory of such files; the node label of `--node-label` names the one to use.",
        "CONFIG_FILE_SRCDIR",
    )
    default_config: str = setting(
        "",
        "File of `--config-file-srcdir` for nodes without the label of `--node-label`.",
        "DEFAULT_CONFIG",
        value="config.default",
    )
    fallback_strategies: tuple[Fallback, ...] = setting(
        (Fallback.NAMED, Fallback.SINGLE),
        "Which file is used without label and default, tried in this order: `named` (the file `default`), `single` (the only file), `empty` (none).",
        "FALLBACK_STRATEGIES",
        is_list=True,
        convert=_fallbacks,
        value="config.fallbackStrategies",
    )
    node_label: str = setting(
        "nvidia.com/device-plugin.config", "The node label that names the file.", "NODE_LABEL"
    )
    mig_strategy: MigStrategy | None = of_nvidia(
        "How MIG instances are offered; by default not at all.",
        Names("MIG_STRATEGY", "flags.migStrategy", "mig_strategy"),
    )
    mig_profile: str | None = of_nvidia(
        "MIG1g, MIG2g, MIG3g, MIG4g, MIG7g or a model's own profile. In modes default and mig nothing is offered until all cards are cut so. The node's label `gpu-device-plugin/mig-profile` takes precedence.",
        Names("MIG_PROFILE", "", "mig_profile"),
    )
    fail_on_init_error: bool | None = of_nvidia(
        "Whether a node that cannot serve its configuration is not ready; by default true.",
        Names("FAIL_ON_INIT_ERROR", "flags.failOnInitError", "fails_on_init_error"),
    )
    device_list_strategy: tuple[ListStrategy, ...] | None = of_nvidia(
        "How cards reach containers: envvar, volume-mounts, cdi-annotations, cdi-cri or several, separated by commas; or auto: cdi-cri where the container runtime has CDI on by default and a CDI specification names every card, else envvar. By default envvar.",
        Names(
            "DEVICE_LIST_STRATEGY",
            "flags.plugin.deviceListStrategy",
            "access.strategies",
            kind=str | tuple[str, ...],
        ),
        is_list=True,
        convert=_strategies,
    )
    device_id_strategy: IdStrategy | None = of_nvidia(
        "How whole cards and MIG instances are named to containers, and cards of slices where CDI brings them; by default uuid.",
        Names("DEVICE_ID_STRATEGY", "flags.plugin.deviceIDStrategy", "id_strategy"),
        value="deviceIDStrategy",
    )
    pass_device_specs: bool | None = of_nvidia(
        "Whether answers contain device nodes.",
        Names("PASS_DEVICE_SPECS", "flags.plugin.passDeviceSpecs", "access.passes_nodes"),
        value="compatWithCPUManager",
    )
    shared_devices_allocation_policy: AllocationPolicy | None = of_nvidia(
        "How replicas and instances are spread over the cards; by default distributed.",
        Names(
            "SHARED_DEVICES_ALLOCATION_POLICY",
            "flags.plugin.sharedDevicesAllocationPolicy",
            "allocation_policy",
        ),
    )
    driver_root: str | None = of_nvidia(
        "The host directory of the driver; by default `/`.",
        Names("NVIDIA_DRIVER_ROOT", "flags.nvidiaDriverRoot", "driver_root"),
        aliases=("--nvidia-driver-root",),
        convert=optional_directory,
        value="nvidiaDriverRoot",
    )
    dev_root: str | None = of_nvidia(
        "The host directory that has `dev/`; by default that of the driver.",
        Names("NVIDIA_DEV_ROOT", "flags.nvidiaDevRoot", "dev_root"),
        aliases=("--nvidia-dev-root",),
        convert=optional_directory,
        value="nvidiaDevRoot",
    )
    cdi_annotation_prefix: str | None = of_nvidia(
        "Prefix of the annotation of cdi-annotations; by default `cdi.k8s.io/`.",
        Names(
            "CDI_ANNOTATION_PREFIX", "flags.plugin.cdiAnnotationPrefix", "access.annotation_prefix"
        ),
    )
    gdrcopy_enabled: bool | None = of_nvidia(
        "Whether containers get GDRCopy.",
        Names("GDRCOPY_ENABLED", "flags.gdrcopyEnabled", "is_gdrcopy_on"),
    )
    gds_enabled: bool | None = of_nvidia(
        "Whether containers get GPUDirect Storage.",
        Names("GDS_ENABLED", "flags.gdsEnabled", "is_gds_on"),
    )
    mofed_enabled: bool | None = of_nvidia(
        "Whether containers get Mellanox OFED.",
        Names("MOFED_ENABLED", "flags.mofedEnabled", "is_mofed_on"),
    )
    imex_channel_ids: tuple[int, ...] | None = of_nvidia(
        "IMEX channels that every container gets, if the node has them: none, or 0.",
        Names("IMEX_CHANNEL_IDS", "imex.channelIDs", "imex_channels", kind=tuple[int, ...]),
        is_list=True,
        convert=_channels,
    )
    imex_required: bool | None = of_nvidia(
        "Whether nothing is offered while an IMEX channel is missing.",
        Names("IMEX_REQUIRED", "imex.required", "is_imex_required"),
    )
    gfd: bool | None = of_nvidia(
        "Whether NVIDIA's feature labels (`nvidia.com/gpu.product` and others) are written to the node; by default not.",
        Names("", "", "features.is_on"),
        value="gfd.enabled",
    )
    gfd_output_file: str | None = of_nvidia(
        "File to which these labels are written as well, in the format that node feature discovery reads.",
        Names("GFD_OUTPUT_FILE", "flags.gfd.outputFile", "features.output_file"),
    )
    machine_type_file: str | None = of_nvidia(
        "The file that contains the machine's type; by default `/sys/class/dmi/id/product_name`.",
        Names("GFD_MACHINE_TYPE_FILE", "flags.gfd.machineTypeFile", "features.machine_type_file"),
    )
    gfd_no_timestamp: bool | None = of_nvidia(
        "Whether the label `nvidia.com/gfd.timestamp` is left out.",
        Names("GFD_NO_TIMESTAMP", "flags.gfd.noTimestamp", "features.omits_timestamp"),
    )
    device_discovery_strategy: str | None = of_nvidia(
        "auto or nvml; both find cards through NVML.",
        Names("DEVICE_DISCOVERY_STRATEGY", "flags.deviceDiscoveryStrategy"),
        convert=_discovery,
    )
    kubelet_socket: str | None = of_nvidia(
        "Accepted only if it is the socket in `--kubelet-dir`.", Names("KUBELET_SOCKET")
    )
    mps_root: str | None = of_nvidia(
        "The host directory of the MPS daemon; needed with sharing.mps.",
        Names("MPS_ROOT", "flags.mpsRoot", "mps_root"),
        convert=optional_directory,
        value="mps.root",
    )


def named_by_nvidia() -> tuple[tuple[Setting, Names], ...]:
    """The settings that have names of NVIDIA's, with these."""
    return tuple((each, each.extra) for each in settings_of(NvidiaSettings) if each.extra)
