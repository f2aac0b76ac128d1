"""The promise: NVIDIA's configuration files are read as they are, and nothing in them is dropped."""

import json
from pathlib import Path

import pytest
import yaml

from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Devices,
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.nvidia_configuration import ConfigFile, read_config_file

EVERY_KEY = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: false
    noTimestamp: true
    sleepInterval: 60s
    outputFile: /var/lib/labels
    machineTypeFile: /var/lib/machine
resources:
  gpus: [{pattern: "A100*40GB", name: big}]
  mig: [{pattern: "1g*", name: small}]
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
      - {name: nvidia.com/gpu, replicas: 10}
      - {name: small, replicas: 2, rename: smaller, devices: ["0:1", 3]}
imex: {channelIDs: [0], required: true}
"""
# As the blog prints it.
FLAT_IN_THE_SOURCE = """
version: v1
sharing:
 timeSlicing:
 resources:
 - name: nvidia.com/gpu
 replicas: 4
"""
TIME_SLICING = (
    "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
)


def read(directory: Path, text: str, name: str = "config.yaml") -> ConfigFile:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return read_config_file(file)


def test_every_key_of_version_1_is_read(tmp_path: Path) -> None:
    """Each one as the agent's setting, with its path, or as sharing and patterns."""
    found = read(tmp_path, EVERY_KEY)

    assert {key: value for key, (value, _) in found.values.items()} == {
        "mig_strategy": "mixed",
        "fail_on_init_error": False,
        "mps_root": "/run/nvidia/mps",
        "driver_root": "/run/nvidia/driver",
        "dev_root": "/",
        "gdrcopy_enabled": True,
        "gds_enabled": True,
        "mofed_enabled": True,
        "use_node_feature_api": False,
        "device_discovery_strategy": "auto",
        "pass_device_specs": True,
        "device_list_strategy": ("envvar", "cdi-cri"),
        "device_id_strategy": "index",
        "cdi_annotation_prefix": "cdi.k8s.io/",
        "nvidia_cdi_hook_path": "/usr/bin/nvidia-ctk",
        "driver_root_ctr_path": "/driver-root",
        "shared_devices_allocation_policy": "packed",
        "gfd_oneshot": False,
        "gfd_no_timestamp": True,
        "gfd_sleep_interval": "60s",
        "gfd_output_file": "/var/lib/labels",
        "machine_type_file": "/var/lib/machine",
        "imex_channel_ids": (0,),
        "imex_required": True,
    }
    assert found.values["pass_device_specs"][1] == "flags.plugin.passDeviceSpecs"
    assert found.gpu_patterns == (Pattern("A100*40GB", "nvidia.com/big"),)
    assert found.mig_patterns == (Pattern("1g*", "nvidia.com/small"),)
    assert found.sharing == Sharing(
        SharingKind.TIME_SLICING,
        (
            SharedResource(GPU, 10),
            SharedResource(
                "nvidia.com/small", 2, "nvidia.com/smaller", Devices(references=("0:1", "3"))
            ),
        ),
        is_renamed=True,
        is_one_at_most=True,
    )


def test_the_same_in_json_is_the_same(tmp_path: Path) -> None:
    """NVIDIA's plugin reads both; JSON may be indented with tabs."""
    for indent in (None, 2, "\t"):
        in_json = read(
            tmp_path, json.dumps(yaml.safe_load(EVERY_KEY), indent=indent), "config.json"
        )

        assert in_json.sharing == read(tmp_path, EVERY_KEY).sharing
        assert in_json.values == read(tmp_path, EVERY_KEY).values


def test_the_sources_file_is_four_replicas_without_a_new_name(tmp_path: Path) -> None:
    """R-304: neither renamed nor held to one."""
    sharing = read(tmp_path, TIME_SLICING).sharing

    assert sharing.kind is SharingKind.TIME_SLICING
    assert [(each.replicas, sharing.new_name(each)) for each in sharing.resources] == [(4, GPU)]
    assert not sharing.is_one_at_most


def test_the_sample_of_the_source_is_four_replicas_under_the_shared_name(tmp_path: Path) -> None:
    """R-305: which the source's pod asks for."""
    sample = yaml.safe_load(Path("samples/time-slicing/time-slicing.yaml").read_text())
    sharing = read(tmp_path, sample["data"]["default"]).sharing
    pod = yaml.safe_load(Path("samples/time-slicing/test-gpu-pod.yaml").read_text())
    (container,) = pod["spec"]["containers"]

    assert [(each.replicas, sharing.new_name(each)) for each in sharing.resources] == [
        (4, *container["resources"]["limits"])
    ]


def test_mps_holds_requests_to_one_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """Time-slicing does not."""
    mps = "sharing: {{mps: {{{0} resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}}}"

    assert read(tmp_path, mps.format("")).sharing.is_one_at_most
    assert not read(
        tmp_path, mps.format("failRequestsGreaterThanOne: false,")
    ).sharing.is_one_at_most


@pytest.mark.parametrize(
    "text",
    [
        "version: v1\nflags:\n",
        "version: v1\nresources:\n  gpus:\n  mig:\n",
        "flags: {plugin: null, gfd: null}\nimex:\nsharing: {timeSlicing: , mps: }\n",
        "version:\n",
    ],
)
def test_an_empty_section_is_one_that_is_not_there(tmp_path: Path, text: str) -> None:
    """NVIDIA's own examples have such."""
    found = read(tmp_path, text)

    assert (found.values, found.sharing, found.gpu_patterns) == ({}, Sharing(), ())


def test_a_key_without_a_value_has_its_default(tmp_path: Path) -> None:
    """Of an entry too; a list has no empty entries."""
    entry = "{name: gpu, replicas: 2, rename: null, devices: null}"
    text = f"sharing: {{timeSlicing: {{renameByDefault: null, resources: [{entry}]}}}}"

    assert read(tmp_path, text).sharing.resources == (SharedResource(GPU, 2),)
    with pytest.raises(ConfigError, match=r"resources\.mig"):
        read(tmp_path, "resources: {mig: [null]}")


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    """Its version is v1."""
    assert read(tmp_path, "").values == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: v2", "version: unknown version: v2"),
        ("mode: share", "mode: unknown key"),
        ("mode: share", "--config"),
        (FLAT_IN_THE_SOURCE, "sharing.resources: its indentation is lost; replicas are given as"),
        ("timeSlicing:\nresources:\n- name: gpu\nreplicas: 4", "replicas: its indentation is lost"),
        (
            "flags: {migstrategy: mixed}",
            "flags: unknown key 'migstrategy'; did you mean 'migStrategy'?",
        ),
        (
            "flags: {deviceListStrategy: envvar}",
            "flags: unknown key 'deviceListStrategy'; it belongs to flags.plugin.deviceListStrategy",
        ),
        (
            "flags: {renameByDefault: true}",
            "it belongs to sharing.timeSlicing.renameByDefault or sharing.mps.renameByDefault",
        ),
        ("imex: {x: 1}", "imex: unknown key 'x'; the keys here are channelIDs, required"),
        (
            "sharing: {mps: {resources: [{name: gpu, replica: 2}]}}",
            "sharing.mps.resources[0]: unknown key 'replica'; did you mean 'replicas'?",
        ),
        ("flags: {plugin: {passDeviceSpecs: 1}}", "flags.plugin.passDeviceSpecs: "),
        ("sharing: {timeSlicing: {}}", "sharing.timeSlicing.resources: no resources specified"),
        ("sharing: {timeSlicing: {resources: [{name: gpu}]}}", "sharing.timeSlicing.resources[0]"),
        (
            "sharing: {timeSlicing: {resources: [{name: Gpu, replicas: 2}]}}",
            "sharing.timeSlicing.resources[0].name: 'nvidia.com/Gpu' is not a resource name",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: some}]}}",
            "sharing.mps.resources[0].devices: 'some'",
        ),
        ("sharing: {mps: {resources: []}, timeSlicing: {resources: []}}", "exclude each other"),
        ("resources: {gpus: [{pattern: '*', name: 'a b'}]}", "resources.gpus[0].name"),
        ("- version", "wanted keys and values at the top level, not a list"),
        ("flags: &flags {plugin: *flags}", "an alias stands within what it is an alias of"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    """Whatever NVIDIA's plugin would make of it (R-303)."""
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)

    assert str(refused.value).startswith(str(tmp_path / "config.yaml"))
    assert words in str(refused.value)
