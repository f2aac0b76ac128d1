"""The kernel tells of files that come and go in the plugin directory, until nobody listens any more."""

import asyncio
from pathlib import Path

import pytest

from gpu_device_plugin.kubelet.file_events import FileEvents

PATIENCE = 30


async def test_a_file_that_comes_or_goes_is_told(tmp_path: Path) -> None:
    """Each by itself: nothing but the kernel's event sets it."""
    heard = asyncio.Event()
    events = FileEvents(tmp_path, heard.set)
    changes = (
        lambda: (tmp_path / "kubelet.sock").touch(),
        lambda: (tmp_path / "kubelet.sock").rename(tmp_path / "other"),
        lambda: (tmp_path / "other").unlink(),
    )

    for change in changes:
        heard.clear()
        change()
        await asyncio.wait_for(heard.wait(), PATIENCE)
    await events.close()


async def test_a_closed_watch_does_not_silence_the_next(tmp_path: Path) -> None:
    """The next one may get the same descriptor from the kernel."""
    for _ in range(3):
        heard = asyncio.Event()
        events = FileEvents(tmp_path, heard.set)
        (tmp_path / "kubelet.sock").touch()
        await asyncio.wait_for(heard.wait(), PATIENCE)
        (tmp_path / "kubelet.sock").unlink()
        await events.close()


async def test_a_directory_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    """Nor can a file in its place; the look every second has to do."""
    (tmp_path / "file").touch()

    for name in ("nothing", "file"):
        with pytest.raises(OSError, match=name):
            FileEvents(tmp_path / name, lambda: None)
