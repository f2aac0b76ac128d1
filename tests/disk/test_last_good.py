"""The promise: the text that is kept over a restart is never older than the last good one."""

from pathlib import Path

import pytest

from gpu_device_plugin.disk.last_good import LastGood


def test_a_text_that_cannot_be_kept_leaves_no_older_one(tmp_path: Path) -> None:
    """At the next start the older one would count in its place."""
    last = LastGood(tmp_path / "config")
    last.keep("first")
    assert last.since_seconds is not None
    (tmp_path / "config.new").mkdir()
    with pytest.raises(IsADirectoryError):
        last.keep("second")
    assert last.since_seconds is None
