"""The promise: every flag and variable of NVIDIA's plugin 0.20 and of its feature discovery is read."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_device_plugin.cli.main import agent
from gpu_device_plugin.domain.cards.health_values import XidChoice
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.agent_settings import Settings, load_settings
from gpu_device_plugin.settings.setting import ENVIRONMENT_PREFIX

# NVIDIA's flags, its variables, our key, a value, and what the setting then is.
TABLE: Mapping[str, tuple[str, str, str, object]] = {
    "mig-strategy": ("MIG_STRATEGY", "mig_strategy", "mixed", "mixed"),
    "fail-on-init-error": ("FAIL_ON_INIT_ERROR", "fail_on_init_error", "false", False),
    "driver-root nvidia-driver-root": ("NVIDIA_DRIVER_ROOT", "driver_root", "/d", "/d"),
    "dev-root nvidia-dev-root": ("NVIDIA_DEV_ROOT", "dev_root", "/d", "/d"),
    "pass-device-specs": ("PASS_DEVICE_SPECS", "pass_device_specs", "true", True),
    "device-list-strategy": ("DEVICE_LIST_STRATEGY", "device_list_strategy", "cdi-cri", "cdi-cri"),
    "device-id-strategy": ("DEVICE_ID_STRATEGY", "device_id_strategy", "index", "index"),
    "gdrcopy-enabled": ("GDRCOPY_ENABLED", "gdrcopy_enabled", "true", True),
    "gds-enabled": ("GDS_ENABLED", "gds_enabled", "true", True),
    "mofed-enabled": ("MOFED_ENABLED", "mofed_enabled", "true", True),
    "cdi-annotation-prefix": ("CDI_ANNOTATION_PREFIX", "cdi_annotation_prefix", "x/", "x/"),
    "nvidia-cdi-hook-path nvidia-ctk-path": (
        "NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
        "nvidia_cdi_hook_path",
        "/usr/bin/nvidia-ctk",
        "/usr/bin/nvidia-ctk",
    ),
    "driver-root-ctr-path container-driver-root": (
        "DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
        "driver_root_ctr_path",
        "/driver-root",
        "/driver-root",
    ),
    "mps-root": ("MPS_ROOT", "mps_root", "/mps", "/mps"),
    "shared-devices-allocation-policy": (
        "SHARED_DEVICES_ALLOCATION_POLICY",
        "shared_devices_allocation_policy",
        "packed",
        "packed",
    ),
    "device-discovery-strategy": (
        "DEVICE_DISCOVERY_STRATEGY",
        "device_discovery_strategy",
        "nvml",
        "nvml",
    ),
    "imex-channel-ids": ("IMEX_CHANNEL_IDS", "imex_channel_ids", "0", "0"),
    "imex-required": ("IMEX_REQUIRED", "imex_required", "true", True),
    "kubelet-socket": (
        "KUBELET_SOCKET",
        "kubelet_socket",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
    ),
    "cdi-feature-flags": ("CDI_FEATURE_FLAGS", "cdi_feature_flags", "x", "x"),
    "cdi-disable-hooks": ("CDI_DISABLE_HOOKS", "cdi_disable_hooks", "all", "all"),
    "config-file-srcdir": ("CONFIG_FILE_SRCDIR", "config_file_srcdir", "/c", "/c"),
    "default-config": ("DEFAULT_CONFIG", "default_config", "a", "a"),
    "node-label": ("NODE_LABEL", "node_label", "x/y", "x/y"),
    "fallback-strategies": ("FALLBACK_STRATEGIES", "fallback_strategies", "empty", "empty"),
    "gfd-oneshot": ("GFD_ONESHOT", "gfd_oneshot", "false", False),
    "gfd-no-timestamp": ("GFD_NO_TIMESTAMP", "gfd_no_timestamp", "true", True),
    "gfd-sleep-interval": ("GFD_SLEEP_INTERVAL", "gfd_sleep_interval", "60s", "60s"),
    "gfd-output-file": ("GFD_OUTPUT_FILE", "gfd_output_file", "/f", "/f"),
    "machine-type-file": ("GFD_MACHINE_TYPE_FILE", "machine_type_file", "/f", "/f"),
    "use-node-feature-api": ("GFD_USE_NODE_FEATURE_API", "use_node_feature_api", "false", False),
    "disable-healthchecks": ("DP_DISABLE_HEALTHCHECKS", "disable_healthchecks", "79", "79"),
    "enable-healthchecks": ("DP_ENABLE_HEALTHCHECKS", "enable_healthchecks", "79", "79"),
}
NAMED = {"node_name": "n"}


def setting(settings: Settings, key: str) -> object:
    """As one writes it."""
    value = getattr(settings, key)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, XidChoice):
        return ",".join(map(str, sorted(value.codes)))
    return getattr(value, "value", value)


@pytest.mark.parametrize("flags", TABLE)
def test_a_flag_of_nvidias_is_read_under_each_of_its_names(flags: str) -> None:
    """As the same setting."""
    _, key, text, wanted = TABLE[flags]
    for flag in flags.split():
        given = agent.make_context("agent", [f"--{flag}={text}"]).params
        given.pop("config")
        assert setting(load_settings({**given, **NAMED}, {}, None), key) == wanted


@pytest.mark.parametrize("flags", TABLE)
def test_a_variable_of_nvidias_is_read_under_each_of_its_names(flags: str) -> None:
    """And under ours, which goes first."""
    variables, key, text, wanted = TABLE[flags]
    for name in (*variables.split(), ENVIRONMENT_PREFIX + key.upper()):
        assert setting(load_settings(NAMED, {name: text}, None), key) == wanted


def test_a_kubelet_elsewhere_is_named_by_its_directory() -> None:
    """A socket that would not be used is an error, not overlooked."""
    flags = {**NAMED, "kubelet_socket": "/data/kubelet.sock"}
    with pytest.raises(ConfigError, match=r"--kubelet-socket: .* --kubelet-dir says where"):
        load_settings(flags, {}, None)


@pytest.mark.parametrize(
    ("flag", "values"),
    [("device-list-strategy", ("envvar", "cdi-cri")), ("imex-channel-ids", ("0", "1"))],
)
def test_a_list_given_in_several_flags_is_one_list(flag: str, values: tuple[str, ...]) -> None:
    """NVIDIA's flags may be repeated; the last one must not win without a word."""
    key = flag.replace("-", "_")
    repeated = [word for value in values for word in (f"--{flag}", value)]

    assert agent.make_context("agent", repeated).params[key] == ",".join(values)
    assert agent.make_context("agent", []).params[key] is None


@pytest.mark.parametrize("key", ["mig_strategy", "device_list_strategy", "driver_root", "gfd"])
def test_a_key_without_a_value_in_the_settings_file_is_not_given(tmp_path: Path, key: str) -> None:
    """As in NVIDIA's own file."""
    file = tmp_path / "settings.yaml"
    file.write_text(f"{key}:\n")

    assert load_settings(NAMED, {}, file) == Settings(node_name="n")


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ("device_list_strategy: [envvar, cdi-cri]", "device_list_strategy", "envvar,cdi-cri"),
        ("imex_channel_ids: [0]", "imex_channel_ids", "0"),
        ("imex_channel_ids: 0", "imex_channel_ids", "0"),
    ],
)
def test_a_list_in_the_settings_file_may_be_written_as_one(
    tmp_path: Path, text: str, key: str, wanted: str
) -> None:
    """As in NVIDIA's own file."""
    file = tmp_path / "settings.yaml"
    file.write_text(text)

    assert setting(load_settings(NAMED, {}, file), key) == wanted
