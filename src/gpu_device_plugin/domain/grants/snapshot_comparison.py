"""The kubelet snapshot compared with the grants: how far they differ, and what corrects a grant."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import (
    CheckpointEntry,
    Holding,
    KubeletSnapshot,
)
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import HeldUnits, ListedPod, PodRef
from gpu_device_plugin.errors import UnknownPodError

_Places: TypeAlias = dict[tuple[str, str, str, str], frozenset[str]]


def drift(ledger: Ledger, listed: Iterable[ListedPod]) -> int:
    """The number of places in which our grants and the kubelet's List differ; 0 is good.

    A place is one resource of one container. Ordinary init containers are left out, because
    List never shows them.
    """
    reported: _Places = {
        (*entry.pod.key, container, resource): ids
        for entry in listed
        for container, held in entry.held.items()
        for resource, ids in held.items()
        if ids
    }
    granted: _Places = {
        (*grant.pod.key, grant.container, resource): frozenset(grant.ids(resource))
        for grant in ledger.grants.values()
        for resource in grant.units
        if not grant.holder.is_handed_on
    }
    places = granted.keys() | reported.keys()
    return sum(granted.get(place) != reported.get(place) for place in places)


def find_unknown(ledger: Ledger, held: Iterable[HeldUnits]) -> list[HeldUnits]:
    """Those of `held` that no grant has; units reused from an init container belong to the reuser."""
    certain = Ledger({k: g for k, g in ledger.grants.items() if not g.holder.is_handed_on}).ids()
    return [
        units
        for units in held
        if units.ids
        and certain.isdisjoint(units.ids)
        and all(
            grant.pod.is_same_pod(units.pod) and grant.container != units.container
            for grant in ledger.holders(units.ids)
        )
    ]


def find_doubles(ledger: Ledger, mounted: Collection[str]) -> frozenset[str]:
    """Slices that nobody has mounted, of containers that have mounted another one with the same units.

    Without the pod spec the calls for one container may have been taken for those of two.
    """
    grants = ledger.grants.values()
    served = {(g.pod, g.container, g.all_ids) for g in grants if g.slice_id in mounted}
    return frozenset(
        grant.slice_id
        for grant in grants
        if grant.slice_id not in mounted and (grant.pod, grant.container, grant.all_ids) in served
    )


def find_given_away(ledger: Ledger, snapshot: KubeletSnapshot) -> frozenset[str]:
    """Slices without files, which no mount tells of, that another pod holds by List and checkpoint."""
    grants = [grant for grant in ledger.grants.values() if not grant.is_isolated]
    held = snapshot.uids_by_holding.items() if grants else ()
    return frozenset(
        grant.slice_id
        for grant in grants
        for (key, _, _, ids), uid in held
        if uid != grant.pod.uid and key != grant.pod.key and not ids.isdisjoint(grant.all_ids)
    )


class KnownHolder(NamedTuple):
    """Who holds a grant; empty where it is not known."""

    pod: PodRef
    container: str


def complete_holder(grant: Grant, snapshot: KubeletSnapshot) -> KnownHolder:
    """The holder of a grant by the checkpoint: who has its slice mounted; else completed by its units."""
    if mounted := snapshot.mounted_by.get(grant.slice_id):
        uid, container = mounted  # of a pod that the grant may not even name
        return KnownHolder(snapshot.pods.get(uid, replace(grant.pod, uid=uid)), container)
    if grant.pod.uid and grant.container:
        return KnownHolder(grant.pod, grant.container)
    for entry in snapshot.entries:
        ids = grant.ids(entry.resource)
        same_pod = not grant.pod.uid or grant.pod.uid == entry.pod_uid
        if ids and entry.ids == frozenset(ids) and same_pod:
            pod = replace(grant.pod, uid=entry.pod_uid)
            return KnownHolder(pod, grant.container or entry.container)
    return KnownHolder(grant.pod, grant.container)


def pass_on_units(
    grant: Grant, listed: Sequence[ListedPod], ledger: Ledger, mounted: Collection[str]
) -> Grant:
    """The grant under the name of the container that holds it now, instead of an init container's.

    Without the pod spec a container that reuses an init container's units looks like that one
    asking again, so both have one slice. List never shows the init container.
    """
    if grant.slice_id in mounted or (grant.is_checked and not grant.holder.is_handed_on):
        return grant  # the app container of that name: anyone who else holds its units is refused
    ids = {resource: frozenset(held) for resource, held in grant.units.items()}
    for entry in listed:
        if not entry.pod.is_same_name(grant.pod) or grant.container in entry.held:
            continue
        for container, by_resource in entry.held.items():
            is_heir = bool(ids) and {r: held for r, held in by_resource.items() if held} == ids
            if is_heir and ledger.of_container(grant.pod, container) is None:
                holder = replace(grant.holder, container=container)
                return replace(grant, holder=holder, is_checked=False)
    return grant


def fill_units(grant: Grant, entries: Iterable[CheckpointEntry], ledger: Ledger) -> Grant:
    """The grant with units that the checkpoint says it holds, and that no other pod has.

    They are missing if our file had to be read from the write before the last. What another grant
    of the same pod has is no obstacle: an init container leaves its units to a later one, and may
    not be known as one yet.
    """
    for entry in entries:
        is_its = (entry.pod_uid, entry.container) == (grant.pod.uid, grant.container)
        is_missing = is_its and entry.ids and not grant.ids(entry.resource)
        if is_missing and not ledger.rivals(grant.pod, entry.ids):
            grant = grant.with_ids(entry.resource, entry.ids)
    return grant


def corrected_uid(grant: Grant, reported: Mapping[Holding, str], ledger: Ledger) -> str:
    """The grant's uid, or the one that List and checkpoint both have for that pod name now.

    A pod that was created again under its name while the API was away was granted by the old pod
    spec, and so under the old uid, or under none. Where the new pod has a grant of its own for the same
    units, which was made later, this one is the old pod's.
    """
    for resource, ids in grant.units.items():
        place = (grant.pod.key, grant.container, resource, frozenset(ids))
        if place in reported:
            uid = reported[place]
            if uid == grant.pod.uid:  # nearly always
                return uid
            alike = [o for o in ledger.holders(ids) if o.pod.key == grant.pod.key]
            is_taken = alike[-1].slice_id != grant.slice_id or any(o.pod.uid == uid for o in alike)
            return grant.pod.uid if is_taken else uid
    return grant.pod.uid


def rename_holder(grant: Grant, pod: PodRef, container: str) -> Grant:
    """The grant with this pod and container; unchanged if it has them already.

    Where it had been taken for another container's, its rules have to be checked again.
    """
    if (pod, container) == (grant.pod, grant.container):
        return grant
    holder = replace(grant.holder, pod=pod, container=container)
    is_same = pod.key == grant.pod.key and grant.container in ("", container)
    is_checked = grant.is_checked and is_same
    return replace(grant, holder=holder, is_checked=is_checked)


def check_holder(
    grant: Grant, resource: str, listed: ListedPod | None, entries: Sequence[CheckpointEntry]
) -> None:
    """Raise UnknownPodError if by the kubelet another pod or container holds these units.

    `listed` is the grant's pod from PodResources Get, None if Get does not answer; the checkpoint
    has the ordinary init containers as well.
    """
    ids = frozenset(grant.ids(resource))
    if listed is not None and not grant.holder.is_handed_on and grant.container in listed.held:
        if listed.ids(grant.container, resource) == ids:
            return
        raise _not_the_holder(grant, resource, f"{grant.pod} (container {grant.container})")
    holders = [e for e in entries if e.resource == resource and e.ids == ids]
    # An entry can be the grant's where nothing that is known of both differs.
    uid, name = grant.pod.uid, grant.container
    if holders and not any(uid in ("", e.pod_uid) and name in ("", e.container) for e in holders):
        raise _not_the_holder(grant, resource, f"pod uid {holders[0].pod_uid}")


def _not_the_holder(grant: Grant, resource: str, holder: str) -> UnknownPodError:
    return UnknownPodError(
        f"the units of {resource} granted to pod {grant.pod} (container {grant.container}) are "
        f"held, the kubelet says, by {holder}; the container must not start on them, create the "
        f"pod again",
        reason="NotTheHolder",
    )
