"""Settings come from flag, environment and file, in that order; what is wrong is named."""

from pathlib import Path

import pytest

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.agent_settings import Isolation, Settings, load_settings
from gpu_device_plugin.settings.controller_settings import load_controller_settings
from gpu_device_plugin.settings.setting import settings_of

NAMED = {"NODE_NAME": "n1"}


def test_flag_stands_over_environment_over_file(tmp_path: Path) -> None:
    """Each source wins over those behind it."""
    file = tmp_path / "settings.yaml"
    file.write_text("mode: cgpu\nplacement: spread\nrecovery_seconds: 5\n")
    environ = {**NAMED, "GPU_DEVICE_PLUGIN_MODE": "share", "GPU_DEVICE_PLUGIN_PLACEMENT": "binpack"}

    found = load_settings({"mode": "core_mem"}, environ, file)

    assert (found.mode, found.placement, found.recovery_seconds) == ("core_mem", "binpack", 5)


@pytest.mark.parametrize(
    ("flag", "value"), [("tls_names", "föö"), ("client_name", ""), ("client_name", "a" * 65)]
)
def test_names_that_no_certificate_can_have_are_refused_by_their_flag(
    flag: str, value: str
) -> None:
    """Before anything is made."""
    with pytest.raises(
        ConfigError, match=f"--{flag.replace('_', '-')}: '{value[:60]}.*' is not valid"
    ):
        load_controller_settings({flag: value}, {}, None)


def test_a_bare_on_or_off_in_yaml_is_the_word_not_a_boolean(tmp_path: Path) -> None:
    """YAML reads `off` as false; the operator means the word."""
    file = tmp_path / "settings.yaml"
    file.write_text("isolation: off\nhonor_cgpu_disable: yes\n")

    found = load_settings({}, NAMED, file)

    assert found.isolation is Isolation.OFF
    assert found.honor_cgpu_disable


@pytest.mark.parametrize(
    ("flags", "environ", "text", "words"),
    [
        pytest.param({}, {}, "", ["--node-name", "NODE_NAME"], id="no node name"),
        pytest.param(
            {},
            NAMED,
            "modee: cgpu",
            ["unknown key 'modee'; did you mean 'mode'?"],
            id="unknown key",
        ),
        pytest.param({}, NAMED, "- a", ["list"], id="not a mapping"),
        pytest.param({}, NAMED, "a: [", ["YAML"], id="not YAML"),
        pytest.param({}, NAMED, "? [a, b]\n: 1", ["YAML", "sequence", "line 1"], id="odd key"),
        pytest.param({}, NAMED, b"\xff\xfe", ["UTF-8"], id="not UTF-8"),
        pytest.param({"mode": "gpu"}, NAMED, "", ["--mode", "'gpu'", "core_mem"], id="bad mode"),
        pytest.param(
            {},
            {**NAMED, "GPU_DEVICE_PLUGIN_MEMORY_UNIT": "1GiB"},
            "",
            ["MEMORY_UNIT", "128MiB"],
            id="bad unit",
        ),
        pytest.param(
            {"standalone": True, "kubeconfig": "/k"},
            NAMED,
            "",
            ["--standalone", "--kubeconfig"],
            id="impossible pair",
        ),
        pytest.param(
            {"standalone": True},
            {**NAMED, "KUBECONFIG": "/k"},
            "",
            ["--standalone and KUBECONFIG"],
            id="impossible pair, half of it around us",
        ),
        pytest.param({"state_dir": "state"}, NAMED, "", ["--state-dir", "absolute"], id="path"),
        pytest.param(
            {"run_dir": f"/{'r' * 99}"},
            NAMED,
            "",
            ["--run-dir", "too long by 4 bytes"],
            id="socket",
        ),
        pytest.param(
            {"kubelet_dir": f"/{'k' * 90}"},
            NAMED,
            "",
            ["--kubelet-dir", "at most 107"],
            id="sockets",
        ),
        pytest.param({"recovery_seconds": "0"}, NAMED, "", ["--recovery-seconds"], id="range"),
        pytest.param({"standalone": "maybe"}, NAMED, "", ["--standalone", "true"], id="switch"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path,
    flags: dict[str, object],
    environ: dict[str, str],
    text: str | bytes,
    words: list[str],
) -> None:
    """The text names the place it came from, what was given, and what is allowed."""
    file = tmp_path / "settings.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)

    with pytest.raises(ConfigError) as caught:
        load_settings(flags, environ, file)

    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """`--config` with a typing error starts nothing."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_settings({}, NAMED, tmp_path / "nowhere.yaml")


def test_variables_that_kubernetes_makes_for_a_service_are_no_settings() -> None:
    """A Service named gpu-device-plugin brings GPU_DEVICE_PLUGIN_PORT into every pod."""
    found = load_settings({}, {**NAMED, "GPU_DEVICE_PLUGIN_PORT": "tcp://10.0.0.1:9445"}, None)

    assert found == Settings(node_name="n1")


def test_defaults_are_the_documented_ones() -> None:
    """A node without any setting is core_mem, in GiB, packed, isolated."""
    found = load_settings({}, NAMED, None)

    assert (found.mode, found.memory_unit) == (NodeMode.CORE_MEM, MemoryUnit.GIB)
    assert (found.isolation, found.metrics_address) == (Isolation.ON, ":9445")


def test_every_setting_says_what_it_does() -> None:
    """The help text and the docs are made from these."""
    assert all(each.text.endswith(".") for each in settings_of(Settings))
