"""A lock that cannot be had says what keeps it from the agent."""

import errno
import os
from pathlib import Path

import pytest

from gpu_device_plugin.disk.locks import NodeLock
from gpu_device_plugin.errors import ConfigError, StorageError


@pytest.mark.parametrize(("code", "is_about_labels"), [(errno.EACCES, True), (errno.EROFS, False)])
def test_a_directory_that_denies_root_points_at_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_about_labels: bool
) -> None:
    """The kernel is the only stand-in here: root is denied by SELinux alone."""

    def denied(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StorageError) as refusal:
        NodeLock(tmp_path / "lock").take("", 1)
    monkeypatch.undo()
    text = str(refusal.value)
    assert f"{tmp_path}/lock: cannot be opened: {os.strerror(code)}" in text
    assert (f"chcon -R -t container_file_t -l s0 {tmp_path}" in text) is is_about_labels


@pytest.mark.parametrize(("code", "is_lost"), [(errno.ENOENT, True), (errno.EIO, False)])
def test_only_a_lock_whose_file_is_gone_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_lost: bool
) -> None:
    """An agent whose disk fails goes on: containers start by it."""
    lock = NodeLock(tmp_path / "lock")
    lock.take("", 1)
    assert not lock.keep()
    answers = [OSError(code, os.strerror(code))]
    real = Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if answers:
            raise answers.pop()
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    assert lock.keep() is is_lost
    monkeypatch.undo()
    assert not lock.keep()


def test_a_full_disk_keeps_no_agent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file says is for people; the lock needs no room."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    first, second = NodeLock(tmp_path / "lock"), NodeLock(tmp_path / "lock")
    first.take("a/b", 1)
    with pytest.raises(ConfigError):
        second.take("c/d", 2)
    first.release()
    second.take("c/d", 2)
    second.release()
