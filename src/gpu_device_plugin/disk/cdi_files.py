"""The CDI files of claims: how a container runtime learns what a claim's containers receive."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.errors import storage_errors

_PREFIX = "gpu-device-plugin-"


class CdiFiles:
    """One file a claim, below a directory that the container runtime reads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, uid: str, content: Mapping[str, object]) -> None:
        """Write a claim's file, whole or not at all; one that says the same is left alone."""
        path, encoded = self._path(uid), json.dumps(content).encode()
        # One name: what a kill leaves is overwritten.
        hidden = self._directory / f"{_PREFIX}half.tmp"
        with storage_errors("written", path):
            if path.is_file() and path.read_bytes() == encoded:
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            hidden.write_bytes(encoded)
            failpoint("cdi.before-rename")
            hidden.replace(path)

    def read(self, uid: str) -> Mapping[str, object]:
        """Content of a claim's file; empty where it cannot be read."""
        try:
            content = json.loads(self._path(uid).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def remove(self, uid: str) -> None:
        path = self._path(uid)
        with storage_errors("removed", path):
            path.unlink(missing_ok=True)

    def present(self) -> frozenset[str]:
        return frozenset(
            path.stem.removeprefix(_PREFIX) for path in self._directory.glob(f"{_PREFIX}*.json")
        )

    def check(self) -> str:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{self._directory}: cannot be made: {error.strerror}"
        is_writable = os.access(self._directory, os.W_OK | os.X_OK)
        return "" if is_writable else f"{self._directory}: cannot be written"

    def _path(self, uid: str) -> Path:
        return self._directory / f"{_PREFIX}{uid}.json"
