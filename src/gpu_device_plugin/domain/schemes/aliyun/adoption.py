"""Adoption: grants made again from a kubelet snapshot, after our own file was lost."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.modes import is_isolated
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.pods import ContainerKind, HeldUnits, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.fraction import Fraction, shares_of
from gpu_device_plugin.domain.schemes.aliyun.units import Resource, cards_of
from gpu_device_plugin.domain.shares import Holder

_Place: TypeAlias = tuple[PodRef, str]  # pod and container
_Holding: TypeAlias = tuple[str, str, frozenset[str]]  # container, and what it holds


def adopt(
    held: Iterable[HeldUnits],
    specs: Iterable[PodRequest],
    cards: Sequence[Card],
    terms: NodeTerms,
) -> tuple[Grant, ...]:
    """One grant for each container that holds units, as far as the kubelet snapshot shows.

    Slice ids come from the answers in the checkpoint, because running containers have those
    files mounted. Without one the id is derived from pod and container, so that adopting twice
    gives the same. What needs a pod spec that is not known stays unchecked.

    Args:
        held: From the checkpoint and from List, in any order; both may have the same container.
        specs: Pods as the API knows them; may be empty.
        cards: The node's cards; units of others wait until their card is there, since a grant
            without it could never be served.
        terms: The node's mode and unit now.
    """
    entries = [entry for entry in held if entry.ids and entry.resource != Resource.COUNT]
    names = _Names.of(entries, specs)
    found: dict[_Place, dict[str, HeldUnits]] = {}
    for entry in entries:
        parts = found.setdefault((names.ref(entry), entry.container), {})
        if entry.resource not in parts or entry.slice_id:
            parts[entry.resource] = entry
    known = {card.number for card in cards}
    return tuple(
        _grant(place, parts, names.specs.get(place[0].uid), (cards, terms))
        for place, parts in found.items()
        if cards_of(text for part in parts.values() for text in part.ids) <= known
    )


def _holding(entry: HeldUnits) -> _Holding:
    return entry.container, entry.resource, entry.ids


@dataclass(frozen=True, slots=True)
class _Names:
    """Joins names and uids: equal units in containers of one name are of the same pod.

    Attributes:
        specs: Pod specs by uid.
        by_name: The same by namespace and name.
        listed: What List says of a holding: a pod without uid.
        uids: What the checkpoint says of it: a uid without a name.
    """

    specs: Mapping[str, PodRequest]
    by_name: Mapping[tuple[str, str], PodRequest]
    listed: Mapping[_Holding, PodRef]
    uids: Mapping[_Holding, str]

    @classmethod
    def of(cls, entries: Sequence[HeldUnits], specs: Iterable[PodRequest]) -> "_Names":
        """Built from entries and specs."""
        by_uid = {spec.ref.uid: spec for spec in specs if spec.ref.uid}
        return cls(
            specs=by_uid,
            by_name={spec.ref.key: spec for spec in by_uid.values()},
            listed={_holding(entry): entry.pod for entry in entries if entry.pod.name},
            uids={_holding(entry): entry.pod.uid for entry in entries if entry.pod.uid},
        )

    def ref(self, entry: HeldUnits) -> PodRef:
        """The entry's pod with name and uid, as far as they are known."""
        uid = entry.pod.uid or self.uids.get(_holding(entry), "")
        if uid in self.specs:
            return self.specs[uid].ref
        pod = entry.pod if entry.pod.name else self.listed.get(_holding(entry), entry.pod)
        # A static pod's uid in the checkpoint can differ from that of its mirror in the API.
        known = self.by_name.get(pod.key)
        return known.ref if known else PodRef(pod.namespace, pod.name, uid)


def _grant(
    place: _Place,
    parts: Mapping[str, HeldUnits],
    spec: PodRequest | None,
    node: tuple[Sequence[Card], NodeTerms],
) -> Grant:
    ref, container = place
    cards, terms = node
    asked = spec.container(container) if spec else None
    mem = tuple(sorted(parts[Resource.MEM].ids)) if Resource.MEM in parts else ()
    core = tuple(sorted(parts[Resource.CORE].ids)) if Resource.CORE in parts else ()
    numbers = cards_of((*mem, *core))
    version = max(part.library_version for part in parts.values())
    kind, index = (asked.kind, asked.index) if asked else (ContainerKind.APP, 0)
    pod_units = spec.app_amount(Resource.MEM) if spec else len(mem)
    on = [c for c in sorted(cards, key=lambda c: c.index) if c.number in numbers]
    return Grant(
        slice_id=max(part.slice_id for part in parts.values()) or _derived_id(ref, container),
        holder=Holder(ref, container, kind, index),
        units={Resource.MEM: mem, Resource.CORE: core},
        shares=shares_of(on, len(core)),
        own=Fraction(len(mem), pod_units, terms.unit.mib, terms.mode),
        is_isolated=bool(version) and is_isolated(terms.mode),
        is_checked=asked is not None,
        library_version=version,
    )


def _derived_id(ref: PodRef, container: str) -> str:
    name = f"{ref.uid or ref}/{container}"
    return "adopted-" + hashlib.sha256(name.encode()).hexdigest()[:16]
