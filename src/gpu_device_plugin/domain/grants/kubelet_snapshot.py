"""The kubelet snapshot: PodResources List and the checkpoint, as far as our units go."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, slice_of_mounts
from gpu_device_plugin.domain.node.pods import HeldUnits, ListedPod, PodKey, PodRef


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

    def living(self, known: Collection[str]) -> list[HeldUnits]:
        """Units held by existing pods: listed ones, and those whose uid the API knows.

        On an idle node the checkpoint names pods that are long gone (docs/adr/0005); their units
        are not held.
        """
        alive = self._living_uids(known)
        return [held for held in self.held if held.pod.name or held.pod.uid in alive]

    def without_gone(self, known: Collection[str]) -> "KubeletSnapshot":
        """The same without the checkpoint's entries of pods that no longer exist, by the same rule."""
        alive = self._living_uids(known)
        return replace(self, entries=[each for each in self.entries if each.pod_uid in alive])

    def _living_uids(self, known: Collection[str]) -> frozenset[str]:
        reported = {(held.container, held.resource, held.ids) for held in self.listed_units}
        listed = {e.pod_uid for e in self.entries if (e.container, e.resource, e.ids) in reported}
        return frozenset(listed) | frozenset(known)

    @cached_property
    def held(self) -> Sequence[HeldUnits]:
        return (*map(_from_checkpoint, self.entries), *self.listed_units)

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
