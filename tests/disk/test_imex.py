"""The promise: an IMEX channel is one only if its device node is seen."""

from pathlib import Path

from gpu_device_plugin.disk.device_nodes import imex_channels


def test_a_channel_is_there_if_one_of_the_roots_has_its_node(tmp_path: Path) -> None:
    """A file of that name is none."""
    nodes = tmp_path / "driver-root" / "dev" / "nvidia-caps-imex-channels"
    nodes.mkdir(parents=True)
    roots = (tmp_path / "driver-root", tmp_path / "missing")
    assert imex_channels((0, 1), roots) == ()
    (nodes / "channel0").touch()
    (nodes / "channel1").symlink_to("/dev/null")

    assert imex_channels((0, 1), roots) == (1,)
