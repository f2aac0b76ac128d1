"""Units that containers hold by the kubelet, of which no grant tells."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.domain.grants.grant import Holder
from gpu_device_plugin.domain.node.pods import ContainerKind, HeldUnits, PodRef, PodRequest


@dataclass(frozen=True, slots=True)
class UngrantedUnits:
    """A container that holds units."""

    holder: Holder
    spec: PodRequest | None
    parts: Mapping[str, HeldUnits]

    @property
    def is_known(self) -> bool:
        """Whether the pod spec says what this container asks for."""
        return self.spec is not None and self.spec.container(self.holder.container) is not None

    @property
    def ids(self) -> frozenset[str]:
        return frozenset().union(*(part.ids for part in self.parts.values()))

    def derived_id(self, kind: str) -> str:
        """An id for its grant that is the same each time."""
        name = f"{self.holder.pod.uid or self.holder.pod}/{self.holder.container}"
        return f"{kind}-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def ungranted_units(
    held: Iterable[HeldUnits], specs: Iterable[PodRequest]
) -> tuple[UngrantedUnits, ...]:
    """One entry for each container that holds units.

    `held` is from checkpoint and List, in any order; both may have the same container. The one has
    uids, the other names: equal units in containers of one name are of the same pod.
    """
    entries = [entry for entry in held if entry.ids]
    by_uid = {spec.ref.uid: spec for spec in specs if spec.ref.uid}
    by_name = {spec.ref.key: spec for spec in by_uid.values()}
    names = {_holding(entry): entry.pod for entry in entries if entry.pod.name}
    uids = {_holding(entry): entry.pod.uid for entry in entries if entry.pod.uid}
    parts: dict[tuple[PodRef, str], dict[str, HeldUnits]] = {}
    for entry in entries:
        uid = entry.pod.uid or uids.get(_holding(entry), "")
        pod = entry.pod if entry.pod.name else names.get(_holding(entry), entry.pod)
        # A static pod's uid in the checkpoint can differ from that of its mirror in the API.
        spec = by_uid.get(uid) or by_name.get(pod.key)
        ref = spec.ref if spec else PodRef(pod.namespace, pod.name, uid)
        of_container = parts.setdefault((ref, entry.container), {})
        if entry.resource not in of_container or entry.slice_id:
            of_container[entry.resource] = entry
    return tuple(
        _ungranted(ref, container, by_uid.get(ref.uid), by_resource)
        for (ref, container), by_resource in parts.items()
    )


def _ungranted(
    ref: PodRef, container: str, spec: PodRequest | None, parts: Mapping[str, HeldUnits]
) -> UngrantedUnits:
    asked = spec.container(container) if spec else None
    kind, index = (asked.kind, asked.index) if asked else (ContainerKind.APP, 0)
    return UngrantedUnits(Holder(ref, container, kind, index), spec, parts)


def _holding(entry: HeldUnits) -> tuple[str, str, frozenset[str]]:
    return entry.container, entry.resource, entry.ids
