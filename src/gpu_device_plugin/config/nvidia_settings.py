"""The settings under NVIDIA's names, and what they and NVIDIA's configuration file decide together.

A setting that was not given is None, so that the file's value or the default counts. Flag and
environment take precedence over both files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpu_device_plugin.config.nvidia import ConfigFile, read_config_file
from gpu_device_plugin.config.nvidia_fields import (
    ACCESS_FIELDS,
    FEATURE_FIELDS,
    FIELDS,
    converted,
)
from gpu_device_plugin.config.sources import says
from gpu_device_plugin.domain.container_edits import DeviceAccess
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    AllocationPolicy,
    Configuration,
    FeatureSettings,
    IdStrategy,
    MigStrategy,
    check,
)
from gpu_device_plugin.errors import ConfigError

__all__ = [
    "Configuration",
    "FeatureSettings",
    "NvidiaSettings",
    "check_twice",
    "nvidia_configuration",
]


_WITHOUT_EFFECT = "Accepted without effect, for compatibility with NVIDIA's plugin."


class NvidiaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of whole cards, replicas and MIG instances; defaults are NVIDIA's."""

    config_file: Annotated[
        str, says("NVIDIA's configuration file, version v1, for modes default, mig and topology.")
    ] = ""
    config_file_srcdir: Annotated[
        str,
        says("Directory of such files; the node label of `--node-label` names the one to use."),
    ] = ""
    default_config: Annotated[
        str, says("File of that directory for nodes without such a label.")
    ] = ""
    fallback_strategies: Annotated[
        str,
        says(
            "Which file is used without label and default, tried in this order: `named` (the file `default`), `single` (the only file), `empty` (none)."
        ),
    ] = "named,single"
    node_label: Annotated[str, says("The node label that names the file.")] = (
        "nvidia.com/device-plugin.config"
    )
    mig_strategy: Annotated[
        MigStrategy | None, says("How MIG instances are offered; by default not at all.")
    ] = None
    mig_profile: Annotated[
        str | None,
        says(
            "MIG1g, MIG2g, MIG3g, MIG4g, MIG7g or a model's own profile: in modes default and mig nothing is offered while the cards are not all cut so. The node's label `gpu-device-plugin/mig-profile` takes precedence."
        ),
    ] = None
    fail_on_init_error: Annotated[
        bool | None,
        says("Whether a node that cannot serve its configuration is not ready; by default it is."),
    ] = None
    device_list_strategy: Annotated[
        str | None,
        says(
            "How cards reach containers: envvar, volume-mounts, cdi-annotations, cdi-cri or several, separated by commas; by default envvar."
        ),
    ] = None
    device_id_strategy: Annotated[
        IdStrategy | None,
        says("How whole cards and MIG instances are named to containers; by default uuid."),
    ] = None
    pass_device_specs: Annotated[bool | None, says("Whether answers contain device nodes.")] = None
    shared_devices_allocation_policy: Annotated[
        AllocationPolicy | None,
        says("How replicas and instances are spread over the cards; by default distributed."),
    ] = None
    driver_root: Annotated[
        str | None, says("The host directory of the driver; by default `/`.")
    ] = None
    dev_root: Annotated[
        str | None, says("The host directory that has `dev/`; by default that of the driver.")
    ] = None
    cdi_annotation_prefix: Annotated[
        str | None, says("Prefix of the annotation of cdi-annotations; by default `cdi.k8s.io/`.")
    ] = None
    gdrcopy_enabled: Annotated[bool | None, says("Whether containers get GDRCopy.")] = None
    gds_enabled: Annotated[bool | None, says("Whether containers get GPUDirect Storage.")] = None
    mofed_enabled: Annotated[bool | None, says("Whether containers get Mellanox OFED.")] = None
    imex_channel_ids: Annotated[
        str | None,
        says("IMEX channels that every container gets, if the node has them: none, or 0."),
    ] = None
    imex_required: Annotated[
        bool | None, says("Whether nothing is offered while an IMEX channel is missing.")
    ] = None
    gfd: Annotated[
        bool | None,
        says(
            "Whether NVIDIA's feature labels (`nvidia.com/gpu.product` and others) are written to the node; by default not."
        ),
    ] = None
    gfd_output_file: Annotated[
        str | None,
        says(
            "File to which these labels are written as well, in the format that node feature discovery reads."
        ),
    ] = None
    machine_type_file: Annotated[
        str | None,
        says(
            "The file that contains the machine's type; by default `/sys/class/dmi/id/product_name`."
        ),
    ] = None
    gfd_no_timestamp: Annotated[
        bool | None, says("Whether the label `nvidia.com/gfd.timestamp` is left out.")
    ] = None
    device_discovery_strategy: Annotated[
        str | None, says("auto or nvml; cards are found through NVML in either case.")
    ] = None
    kubelet_socket: Annotated[
        str | None,
        says("Accepted if it is the socket in `--kubelet-dir`, which says where the kubelet is."),
    ] = None
    nvidia_cdi_hook_path: Annotated[str | None, says(_WITHOUT_EFFECT)] = None
    driver_root_ctr_path: Annotated[str | None, says(_WITHOUT_EFFECT)] = None
    cdi_feature_flags: Annotated[str | None, says(_WITHOUT_EFFECT)] = None
    cdi_disable_hooks: Annotated[str | None, says(_WITHOUT_EFFECT)] = None
    gfd_oneshot: Annotated[bool | None, says(_WITHOUT_EFFECT)] = None
    gfd_sleep_interval: Annotated[str | None, says(_WITHOUT_EFFECT)] = None
    use_node_feature_api: Annotated[bool | None, says(_WITHOUT_EFFECT)] = None
    mps_root: Annotated[
        str | None, says("The host directory of the MPS daemon; needed with sharing.mps.")
    ] = None


def nvidia_configuration(settings: NvidiaSettings, path: Path | None = None) -> Configuration:
    """The configuration of the settings and of NVIDIA's file, which is read anew.

    Args:
        settings: The settings.
        path: The file; by default that of `--config-file`, if any.

    Raises:
        ConfigError: A value is malformed, or values do not go together; the text names the place.
    """
    if path is None and settings.config_file:
        path = Path(settings.config_file)
    file = None if path is None else read_config_file(path)
    found: dict[str, tuple[Any, str]] = {}
    if file is not None:
        found |= {
            key: (value, f"{file.path}: {path}") for key, (value, path) in file.values.items()
        }
    for key in NvidiaSettings.__struct_fields__:
        value = getattr(settings, key)
        if value is not None and key in {*FIELDS, *ACCESS_FIELDS, *FEATURE_FIELDS}:
            found[key] = value, "--" + key.replace("_", "-")
    return _checked(found, file)


def check_twice(settings: NvidiaSettings, sources: Mapping[str, str], config: Path | None) -> None:
    """Check that no setting stands in both files.

    Args:
        settings: The settings.
        sources: Where each value that was given came from.
        config: The file of `--config`.

    Raises:
        ConfigError: One does; which value was meant is not known.
    """
    if config is None or not settings.config_file:
        return
    file = read_config_file(Path(settings.config_file))
    for key, (_, path) in file.values.items():
        if sources.get(key, "").startswith(f"{config}: "):
            raise ConfigError(
                f"{sources[key]} and {file.path}: {path} are the same setting: give one"
            )


def _checked(found: Mapping[str, tuple[Any, str]], file: ConfigFile | None) -> Configuration:
    fields = converted(found, FIELDS)
    fields["access"] = DeviceAccess(**converted(found, ACCESS_FIELDS))
    fields["features"] = FeatureSettings(**converted(found, FEATURE_FIELDS))
    if file is not None:
        fields |= {
            "sharing": file.sharing,
            "gpu_patterns": file.gpu_patterns,
            "mig_patterns": file.mig_patterns,
        }
    configuration = Configuration(**fields)
    try:
        check(configuration)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}" if file else str(error)) from error
    return configuration
