"""Records on disk, and how the domain's values are converted from and to them.

The rules of the format (docs/adr/0012): a missing key has its default, a key that this release
does not know is written back as it was read, and an error names the path of what cannot be read.
A new key needs a default. A key that is removed or changes its meaning needs a new layout, beside
which the former one is still written for one release (`grants_v1`).
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from gpu_device_plugin.domain.compute_policy import ComputePolicy
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.schemes.aliyun.units import parse_unit_id
from gpu_device_plugin.domain.schemes.registry import OUR_RESOURCES
from gpu_device_plugin.errors import StateError

Plain: TypeAlias = dict[str, Any]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[^./][^/]*$")]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class HolderRecord(msgspec.Struct, frozen=True):
    """The container that holds a grant; see `domain.grants.Grant`."""

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""
    kind: ContainerKind = ContainerKind.APP
    index: int = 0


class ShareRecord(msgspec.Struct, frozen=True):
    """A part of one device; `memory_bytes` is null while it is not known."""

    device: str
    memory_bytes: _Size | None = None


class GrantRecord(msgspec.Struct, frozen=True):
    """One grant. `units` are ids by the name of their resource, shares in order of NVML index."""

    id: _FileName
    holder: HolderRecord
    units: dict[str, list[str]] = {}
    shares: list[ShareRecord] = []
    mem_units: int = 0
    core_percent: int = 0
    pod_units: int = 0
    unit_mib: int = 1024
    mode: NodeMode = NodeMode.CORE_MEM
    is_isolated: bool = True
    is_checked: bool = True
    library_version: str = ""
    created_seconds: float = 0.0
    compute_policy: ComputePolicy = ComputePolicy.FIXED


def record_of(grant: Grant) -> GrantRecord:
    """The record of a grant."""
    is_sized = len(grant.card_bytes) == len(grant.cards)
    sizes = grant.card_bytes if is_sized else (None,) * len(grant.cards)
    return GrantRecord(
        id=grant.slice_id,
        holder=HolderRecord(
            grant.pod.namespace,
            grant.pod.name,
            grant.pod.uid,
            grant.container,
            grant.kind,
            grant.index,
        ),
        units={str(name): list(ids) for name, ids in sorted(grant.units.items())},
        shares=[ShareRecord(uuid, size) for uuid, size in zip(grant.cards, sizes, strict=True)],
        mem_units=grant.mem_units,
        core_percent=grant.core_percent,
        pod_units=grant.pod_units,
        unit_mib=grant.unit_mib,
        mode=NodeMode(grant.mode),
        is_isolated=grant.is_isolated,
        is_checked=grant.is_checked,
        library_version=grant.library_version,
        created_seconds=grant.created_seconds,
        compute_policy=grant.compute_policy,
    )


def grant_of(record: GrantRecord, resources: Collection[str] = OUR_RESOURCES) -> Grant:
    """The grant of a record.

    Raises:
        StateError: It has a resource, unit id or unit size that this release does not know.
    """
    for name, ids in record.units.items():
        odd = [text for text in ids if _resource_of(text) != name]
        if name not in resources or (odd and name in OUR_RESOURCES):
            raise StateError(f"{odd or ids} are no units of {name} - at `$.units`")
    MemoryUnit.of_mib(record.unit_mib)  # raises, and names the key
    holder, sizes = record.holder, [share.memory_bytes for share in record.shares]
    return Grant(
        slice_id=record.id,
        pod=PodRef(holder.namespace, holder.pod, holder.uid),
        container=holder.container,
        kind=holder.kind,
        index=holder.index,
        units={name: tuple(ids) for name, ids in record.units.items()},
        cards=tuple(share.device for share in record.shares),
        card_bytes=() if None in sizes else tuple(size for size in sizes if size is not None),
        mem_units=record.mem_units,
        core_percent=record.core_percent,
        pod_units=record.pod_units,
        unit_mib=record.unit_mib,
        mode=str(record.mode),
        is_isolated=record.is_isolated,
        is_checked=record.is_checked,
        library_version=record.library_version,
        created_seconds=record.created_seconds,
        compute_policy=record.compute_policy,
    )


def _resource_of(text: str) -> str | None:
    unit = parse_unit_id(text)
    return None if unit is None else unit.resource


def plain_of(record: msgspec.Struct, before: object = None) -> Plain:
    """A record as plain JSON values, with the keys of `before` that this release does not know.

    Args:
        record: The record.
        before: The same record as it was read, or None. Records of a list are matched by their
            first field.
    """
    plain: Plain = msgspec.to_builtins(record)
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
    return {**plain, **kept}


@lru_cache
def _inner(kind: type[msgspec.Struct]) -> dict[str, tuple[type[msgspec.Struct], bool]]:
    """The fields of `kind` that hold records: which kind, and whether a list of them."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for option in (hint, *get_args(hint)):
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                found[name] = option, get_origin(hint) is list
    return found
