"""The promise: a resource has a socket of its own that Linux takes, however long its name is."""

import socket
import tempfile
from pathlib import Path

from gpu_device_plugin.kubelet.directory import PluginDirectory

LONGEST = f"nvidia.com/{'g' * 52}.shared"


def test_the_socket_of_a_long_name_can_be_bound() -> None:
    """63 characters and `.shared`, in a directory deeper than the kubelet's own."""
    with tempfile.TemporaryDirectory(prefix="d" * 40, dir="/tmp") as place:
        bind_all(PluginDirectory(Path(place)))


def bind_all(directory: PluginDirectory) -> None:
    paths = {directory.fresh_socket(name) for name in (LONGEST, LONGEST, f"{LONGEST}d")}

    assert len(paths) == 3
    for path in paths:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


def test_the_socket_of_a_short_name_says_whose_it_is() -> None:
    """For people who look into the directory."""
    assert "-gpu-mem-" in PluginDirectory(Path("/d")).fresh_socket("aliyun.com/gpu-mem").name
