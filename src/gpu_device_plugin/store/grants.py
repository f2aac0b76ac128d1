"""The grants on disk: durable before the kubelet hears of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.domain.ledger import Grant, Ledger, grant_from_plain, grant_to_plain
from gpu_device_plugin.errors import StateError
from gpu_device_plugin.store.durable import SealedFile, check_room

KIND = "grants"
VERSION = 1
_ROOM_BYTES = 64 * 1024  # a hundred grants


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the disk remembered.

    Attributes:
        ledger: The grants of the last write that is whole; empty where there was none.
        is_new_boot: They were written before the node's last boot.
        bad: Why a file could not be trusted, or None. What it held beyond `ledger`, the kubelet
            knows: it has never heard of a grant whose write was not complete.
        aside: Where that file was put, or None.
    """

    ledger: Ledger
    is_new_boot: bool = False
    bad: str | None = None
    aside: Path | None = None


class GrantStore:
    """Reads and writes `<state-dir>/grants`. Each grant is encoded once, then kept."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._file = SealedFile(path, KIND, VERSION)
        self._boot_id = boot_id
        self._encoded: dict[str, tuple[Grant, bytes]] = {}

    def load(self, now_seconds: float) -> Loaded:
        """What is on disk; a file that cannot be trusted is set aside, never a crash.

        Raises:
            StorageError: The file system refused.
        """
        found = self._file.load(now_seconds)
        if found.sealed is None:
            return Loaded(Ledger(), bad=found.bad or None, aside=found.aside)
        try:
            grants = _decode(self._path, found.sealed.payload)
        except StateError as error:
            return Loaded(Ledger(), bad=str(error), aside=self._file.set_aside(now_seconds))
        return Loaded(
            Ledger({grant.slice_id: grant for grant in grants}),
            is_new_boot=found.sealed.boot_id != self._boot_id,
            bad=found.bad or None,
            aside=found.aside,
        )

    def check_room(self) -> None:
        """Whether the disk has room for more grants.

        Raises:
            StorageError: It has not.
        """
        check_room(self._path.with_name(self._path.name + ".room"), _ROOM_BYTES)

    def save(self, ledger: Ledger) -> None:
        """Put the whole ledger on disk; on return it is durable.

        Raises:
            StorageError: The file system refused; what was there is untouched.
        """
        encoded: dict[str, tuple[Grant, bytes]] = {}
        for key, grant in ledger.grants.items():
            known = self._encoded.get(key)
            if known is not None and known[0] is grant:
                encoded[key] = known
            else:
                encoded[key] = (grant, _encode(grant))
        self._file.write([line for _, line in encoded.values()], self._boot_id)
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
