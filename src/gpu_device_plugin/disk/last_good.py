"""The last text of a foreign file that was good: kept in the state directory over a restart."""

import os
from contextlib import suppress
from pathlib import Path

from gpu_device_plugin.disk.durable import sync_directory


class LastGood:
    """A copy at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, text: str) -> None:
        """Keep this text from now on; the same one keeps its time. Raises OSError: then nothing is kept."""
        content = text.encode()
        with suppress(FileNotFoundError):
            if self.path.read_bytes() == content:
                return
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self.path)
        except OSError:
            self.forget()  # an older one would outlive this one
            raise
        sync_directory(self.path.parent)

    def forget(self) -> None:
        """There is no file any more, and none that could be older than it. Raises OSError."""
        self.path.unlink(missing_ok=True)

    @property
    def since_seconds(self) -> float | None:
        """Since when it has been kept, by the wall clock; None where nothing is."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None
