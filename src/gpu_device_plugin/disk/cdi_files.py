"""The CDI files of claims: how a container runtime learns what a claim's containers receive. And what others name there."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.grants.cdi_spec import CdiCards
from gpu_device_plugin.errors import storage_errors

_PREFIX = "gpu-device-plugin-"
_MAX_BYTES = 4 << 20
_DECODERS = {".json": msgspec.json.decode, ".yaml": msgspec.yaml.decode}


class _CdiMount(msgspec.Struct, rename="camel"):
    host_path: str = ""


class _CdiEdits(msgspec.Struct, rename="camel"):
    mounts: list[_CdiMount] = []


class _CdiDevice(msgspec.Struct):
    name: str = ""


class _CdiFile(msgspec.Struct, rename="camel"):
    kind: str = ""
    devices: list[_CdiDevice] = []
    container_edits: _CdiEdits = msgspec.field(default_factory=_CdiEdits)


def read_cdi_cards(directory: Path) -> list[CdiCards]:
    """What the specifications of others name; one that cannot be read names nothing, as for the container runtime."""
    found, paths = [], list[Path]()
    with suppress(OSError):
        paths = sorted(directory.glob("*"))
    for path in paths:
        with suppress(OSError, ValueError, msgspec.MsgspecError, RecursionError):
            if path.suffix in _DECODERS:
                stat = path.stat()
                found.append(_read(path, (stat.st_ino, stat.st_ctime_ns, stat.st_size)))
    return found


@lru_cache(maxsize=256)
def _read(path: Path, _version: tuple[int, ...]) -> CdiCards:
    with path.open("rb") as opened:
        spec = _DECODERS[path.suffix](opened.read(_MAX_BYTES), type=_CdiFile)
    names = frozenset(device.name for device in spec.devices)
    files = frozenset(mount.host_path for mount in spec.container_edits.mounts)
    return CdiCards(spec.kind, names, files)


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
