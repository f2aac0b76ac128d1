"""The promise: flag over environment over file, under NVIDIA's names, and nothing is set twice."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_device_plugin.cli.main import cli
from gpu_device_plugin.domain.grants.container_edits import DeviceAccess, ListStrategy
from gpu_device_plugin.domain.nvidia.configuration import (
    AllocationPolicy,
    Configuration,
    IdStrategy,
    MigStrategy,
)
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.agent_settings import load_settings
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration

FILE = """
flags:
  migStrategy: mixed
  failOnInitError: false
  plugin: {deviceListStrategy: [envvar, cdi-cri], passDeviceSpecs: true}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """NVIDIA's."""
    return written(tmp_path / "nvidia.yaml", FILE)


def written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def configured(
    flags: Mapping[str, object], environ: Mapping[str, str] = {}, config: Path | None = None
) -> Configuration:
    return nvidia_configuration(load_settings({"node_name": "n1", **flags}, environ, config))


def test_with_none_of_it_everything_has_nvidias_default() -> None:
    """Nothing of MIG, `envvar`, UUIDs."""
    assert configured({}) == Configuration()


def test_the_file_gives_what_neither_flag_nor_environment_says(file: Path) -> None:
    """A flag goes before the environment, that before the file."""
    environ = {"MIG_STRATEGY": "none", "DEVICE_ID_STRATEGY": "index", "PASS_DEVICE_SPECS": "false"}
    found = configured({"config_file": file, "mig_strategy": "single"}, environ)

    assert found == Configuration(
        mig_strategy=MigStrategy.SINGLE,
        fails_on_init_error=False,
        access=DeviceAccess((ListStrategy.ENVVAR, ListStrategy.CDI_CRI)),
        id_strategy=IdStrategy.INDEX,
    )


def test_every_flag_has_its_effect() -> None:
    """As the environment variables of the same names."""
    found = configured(
        {
            "device_list_strategy": "volume-mounts,cdi-annotations",
            "shared_devices_allocation_policy": "packed",
            "driver_root": "/run/nvidia/driver",
            "dev_root": "/host",
            "cdi_annotation_prefix": "example.com/",
            "gdrcopy_enabled": "true",
            "gds_enabled": "true",
            "mofed_enabled": "true",
            "imex_channel_ids": "0",
            "imex_required": "true",
            "mps_root": "/run/nvidia/mps",
        }
    )

    assert found == Configuration(
        access=DeviceAccess(
            (ListStrategy.VOLUME_MOUNTS, ListStrategy.CDI_ANNOTATIONS),
            annotation_prefix="example.com/",
        ),
        allocation_policy=AllocationPolicy.PACKED,
        driver_root="/run/nvidia/driver",
        dev_root="/host",
        is_gdrcopy_on=True,
        is_gds_on=True,
        is_mofed_on=True,
        imex_channels=(0,),
        is_imex_required=True,
        mps_root="/run/nvidia/mps",
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"mig_strategy": "some"}, "--mig-strategy: 'some' is not valid: wanted one of none"),
        ({"compute_policy": "4"}, "--compute-policy: '4' is not valid; known: fixed (3), work-con"),
        ({"device_list_strategy": "envvar,x"}, "--device-list-strategy: 'x' is not valid"),
        ({"device_list_strategy": ""}, "--device-list-strategy: '' is not valid"),
        ({"device_list_strategy": "auto,envvar"}, "auto chooses by itself: leave the others out"),
        (
            {"imex_channel_ids": "1,2"},
            "--imex-channel-ids: channelIDs must be [] or [0]; found [1 2]",
        ),
        ({"gfd_oneshot": "true"}, "--gfd-oneshot: true is not valid: the agent keeps the feature"),
        ({"use_node_feature_api": "true"}, "and no NodeFeature object; leave it out, or false"),
        ({"gfd_sleep_interval": "9s"}, "--gfd-sleep-interval: '9s' is not valid: labels follow"),
        ({"gfd_sleep_interval": "infinite"}, "wanted a time of at least 10s, for instance 60s"),
        ({"config_file": "/nonexistent"}, "/nonexistent: cannot be read"),
        ({"dev_root": "host"}, "--dev-root: 'host' is not an absolute path"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(flags: dict[str, object], words: str) -> None:
    """At the start, with exit code 2 (R-560)."""
    with pytest.raises(ConfigError) as refused:
        configured(flags)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flags: {deviceDiscoveryStrategy: tegra}", "Tegra is not served"),
        ("flags: {migStrategy: x}", "flags.migStrategy: 'x' is not valid"),
        ("flags: {gfd: {oneshot: true}}", "flags.gfd.oneshot: true is not valid"),
        ("flags: {gfd: {sleepInterval: 9000000000}}", "flags.gfd.sleepInterval: '9000000000' is"),
        ("flags: {useNodeFeatureAPI: true}", "flags.useNodeFeatureAPI: true is not valid"),
        ("flags: {mpsRoot: run/mps}", "flags.mpsRoot: 'run/mps' is not an absolute path"),
        ("flags: {nvidiaDriverRoot: a}", "flags.nvidiaDriverRoot: 'a' is not an absolute path"),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}",
            "sharing.timeSlicing.resources[0].replicas: 1",
        ),
    ],
)
def test_a_bad_value_of_the_file_is_refused_with_its_path(
    tmp_path: Path, text: str, words: str
) -> None:
    """And with the file."""
    file = written(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as refused:
        configured({"config_file": file})

    assert str(refused.value).startswith(str(file))
    assert words in str(refused.value)


def test_a_setting_in_both_files_is_refused(tmp_path: Path, file: Path) -> None:
    """Which one was meant is not known; the environment still goes before both."""
    config = written(tmp_path / "config.yaml", f"config_file: {file}\nmig_strategy: single\n")

    with pytest.raises(ConfigError, match=r"mig_strategy and .*flags\.migStrategy are the same"):
        configured({}, config=config)
    assert configured({}, {"MIG_STRATEGY": "none"}, config).mig_strategy is MigStrategy.NONE


def test_a_switch_can_be_set_to_false_on_the_command_line(file: Path) -> None:
    """As NVIDIA's `--fail-on-init-error=false`; without a value it is true."""
    for given in ("--pass-device-specs=false", "--pass-device-specs"):
        arguments = ["agent", given, "--config-file", str(file), "--mig-strategy", "x"]
        result = CliRunner().invoke(cli, arguments, env={"NODE_NAME": "n1"})
        assert isinstance(result.exception, ConfigError)
        assert "--mig-strategy" in str(result.exception)
