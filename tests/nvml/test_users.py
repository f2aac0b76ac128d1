"""Monitors are seen by the device node that they have open, and our own programs are none."""

from pathlib import Path

from gpu_device_plugin.nvml.users import openers


def process(proc: Path, pid: int, command: str, *files: str) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    for number, file in enumerate(files):
        (proc / str(pid) / "fd" / str(number)).symlink_to(file)


def test_who_has_the_cards_node_open_is_a_user(tmp_path: Path) -> None:
    """Of this card only; a process that cannot be looked at is passed over."""
    process(tmp_path, 7, "dcgm -b", "/dev/nvidiactl", "/dev/nvidia1")
    process(tmp_path, 8, "x", "/dev/nvidia10", "/dev/nvidia0")
    process(tmp_path, 9, "python -m gpu_device_plugin.nvml.child", "/dev/nvidia1")
    (tmp_path / "10").mkdir()

    assert list(openers(1, tmp_path)) == [(7, "dcgm")]
    assert list(openers(2, tmp_path)) == []
