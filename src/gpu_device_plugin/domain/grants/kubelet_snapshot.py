"""The kubelet snapshot: PodResources List and the checkpoint, as far as our units go."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, slice_of_mounts
from gpu_device_plugin.domain.node.pods import HeldUnits, ListedPod, PodKey, PodRef

Holding: TypeAlias = tuple[PodKey, str, str, frozenset[str]]
"""Pod, container, resource and units."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """What a container, of whatever kind, holds of one of our resources by the kubelet's checkpoint.

    `edits` is what our Allocate answered.
    """

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    edits: ContainerEdits


@dataclass(frozen=True)
class KubeletSnapshot:
    """The kubelet at one moment; without a checkpoint no pod can be known to have ended."""

    listed: Sequence[ListedPod]
    entries: Sequence[CheckpointEntry]
    has_checkpoint: bool = True

    @classmethod
    def of(
        cls, listed: Sequence[ListedPod], entries: Sequence[CheckpointEntry] | None
    ) -> "KubeletSnapshot":
        """With the checkpoint's entries, None where there is none."""
        return cls(listed, entries or (), has_checkpoint=entries is not None)

    @cached_property
    def names(self) -> frozenset[PodKey]:
        return frozenset(entry.pod.key for entry in self.listed)

    @cached_property
    def uids(self) -> frozenset[str]:
        return frozenset(entry.pod_uid for entry in self.entries)

    def of_container(self, uid: str, container: str) -> Sequence[CheckpointEntry]:
        return self._by_container.get((uid, container), ())

    @cached_property
    def _by_container(self) -> Mapping[tuple[str, str], Sequence[CheckpointEntry]]:
        found: dict[tuple[str, str], list[CheckpointEntry]] = {}
        for entry in self.entries:
            found.setdefault((entry.pod_uid, entry.container), []).append(entry)
        return found

    @cached_property
    def uids_by_holding(self) -> Mapping[Holding, str]:
        """Uids of pods, by what their containers hold, where List and checkpoint agree."""
        uids = {(e.container, e.resource, e.ids): e.pod_uid for e in self.entries}
        return {
            (held.pod.key, *place): uids[place]
            for held in (self.listed_units if uids else ())
            if held.ids and (place := (held.container, held.resource, held.ids)) in uids
        }

    @cached_property
    def listed_uids(self) -> Mapping[PodKey, str]:
        """The same by name."""
        return {holding[0]: uid for holding, uid in self.uids_by_holding.items()}

    @cached_property
    def pods(self) -> Mapping[str, PodRef]:
        """The same by uid."""
        return {uid: PodRef(*key, uid) for key, uid in self.listed_uids.items()}

    @cached_property
    def held(self) -> Sequence[HeldUnits]:
        return (*map(_from_checkpoint, self.entries), *self.listed_units)

    @cached_property
    def mounted_by(self) -> Mapping[str, tuple[str, str]]:
        """Slice -> uid and container of the only one that has it mounted, by the checkpoint."""
        found = defaultdict[str, set[tuple[str, str]]](set)
        for units in self.held:
            found[units.slice_id].add((units.pod.uid, units.container))
        return {slice_: next(iter(by)) for slice_, by in found.items() if slice_ and len(by) == 1}

    @property
    def listed_units(self) -> Iterator[HeldUnits]:
        for entry in self.listed:
            for container, by_resource in entry.held.items():
                for resource, ids in by_resource.items():
                    yield HeldUnits(entry.pod, container, resource, ids)


def _from_checkpoint(entry: CheckpointEntry) -> HeldUnits:
    slice_id, version = slice_of_mounts({m.container_path: m.host_path for m in entry.edits.mounts})
    pod = PodRef("", "", entry.pod_uid)
    return HeldUnits(pod, entry.container, entry.resource, entry.ids, slice_id, version)
