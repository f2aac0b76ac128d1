"""A claim's CDI file is there whole or not at all, and goes with the claim."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from gpu_device_plugin.disk.cdi_files import CdiFiles, read_cdi_cards
from gpu_device_plugin.domain.grants.cdi_spec import CdiCards
from gpu_device_plugin.errors import StorageError

CONTENT = {"kind": "gpu-device-plugin/slice"}


def test_a_file_is_written_once_and_removed_once(tmp_path: Path) -> None:
    files = CdiFiles(tmp_path / "cdi")
    files.write("u1", CONTENT)
    (made,) = (tmp_path / "cdi").iterdir()
    before = made.stat().st_ino
    files.write("u1", CONTENT)

    assert (made.name, made.stat().st_ino) == ("gpu-device-plugin-u1.json", before)
    assert files.present() == {"u1"}
    assert (files.read("u1"), files.read("u2")) == (CONTENT, {})
    for _ in range(2):
        files.remove("u1")
    assert files.present() == frozenset()


def test_what_a_kill_leaves_half_written_is_not_there_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next file takes its place."""

    def killed(_name: str) -> None:
        raise KeyboardInterrupt

    files = CdiFiles(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("gpu_device_plugin.disk.cdi_files.failpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            files.write("u1", CONTENT)
    assert files.present() == frozenset()
    files.write("u2", CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["gpu-device-plugin-u2.json"]


def test_other_files_of_the_directory_are_left_alone(tmp_path: Path) -> None:
    """NVIDIA's own specification lies there too."""
    (tmp_path / "nvidia.json").write_text("{}")
    files = CdiFiles(tmp_path)
    files.write("u1", CONTENT)
    files.remove("u1")

    assert files.present() == frozenset()
    assert (tmp_path / "nvidia.json").exists()


def test_a_directory_that_cannot_be_used_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = CdiFiles(tmp_path / "file" / "cdi")

    assert str(tmp_path / "file") in files.check()
    assert CdiFiles(tmp_path / "new").check() == ""
    with pytest.raises(StorageError, match="cannot be written"):
        files.write("u1", CONTENT)


def test_specifications_of_others_are_read_as_the_runtime_reads_them(tmp_path: Path) -> None:
    """JSON and YAML; what is no specification names nothing."""
    spec = "kind: nvidia.com/gpu\ndevices: [{name: '0'}]\ncontainerEdits: {mounts: [{hostPath: /l.so.5}]}\n"
    (tmp_path / "nvidia.yaml").write_text(spec)
    (tmp_path / "a.json").write_text('{"kind": "a.b/c", "devices": [{"name": "x"}]}')
    for name, text in {
        "bad.json": "{",
        "list.yaml": "[]",
        "wrong.yaml": "kind: 1",
        "no.txt": spec,
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "directory.json").mkdir()

    assert read_cdi_cards(tmp_path / "absent") == []
    assert read_cdi_cards(tmp_path / ("x" * 300)) == []  # an error of the directory itself
    assert read_cdi_cards(tmp_path) == [
        CdiCards("a.b/c", frozenset({"x"}), frozenset()),
        CdiCards("nvidia.com/gpu", frozenset({"0"}), frozenset({"/l.so.5"})),
    ]


def test_a_specification_is_read_again_when_it_has_changed_and_only_then(tmp_path: Path) -> None:
    """The kernel asks the holder of a lease before anybody else opens its file."""
    path, opened = tmp_path / "a.json", list[int]()
    path.write_text('{"kind": "a.b/c"}')
    before = read_cdi_cards(tmp_path)
    descriptor = os.open(path, os.O_RDWR)

    def give_up(asked: int, _frame: object) -> None:
        opened.append(asked)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    previous = signal.signal(signal.SIGIO, give_up)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert read_cdi_cards(tmp_path) == before
        assert not opened
        os.pwrite(descriptor, b'{"kind": "a.b/d"}', 0)
        assert [cards.kind for cards in read_cdi_cards(tmp_path)] == ["a.b/d"]
        assert opened
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, previous)
