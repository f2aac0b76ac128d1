"""Small things the agent must remember over a restart: card numbers, health, the node's mode."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_device_plugin.errors import StateError
from gpu_device_plugin.store.durable import Sealed, SealedFile

VERSION = 1


class MemoryFile:
    """One sealed JSON object, `<state-dir>/<kind>`."""

    def __init__(self, directory: Path, kind: str, boot_id: str) -> None:
        self._path = directory / kind
        self._file = SealedFile(self._path, kind, VERSION)
        self._boot_id = boot_id
        self._last: str | None = None

    def load(self, now_seconds: float) -> tuple[dict[str, Any], str | None]:
        """What was remembered, and why it was forgotten or None.

        What cannot be trusted is set aside; the write before it counts, where that is whole.
        """
        found = self._file.load(now_seconds)
        bad = f"{found.bad}; set aside as {found.aside.name}" if found.aside else None
        if found.sealed is None:
            return {}, bad
        try:
            return self._parse(found.sealed), bad
        except StateError as error:
            self._file.set_aside(now_seconds)
            return {}, f"{error}; set aside"

    def save(self, content: Mapping[str, Any]) -> None:
        """Remember `content`; writes only what changed.

        Raises:
            StorageError: The file system refused.
        """
        text = json.dumps(content, sort_keys=True)
        if text != self._last or not self._file.is_there():
            self._file.write([text.encode()], self._boot_id)
            self._last = text

    def _parse(self, sealed: Sealed) -> dict[str, Any]:
        try:
            content = json.loads(sealed.payload)
        except ValueError as error:
            raise StateError(f"{self._path}: is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise StateError(f"{self._path}: holds no object")
        return content
