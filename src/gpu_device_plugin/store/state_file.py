"""Small state that is kept over a restart: card numbers, health, the node's mode."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gpu_device_plugin.store.durable import SealedFile
from gpu_device_plugin.store.grant_records import Plain, plain_of
from gpu_device_plugin.store.writer import Writer, report

VERSION = 1
_Record = TypeVar("_Record", bound=msgspec.Struct)


class MemoryFile(Generic[_Record]):
    """One sealed JSON object, `<state-dir>/<kind>`; every key has a default."""

    def __init__(self, directory: Path, kind: str, record: type[_Record], boot_id: str) -> None:
        self._path = directory / kind
        self._file = SealedFile(self._path, kind, VERSION)
        self._record = record
        self._boot_id = boot_id
        self._read: Plain = {}
        self._last: bytes | None = None

    def load(self, now_seconds: float) -> tuple[_Record, str | None]:
        """The stored values, and why some or all of them are lost, or None.

        A damaged file is set aside; then the write before it counts, if that is whole. For a key
        that this release cannot read the default is used, and the others count.

        Raises:
            StorageError: The file system refused.
        """
        found = self._file.load(now_seconds)
        bad = [f"{found.bad}; set aside as {found.aside.name}"] if found.aside else []
        if found.sealed is not None:
            try:
                self._read = msgspec.json.decode(found.sealed.payload, type=dict[str, Any])
            except msgspec.DecodeError as error:
                self._file.set_aside(now_seconds)
                bad.append(f"{self._path}: {error}; set aside")
        values = {}
        for field in msgspec.structs.fields(self._record):
            if field.encode_name in self._read:
                try:
                    values[field.name] = msgspec.convert(self._read[field.encode_name], field.type)
                except msgspec.ValidationError as error:
                    bad.append(f"{self._path}: {field.encode_name} is ignored: {error}")
        return self._record(**values), "; ".join(bad) or None

    def save(self, content: _Record) -> None:
        """Store `content`, if it has changed.

        Raises:
            StorageError: The file system refused.
        """
        payload = msgspec.json.encode(plain_of(content, self._read), order="sorted")
        if payload != self._last or not self._file.is_there():
            self._file.write([payload], self._boot_id)
            self._last = payload


class Memory(Generic[_Record]):
    """A memory file that the writer thread writes: saving waits for nothing."""

    def __init__(self, file: MemoryFile[_Record], writer: Writer) -> None:
        self._file = file
        self._writer = writer
        self._lock = threading.Lock()  # never held during a write
        self._in_line: list[_Record] = []

    async def load(self, now_seconds: float) -> tuple[_Record, str | None]:
        """See `MemoryFile.load`."""
        return await self._writer.run(partial(self._file.load, now_seconds))

    def save(self, content: _Record) -> None:
        """Store `content` soon; of several in the queue only the last. Errors are logged."""
        with self._lock:
            is_first = not self._in_line
            self._in_line.append(content)
        if is_first:
            done = asyncio.get_running_loop().run_in_executor(self._writer, self._save_last)
            done.add_done_callback(report)

    def _save_last(self) -> None:
        with self._lock:
            in_line, self._in_line = self._in_line, []
        self._file.save(in_line[-1])
