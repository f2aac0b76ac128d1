"""The grants on disk, durable before the kubelet gets its answer.

The file is `<state-dir>/grants`: `{"grants": […]}`, see `GrantRecord`. The rules
of the format are in docs/adr/0012: a missing key has its default, a key that this release does not
know is written back as it was read, and an error names the path of what cannot be read. A new key
needs a default. A key that is removed or changes its meaning needs a new layout.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpu_device_plugin.disk.durable import SealedFile, check_room, fdatasync
from gpu_device_plugin.disk.state_file import Plain, plain_of
from gpu_device_plugin.domain.cards.memory_unit import MiB, Units
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Resized, Share, UnitsAndPercent
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.compute_policy import ComputePolicy
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import StateError

_FileName = Annotated[str, msgspec.Meta(pattern=r"^[^./][^/]*$")]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class HolderRecord(msgspec.Struct, frozen=True):
    """The container or claim that holds a grant; see `domain.grants.grant.Holder`."""

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""
    kind: ContainerKind = ContainerKind.APP
    index: int = 0
    claim: str = ""
    claim_name: str = ""


class ShareRecord(msgspec.Struct, frozen=True):
    """A part of one device; `memory_bytes` is null while it is not known."""

    device: str
    memory_bytes: _Size | None = None
    is_exclusive: bool = False


class ResizedRecord(msgspec.Struct, frozen=True):
    """What of a slice is no longer as its pod asked; see `domain.grants.grant.Resized`."""

    units: _Size
    percent: _Size
    extra: dict[str, list[str]] = {}
    revision: _Size = 0


class GrantRecord(msgspec.Struct, frozen=True):
    """One grant. `units` are ids by the name of their resource, shares in order of NVML index.

    Beside these keys stand those that only fractions have (`Schemes.own_record`).
    """

    id: _FileName
    holder: HolderRecord
    units: dict[str, list[str]] = {}
    shares: list[ShareRecord] = []
    core_percent: int = 0
    is_isolated: bool = True
    is_checked: bool = True
    library_version: str = ""
    created_seconds: float = 0.0
    compute_policy: ComputePolicy = ComputePolicy.FIXED
    memory_enforcer: MemoryEnforcer = MemoryEnforcer.LIBRARY
    resized: ResizedRecord | msgspec.UnsetType = msgspec.UNSET


# Keys that a grant and its record have alike.
_ALIKE = (
    *("is_isolated", "is_checked", "library_version", "created_seconds"),
    *("compute_policy", "memory_enforcer"),
)


def record_of(grant: Grant) -> GrantRecord:
    """The record of a grant, without what only its scheme knows."""
    pod, holder = grant.pod, grant.holder
    place = holder.container, holder.kind, holder.index, holder.claim, holder.claim_name
    return GrantRecord(
        id=grant.slice_id,
        holder=HolderRecord(pod.namespace, pod.name, pod.uid, *place),
        units={str(name): list(ids) for name, ids in sorted(grant.units.items())},
        shares=[ShareRecord(s.device, s.memory_bytes, s.is_exclusive) for s in grant.shares],
        core_percent=grant.core_percent,
        resized=_resized_record(grant.resized),
        **{name: getattr(grant, name) for name in _ALIKE},
    )


def grant_of(record: GrantRecord) -> Grant:
    """The grant of a record, without what only its scheme knows."""
    holder, core = record.holder, record.core_percent
    pod = PodRef(holder.namespace, holder.pod, holder.uid)
    place = holder.container, holder.kind, holder.index, holder.claim, holder.claim_name
    return Grant(
        slice_id=record.id,
        holder=Holder(pod, *place),
        units={name: tuple(ids) for name, ids in record.units.items()},
        shares=tuple(_share(s, core) for s in record.shares),
        resized=_resized(record.resized),
        **{name: getattr(record, name) for name in _ALIKE},
    )


def _resized_record(resized: Resized | None) -> ResizedRecord | msgspec.UnsetType:
    if resized is None:
        return msgspec.UNSET
    extra = {str(name): list(ids) for name, ids in sorted(resized.extra.items())}
    return ResizedRecord(*resized.limit, extra, resized.revision)


def _resized(record: ResizedRecord | msgspec.UnsetType) -> Resized | None:
    if record is msgspec.UNSET:
        return None
    limit = UnitsAndPercent(Units(record.units), record.percent)
    extra = {name: tuple(ids) for name, ids in record.extra.items()}
    return Resized(limit, extra, record.revision)


def _share(record: ShareRecord, core_percent: int) -> Share:
    size = record.memory_bytes
    mib = MiB((size or 0) // 2**20)  # of fractions it is what was asked: see `AliyunScheme.restore`
    return Share(record.device, size, core_percent, record.is_exclusive, mib)


KIND = "grants"
VERSION = 1
_ROOM_BYTES = 64 * 1024  # a hundred grants


@dataclass(frozen=True, slots=True)
class Loaded:
    """The grants that were on disk."""

    ledger: Ledger
    is_new_boot: bool = False  # whether they were written before the node's last boot
    bad: str | None = None
    """What is damaged in a file. The kubelet knows the grants that are lost with it, and never got
    an answer for a grant whose write was not complete."""
    may_lack: bool = False
    """A damaged file still lies there: files that no grant names may be in use."""


class GrantStore:
    """Reads and writes the grants below `<state-dir>`. Each grant is encoded once and cached.

    Grants of other schemes than `schemes` stay in the file as they are.
    """

    def __init__(
        self,
        directory: Path,
        boot_id: str,
        flush: Callable[[int], None] = fdatasync,
        schemes: Schemes | None = None,
    ) -> None:
        self._schemes = schemes or Schemes()
        self._path = directory / KIND
        self._file = SealedFile(self._path, KIND, VERSION, flush)
        self._boot_id = boot_id
        self._encoded: dict[str, tuple[Grant, msgspec.Raw]] = {}
        self._read: dict[str, Plain] = {}  # grants as they were read, by slice
        self._unread: list[Any] = []  # entries that this release cannot read, as they were
        self._beside: Plain = {}  # what else the file holds

    def load(self, now_seconds: float) -> Loaded:
        """Read the grants; a damaged file is set aside and never a crash."""
        found, bad = self._file.load(now_seconds), list[str]()
        sealed, grants = found.sealed, dict[str, Grant]()
        if found.bad:
            bad.append(found.bad)
        if sealed is not None:
            try:
                grants, self._unread = self._decode(sealed.payload, bad)
            except (ValueError, StateError) as error:  # msgspec's errors are ValueErrors
                bad.append(f"{self._path}: {error}")
                sealed = None
                self._file.set_aside(now_seconds)
        return Loaded(
            Ledger(grants),
            is_new_boot=sealed is not None and sealed.boot_id != self._boot_id,
            bad="; ".join(bad) or None,
            may_lack=any(self._path.parent.glob(f"{KIND}*.bad-*")),
        )

    def read(self) -> Ledger:
        """Read the grants without writing anything; StateError if they are damaged."""
        sealed, bad = self._file.read(), list[str]()
        grants, _ = self._decode(sealed.payload, bad) if sealed else ({}, [])
        if bad:
            raise StateError("; ".join(bad))
        return Ledger(grants)

    def check_room(self) -> None:
        """StorageError unless the disk has room for more grants."""
        check_room(self._path.with_name("grants.room"), _ROOM_BYTES)

    def save(self, ledger: Ledger) -> None:
        """Write the whole ledger: durable on return. After a StorageError the file is untouched."""
        self._encoded = {key: self._encode(key, grant) for key, grant in ledger.grants.items()}
        kept = [entry for entry in self._unread if _text(entry, "id") not in ledger.grants]
        grants: list[Any] = [raw for _, raw in self._encoded.values()]
        content = msgspec.json.encode({"grants": [*grants, *kept], **self._beside})
        self._file.write([content], self._boot_id)

    def forget(self, slice_ids: Collection[str], pod_uids: Collection[str] = ()) -> None:
        """Drop entries that this release cannot read, of slices and pods that have certainly ended."""
        self._unread = [
            entry
            for entry in self._unread
            if _text(entry, "id") not in slice_ids
            and (_text(entry, "holder", "uid") or None) not in pod_uids
        ]

    def _encode(self, key: str, grant: Grant) -> tuple[Grant, msgspec.Raw]:
        known = self._encoded.get(key)
        if known is not None and known[0] is grant:
            return known
        plain = plain_of(record_of(grant), self._read.get(key), self._schemes.own_record(grant))
        return grant, msgspec.Raw(msgspec.json.encode(plain))

    def _decode(self, payload: bytes, bad: list[str]) -> tuple[dict[str, Grant], list[Any]]:
        top = msgspec.json.decode(payload)
        if not isinstance(top, dict) or not isinstance(top.get("grants"), list):
            raise StateError("holds no list of grants")
        self._beside = {key: value for key, value in top.items() if key != "grants"}
        self._read = {
            str(plain.get("id")): plain for plain in top["grants"] if isinstance(plain, dict)
        }
        return self._grants(top["grants"], bad)

    def _grants(self, found: list[Any], bad: list[str]) -> tuple[dict[str, Grant], list[Any]]:
        """The grants that this release can read, and the other entries, which stay in the file."""
        grants, unread = dict[str, Grant](), list[Any]()
        for number, plain in enumerate(found):
            try:
                read = grant_of(msgspec.convert(plain, GrantRecord))
                grant = self._schemes.restore(read, plain)
            except (msgspec.ValidationError, StateError) as error:
                bad.append(f"{self._path}: grant {number} is left as it is: {error}")
                unread.append(plain)
            else:
                grants[grant.slice_id] = grant
        return grants, unread


def _text(entry: object, *path: str) -> str | None:
    """The text below these keys of an entry that nobody has checked, or None."""
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry if isinstance(entry, str) else None
