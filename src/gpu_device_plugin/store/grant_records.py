"""Records on disk, and how the domain's values are converted from and to them.

The rules of the format (docs/adr/0012): a missing key has its default, a key that this release
does not know is written back as it was read, and an error names the path of what cannot be read.
A new key needs a default. A key that is removed or changes its meaning needs a new layout.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from gpu_device_plugin.domain.compute_policy import ComputePolicy
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.shares import Holder, Share

Plain: TypeAlias = dict[str, Any]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[^./][^/]*$")]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class HolderRecord(msgspec.Struct, frozen=True):
    """The container or claim that holds a grant; see `domain.shares.Holder`."""

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


class GrantRecord(msgspec.Struct, frozen=True):
    """One grant. `units` are ids by the name of their resource, shares in order of NVML index.

    Beside these keys stand those of the grant's scheme (`Scheme.own_record`).
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


def record_of(grant: Grant) -> GrantRecord:
    """The record of a grant, without what only its scheme knows."""
    return GrantRecord(
        id=grant.slice_id,
        holder=HolderRecord(
            grant.pod.namespace,
            grant.pod.name,
            grant.pod.uid,
            grant.container,
            grant.kind,
            grant.index,
            grant.holder.claim,
            grant.holder.claim_name,
        ),
        units={str(name): list(ids) for name, ids in sorted(grant.units.items())},
        shares=[ShareRecord(s.device, s.memory_bytes, s.is_exclusive) for s in grant.shares],
        core_percent=grant.core_percent,
        is_isolated=grant.is_isolated,
        is_checked=grant.is_checked,
        library_version=grant.library_version,
        created_seconds=grant.created_seconds,
        compute_policy=grant.compute_policy,
    )


def grant_of(record: GrantRecord) -> Grant:
    """The grant of a record, without what only its scheme knows."""
    holder, core = record.holder, record.core_percent
    pod = PodRef(holder.namespace, holder.pod, holder.uid)
    return Grant(
        slice_id=record.id,
        holder=Holder(
            pod, holder.container, holder.kind, holder.index, holder.claim, holder.claim_name
        ),
        units={name: tuple(ids) for name, ids in record.units.items()},
        shares=tuple(_share(s, core) for s in record.shares),
        is_isolated=record.is_isolated,
        is_checked=record.is_checked,
        library_version=record.library_version,
        created_seconds=record.created_seconds,
        compute_policy=record.compute_policy,
    )


def _share(record: ShareRecord, core_percent: int) -> Share:
    size = record.memory_bytes
    mib = (size or 0) // 2**20  # of a scheme that counts otherwise: see `Scheme.restored`
    return Share(record.device, size, core_percent, record.is_exclusive, mib)


def plain_of(
    record: msgspec.Struct, before: object = None, beside: Mapping[str, object] | None = None
) -> Plain:
    """A record as plain JSON values, with the keys of `before` that this release does not know.

    Args:
        record: The record.
        before: The same record as it was read, or None. Records of a list are matched by their
            first field.
        beside: Further keys.
    """
    plain: Plain = {**msgspec.to_builtins(record), **(beside or {})}
    return _with_unknown(plain, before, type(record))


def _with_unknown(plain: Plain, before: object, kind: type[msgspec.Struct]) -> Plain:
    if not isinstance(before, dict):
        return plain
    known = frozenset(kind.__struct_encode_fields__)
    kept = {key: value for key, value in before.items() if key not in known}
    for name, (inner, is_list) in _inner(kind).items():
        if not is_list and isinstance(plain[name], dict):
            plain[name] = _with_unknown(plain[name], before.get(name), inner)
        elif is_list:
            key = inner.__struct_encode_fields__[0]
            old = {e[key]: e for e in before.get(name) or () if isinstance(e, dict) and key in e}
            plain[name] = [_with_unknown(e, old.get(e[key]), inner) for e in plain[name]]
    return {**kept, **plain}


@lru_cache
def _inner(kind: type[msgspec.Struct]) -> dict[str, tuple[type[msgspec.Struct], bool]]:
    """The fields of `kind` that hold records: which kind, and whether a list of them."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for option in (hint, *get_args(hint)):
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                found[name] = option, get_origin(hint) is list
    return found
