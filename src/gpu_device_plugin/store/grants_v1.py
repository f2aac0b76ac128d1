"""The first layout of the grants file, `grants`: one line of JSON per grant.

The release that wrote it refuses the whole file for one unknown or missing key. It is read at an
upgrade, and written beside the present one for a downgrade (docs/adr/0012). Both end with the next
release.
"""

import json
from collections.abc import Mapping

from gpu_device_plugin.store.grant_records import GrantRecord, Plain

KIND = "grants"
VERSION = 1
FILE_NAME = "grants"
_OWN = ("mem_units", "pod_units", "unit_mib", "mode")
_SAME = (
    "core_percent",
    "is_isolated",
    "is_checked",
    "library_version",
    "created_seconds",
)
_MEM, _CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"


def encode(record: GrantRecord, own: Mapping[str, object]) -> bytes:
    """The line of a grant; none for one of resources that the former release has not."""
    if record.units and not {_MEM, _CORE} & record.units.keys():
        return b""
    holder, sizes = record.holder, [share.memory_bytes for share in record.shares]
    plain: Plain = {name: getattr(record, name) for name in _SAME}
    plain |= {name: own[name] for name in _OWN}
    plain |= {
        "slice_id": record.id,
        "pod": [holder.namespace, holder.pod, holder.uid],
        "container": holder.container,
        "kind": holder.kind.value,
        "index": holder.index,
        "mem_ids": record.units.get(_MEM, []),
        "core_ids": record.units.get(_CORE, []),
        "cards": [share.device for share in record.shares],
        "card_bytes": [] if None in sizes else sizes,
    }
    return json.dumps(plain, separators=(",", ":")).encode() + b"\n"


def decode(payload: bytes, newer: Mapping[str, GrantRecord]) -> list[object]:
    """The grants of a file, with the present keys; they are validated later.

    Args:
        payload: The file's.
        newer: Slice -> what the present layout says of it. It completes what this one cannot say.

    Raises:
        ValueError: It is not JSON, or not lines of grants.
    """
    try:
        found = [_migrated(json.loads(line)) for line in payload.splitlines()]
        return [_completed(plain, newer.get(plain["id"])) for plain in found]
    except TypeError as error:
        raise ValueError(str(error)) from error


def _completed(plain: Plain, newer: GrantRecord | None) -> Plain:
    """A grant with the claim that holds it, units of other resources, and its policies."""
    if newer is None:
        return plain
    claim, exclusive = newer.holder, {s.device for s in newer.shares if s.is_exclusive}
    units = {name: ids for name, ids in plain["units"].items() if ids or name in newer.units}
    return {
        **plain,
        "holder": {**plain["holder"], "claim": claim.claim, "claim_name": claim.claim_name},
        "units": {**newer.units, **units},
        "shares": [{**s, "is_exclusive": s["device"] in exclusive} for s in plain["shares"]],
        "compute_policy": newer.compute_policy.value,
    }


def _migrated(old: Plain) -> Plain:
    try:
        namespace, name, uid = old["pod"]
        cards, sizes = old["cards"], old["card_bytes"]
        known = sizes if len(sizes) == len(cards) else [None] * len(cards)
        return {
            **{key: old[key] for key in (*_SAME, *_OWN)},
            "id": old["slice_id"],
            "holder": {
                "namespace": namespace,
                "pod": name,
                "uid": uid,
                **{key: old[key] for key in ("container", "kind", "index")},
            },
            "units": {_MEM: old["mem_ids"], _CORE: old["core_ids"]},
            "shares": [
                {"device": card, "memory_bytes": size}
                for card, size in zip(cards, known, strict=True)
            ],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
