"""A grant of a fraction of cards, in the words of its file: short to write in a test."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gpu_device_plugin.domain.cards.memory_unit import MiB, Units
from gpu_device_plugin.domain.fractions.fraction import Fraction, fraction_of, with_amounts
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Share
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef


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
    mem_units: int | None = None,
    core_percent: int | None = None,
    pod_units: int = 0,
    unit_mib: int = 1024,
    mode: str = "core_mem",
    **others: Any,
) -> Grant:
    """Amounts that are not named are those of the units; everything else has its own default."""
    sizes: Sequence[int | None] = card_bytes or [None] * len(cards)
    shares = [Share(card, size) for card, size in zip(cards, sizes, strict=True)]
    held = units or {}
    mem = len(held.get(Resource.MEM, ())) if mem_units is None else mem_units
    core = len(held.get(Resource.CORE, ())) if core_percent is None else core_percent
    made = Grant(
        slice_id,
        Holder(pod, container, kind, index),
        units=units or {},
        shares=tuple(shares),
        **others,
    )
    return with_amounts(
        made, Fraction(Units(mem), Units(pod_units), MiB(unit_mib), NodeMode(mode)), core
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


_OTHERS = (
    "compute_policy",
    "memory_enforcer",
    "is_isolated",
    "is_checked",
    "library_version",
    "created_seconds",
)
