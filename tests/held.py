"""A grant of a fraction of cards, in the words of its file: short to write in a test."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.schemes.aliyun.fraction import Fraction, fraction_of
from gpu_device_plugin.domain.shares import Holder, Share


def fraction(
    slice_id: str,
    pod: PodRef,
    container: str = "",
    *,
    kind: ContainerKind = ContainerKind.APP,
    index: int = 0,
    units: Mapping[str, tuple[str, ...]] | None = None,
    cards: Sequence[str] = (),
    card_bytes: Sequence[int] = (),
    mem_units: int = 0,
    core_percent: int = 0,
    pod_units: int = 0,
    unit_mib: int = 1024,
    mode: str = "core_mem",
    **others: Any,
) -> Grant:
    """Everything that is not named here has the grant's own default."""
    sizes: Sequence[int | None] = card_bytes or [None] * len(cards)
    shares = [Share(card, size, core_percent) for card, size in zip(cards, sizes, strict=True)]
    return Grant(
        slice_id,
        Holder(pod, container, kind, index),
        units=units or {},
        shares=tuple(shares),
        own=Fraction(mem_units, pod_units, unit_mib, NodeMode(mode)),
        **others,
    )


def changed(grant: Grant, **values: Any) -> Grant:
    """The grant with other values, named as `fraction` names them."""
    own, holder = fraction_of(grant), grant.holder
    now = {
        "pod": holder.pod,
        "container": holder.container,
        "kind": holder.kind,
        "index": holder.index,
        "cards": grant.devices,
        "core_percent": grant.core_percent,
        **{field.name: getattr(own, field.name) for field in fields(own)},
        **{name: getattr(grant, name) for name in ("slice_id", "units", *_OTHERS)},
        **values,
    }
    return fraction(**now)


_OTHERS = ("compute_policy", "is_isolated", "is_checked", "library_version", "created_seconds")
