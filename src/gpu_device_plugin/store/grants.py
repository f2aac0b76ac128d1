"""The grants on disk: durable before the kubelet hears of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.domain.ledger import Grant, Ledger, grant_from_plain, grant_to_plain
from gpu_device_plugin.errors import StateError
from gpu_device_plugin.store.durable import check_room, read_sealed, seal, set_aside, write_durably

KIND = "grants"
VERSION = 1
_ROOM_BYTES = 64 * 1024  # a hundred grants


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the disk remembered.

    Attributes:
        ledger: The grants; empty where there was no usable file.
        is_new_boot: The file was written before the node's last boot.
        bad: Why the file could not be trusted, or None.
        aside: Where it was put, or None.
    """

    ledger: Ledger
    is_new_boot: bool = False
    bad: str | None = None
    aside: Path | None = None


class GrantStore:
    """Reads and writes `<state-dir>/grants`. Each grant is encoded once, then kept."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._encoded: dict[str, tuple[Grant, bytes]] = {}

    def load(self, now_seconds: float) -> Loaded:
        """What is on disk; a file that cannot be trusted is set aside, never a crash.

        Raises:
            StorageError: The file system refused.
        """
        try:
            sealed = read_sealed(self._path, KIND, VERSION)
            if sealed is None:
                return Loaded(Ledger())
            grants = _decode(self._path, sealed.payload)
        except StateError as error:
            return Loaded(Ledger(), bad=str(error), aside=set_aside(self._path, now_seconds))
        ledger = Ledger({grant.slice_id: grant for grant in grants})
        return Loaded(ledger, is_new_boot=sealed.boot_id != self._boot_id)

    def check_room(self) -> None:
        """Whether the disk has room for more grants.

        Raises:
            StorageError: It has not.
        """
        check_room(self._path.with_name(self._path.name + ".room"), _ROOM_BYTES)

    def save(self, ledger: Ledger) -> None:
        """Put the whole ledger on disk; on return it is durable.

        Raises:
            StorageError: The file system refused; the old file is whole.
        """
        encoded: dict[str, tuple[Grant, bytes]] = {}
        for key, grant in ledger.grants.items():
            known = self._encoded.get(key)
            if known is not None and known[0] is grant:
                encoded[key] = known
            else:
                encoded[key] = (grant, _encode(grant))
        lines = [line for _, line in encoded.values()]
        write_durably(self._path, seal(KIND, VERSION, self._boot_id, lines))
        self._encoded = encoded


def _encode(grant: Grant) -> bytes:
    return json.dumps(grant_to_plain(grant), separators=(",", ":")).encode() + b"\n"


def _decode(path: Path, payload: bytes) -> list[Grant]:
    grants = []
    for number, line in enumerate(payload.splitlines(), 1):
        try:
            plain = json.loads(line)
        except ValueError as error:
            raise StateError(f"{path}: grant {number} is not JSON: {error}") from error
        grants.append(grant_from_plain(plain))
    return grants
