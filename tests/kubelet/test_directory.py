"""The promise: a resource has a socket of its own that Linux takes, however long its name is."""

import socket
from pathlib import Path

import pytest

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubelet.plugin_directory import PluginDirectory
from gpu_device_plugin.settings.agent_settings import Settings, load_settings

LONGEST_KUBELET_DIR = 63
LONGEST = f"nvidia.com/{'g' * 52}.shared"


def test_the_socket_of_a_long_name_can_be_bound(short_dir: Path) -> None:
    """63 characters and `.shared`, below the longest `--kubelet-dir` that the settings take."""
    kubelet_dir = short_dir / ("d" * (LONGEST_KUBELET_DIR - len(str(short_dir)) - 1))
    directory = PluginDirectory(kubelet_dir / "device-plugins")
    directory.path.mkdir(parents=True)
    paths = {directory.fresh_socket(name) for name in (LONGEST, LONGEST, f"{LONGEST}d")}

    assert len(paths) == 3
    for path in paths:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


def test_a_kubelet_dir_too_long_for_a_socket_below_it_is_refused() -> None:
    """At the start, not with `AF_UNIX path too long` once the kubelet is there."""
    longest, longer = f"/{'d' * (LONGEST_KUBELET_DIR - 1)}", f"/{'d' * LONGEST_KUBELET_DIR}"

    assert settings_of(longest).kubelet_dir == longest
    with pytest.raises(ConfigError, match=r"--kubelet-dir: .* is too long by 1 byte:"):
        settings_of(longer)


def settings_of(kubelet_dir: str) -> Settings:
    return load_settings({"node_name": "n1", "kubelet_dir": kubelet_dir}, {}, None)


def test_the_socket_of_a_short_name_says_whose_it_is() -> None:
    """For people who look into the directory."""
    assert "-gpu-mem-" in PluginDirectory(Path("/d")).fresh_socket("aliyun.com/gpu-mem").name
