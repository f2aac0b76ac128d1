"""Adoption: which containers hold units without a grant, by a kubelet snapshot."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpu_device_plugin.domain.pods import ContainerKind, HeldUnits, PodRef, PodRequest
from gpu_device_plugin.domain.shares import Holder

_Holding: TypeAlias = tuple[str, str, frozenset[str]]  # container, and what it holds


@dataclass(frozen=True, slots=True)
class Found:
    """A container that holds units.

    Attributes:
        holder: The container, as far as it is known.
        spec: The spec of its pod, or None.
        parts: What it holds, by resource.
    """

    holder: Holder
    spec: PodRequest | None
    parts: Mapping[str, HeldUnits]

    @property
    def is_known(self) -> bool:
        """Whether the pod spec says what this container asks for."""
        return self.spec is not None and self.spec.container(self.holder.container) is not None

    @property
    def ids(self) -> frozenset[str]:
        """Every unit that it holds."""
        return frozenset().union(*(part.ids for part in self.parts.values()))

    def derived_id(self, kind: str) -> str:
        """An id for its grant that is the same each time."""
        name = f"{self.holder.pod.uid or self.holder.pod}/{self.holder.container}"
        return f"{kind}-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def found(held: Iterable[HeldUnits], specs: Iterable[PodRequest]) -> tuple[Found, ...]:
    """One entry for each container that holds units.

    Args:
        held: From the checkpoint and from List, in any order; both may have the same container.
        specs: Pods as the API knows them; may be empty.
    """
    entries = [entry for entry in held if entry.ids]
    names = _Names.of(entries, specs)
    parts: dict[tuple[PodRef, str], dict[str, HeldUnits]] = {}
    for entry in entries:
        of_container = parts.setdefault((names.ref(entry), entry.container), {})
        if entry.resource not in of_container or entry.slice_id:
            of_container[entry.resource] = entry
    return tuple(_found(*place, names.specs, by_name) for place, by_name in parts.items())


def _found(
    ref: PodRef, container: str, specs: Mapping[str, PodRequest], parts: Mapping[str, HeldUnits]
) -> Found:
    spec = specs.get(ref.uid)
    asked = spec.container(container) if spec else None
    kind, index = (asked.kind, asked.index) if asked else (ContainerKind.APP, 0)
    return Found(Holder(ref, container, kind, index), spec, parts)


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
