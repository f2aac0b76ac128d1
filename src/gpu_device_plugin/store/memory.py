"""Small things the agent must remember over a restart: card numbers, health, the node's mode."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_device_plugin.errors import StateError
from gpu_device_plugin.store.durable import Sealed, read_sealed, seal, set_aside, write_durably

VERSION = 1


class MemoryFile:
    """One sealed JSON object, `<state-dir>/<kind>`."""

    def __init__(self, directory: Path, kind: str, boot_id: str) -> None:
        self._path = directory / kind
        self._kind = kind
        self._boot_id = boot_id
        self._last: str | None = None

    def load(self, now_seconds: float) -> tuple[dict[str, Any], str | None]:
        """What was remembered, and why it was forgotten or None.

        A file that cannot be trusted is set aside and counts as empty.
        """
        try:
            sealed = read_sealed(self._path, self._kind, VERSION)
            if sealed is None:
                return {}, None
            return self._parse(sealed), None
        except StateError as error:
            aside = set_aside(self._path, now_seconds)
            return {}, f"{error}; set aside as {aside.name}"

    def save(self, content: Mapping[str, Any]) -> None:
        """Remember `content`; writes only what changed.

        Raises:
            StorageError: The file system refused.
        """
        text = json.dumps(content, sort_keys=True)
        if text != self._last or not self._path.exists():
            write_durably(self._path, seal(self._kind, VERSION, self._boot_id, [text.encode()]))
            self._last = text

    def _parse(self, sealed: Sealed) -> dict[str, Any]:
        try:
            content = json.loads(sealed.payload)
        except ValueError as error:
            raise StateError(f"{self._path}: is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise StateError(f"{self._path}: holds no object")
        return content
