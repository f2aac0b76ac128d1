"""Grants made again from what the kubelet still knows, after our own file was lost."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.modes import is_isolated
from gpu_device_plugin.domain.pods import ContainerKind, PodRef, PodRequest
from gpu_device_plugin.domain.requests import NodeTerms
from gpu_device_plugin.domain.units import Resource, cards_of

_Place: TypeAlias = tuple[str, str]  # pod (uid, or namespace/name) and container


@dataclass(frozen=True, slots=True)
class HeldUnits:
    """Units of one resource in one container, as the kubelet's List or checkpoint has them.

    Attributes:
        pod: Whose: the checkpoint knows uids only, List names only.
        container: Name of the container.
        resource: Of what.
        ids: The unit ids.
        slice_id: The slice that the kubelet's kept answer mounts; empty where none is known.
        library_version: The library version that it mounts, or empty.
    """

    pod: PodRef
    container: str
    resource: Resource
    ids: frozenset[str]
    slice_id: str = ""
    library_version: str = ""


def adopt(
    held: Iterable[HeldUnits],
    specs: Iterable[PodRequest],
    cards: Sequence[Card],
    terms: NodeTerms,
) -> tuple[Grant, ...]:
    """One grant for each container that holds units, as far as the witnesses tell.

    Slice ids come from the kubelet's kept answers, because running containers have those
    files mounted; without one the id is derived from pod and container, so that adopting
    twice gives the same. What needs a pod's text that is not there stays unchecked.

    Args:
        held: From the checkpoint and from List, in any order; both may tell of one container.
        specs: Pods as the API knows them; may be empty.
        cards: The node's cards.
        terms: The node's mode and unit now.
    """
    entries = [entry for entry in held if entry.ids and entry.resource is not Resource.COUNT]
    by_uid = {spec.ref.uid: spec for spec in specs if spec.ref.uid}
    by_name = {spec.ref.key: spec for spec in by_uid.values()}
    names = {_holding(entry): entry.pod for entry in entries if entry.pod.name}
    grants: dict[_Place, dict[Resource, HeldUnits]] = {}
    refs: dict[_Place, PodRef] = {}
    for entry in entries:
        ref = _named(entry, names, by_uid, by_name)
        place = (ref.uid or str(ref), entry.container)
        refs[place] = ref
        found = grants.setdefault(place, {})
        if entry.resource not in found or entry.slice_id:
            found[entry.resource] = entry
    return tuple(
        _grant((refs[place], place[1]), parts, by_uid.get(refs[place].uid), (cards, terms))
        for place, parts in grants.items()
    )


def _holding(entry: HeldUnits) -> tuple[str, Resource, frozenset[str]]:
    return entry.container, entry.resource, entry.ids


def _named(
    entry: HeldUnits,
    names: Mapping[tuple[str, Resource, frozenset[str]], PodRef],
    by_uid: Mapping[str, PodRequest],
    by_name: Mapping[tuple[str, str], PodRequest],
) -> PodRef:
    """The pod with both its names, as far as anybody knows them."""
    if entry.pod.uid in by_uid:
        return by_uid[entry.pod.uid].ref
    if entry.pod.name:
        known = by_name.get(entry.pod.key)
        return known.ref if known else entry.pod
    listed = names.get(_holding(entry))
    if listed is None:
        return entry.pod
    # A static pod's uid in the checkpoint is not that of its mirror in the API.
    known = by_name.get(listed.key)
    return known.ref if known else PodRef(listed.namespace, listed.name, entry.pod.uid)


def _grant(
    who: tuple[PodRef, str],
    parts: Mapping[Resource, HeldUnits],
    spec: PodRequest | None,
    node: tuple[Sequence[Card], NodeTerms],
) -> Grant:
    ref, container = who
    cards, terms = node
    asked = spec.container(container) if spec else None
    mem = tuple(sorted(parts[Resource.MEM].ids)) if Resource.MEM in parts else ()
    core = tuple(sorted(parts[Resource.CORE].ids)) if Resource.CORE in parts else ()
    numbers = cards_of((*mem, *core))
    version = max(part.library_version for part in parts.values())
    return Grant(
        slice_id=max(part.slice_id for part in parts.values()) or _derived_id(ref, container),
        pod=ref,
        container=container,
        kind=asked.kind if asked else ContainerKind.APP,
        index=asked.index if asked else 0,
        mem_ids=mem,
        core_ids=core,
        cards=tuple(c.uuid for c in sorted(cards, key=lambda c: c.index) if c.number in numbers),
        mem_units=len(mem),
        core_percent=len(core),
        pod_units=spec.app_units if spec else len(mem),
        unit_mib=terms.unit.mib,
        mode=terms.mode,
        is_isolated=bool(version) and is_isolated(terms.mode),
        is_checked=asked is not None,
        library_version=version,
    )


def _derived_id(ref: PodRef, container: str) -> str:
    name = f"{ref.uid or ref}/{container}"
    return "adopted-" + hashlib.sha256(name.encode()).hexdigest()[:16]
