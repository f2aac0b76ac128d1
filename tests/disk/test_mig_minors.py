"""The promise: the driver's list of MIG nodes is read as far as it is understood."""

from pathlib import Path

from gpu_device_plugin.disk.device_nodes import read_mig_minors


def test_the_nodes_of_instances_are_read_and_other_lines_are_left(tmp_path: Path) -> None:
    """A GPU instance has one node, each of its compute instances another."""
    file = tmp_path / "mig-minors"
    file.write_text("config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\n")

    assert read_mig_minors(file) == {(0, 7, None): 66, (0, 7, 0): 67}
    file.write_text("gpu0/gi7/access 68\n")
    assert read_mig_minors(file) == {(0, 7, None): 68}, "a driver that was loaded again"


def test_a_host_without_mig_has_none(tmp_path: Path) -> None:
    """The file is the driver's."""
    assert read_mig_minors(tmp_path / "missing") == {}
