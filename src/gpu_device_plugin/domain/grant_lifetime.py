"""When a grant is over: whose pods the kubelet still has, and how certain that is."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.pods import ListedPod, PodRef, PodRequest

_Places: TypeAlias = dict[tuple[str, str, str, str], frozenset[str]]

ABSENT_SECONDS = 30.0
"""A grant ends when the kubelet lacks it twice, at least this long apart."""
KUBELET_SETTLE_SECONDS = 60.0
"""For this long after kubelet.sock appeared List may be incomplete: its sources are not ready."""


def live(
    ledger: Ledger,
    listed: Collection[tuple[str, str]],
    uids: Mapping[tuple[str, str], str] | None = None,
    ended: Collection[str] = (),
) -> Ledger:
    """The grants whose pods the kubelet still has; at admission the others count as free.

    A claim's grant counts until its front releases it, whatever List says of the pod.

    Args:
        ledger: All grants.
        listed: Namespace and name of every pod in PodResources List.
        uids: What the API knows of these names now; a grant under another uid belongs to a
            pod that has been replaced by one of the same name.
        ended: Uids of pods that have finished, as the API knows: kubelets before 1.34 list these
            until they are deleted, and give their units away all the same.
    """
    return Ledger(
        {
            key: grant
            for key, grant in ledger.grants.items()
            if grant.holder.claim
            or (grant.pod.uid not in ended and _is_listed(grant.pod, listed, uids or {}))
        }
    )


def is_over(pod: PodRef, specs: Mapping[tuple[str, str], PodRequest]) -> bool:
    """Whether a pod has ended or is gone, according to the API's pods of this node.

    Args:
        pod: The pod of a grant.
        specs: Every pod of the node, by namespace and name.
    """
    spec = specs.get(pod.key)
    return spec is None or spec.is_finished or not spec.ref.is_same_pod(pod)


def expired_grants(  # noqa: PLR0913, PLR0917 - all of them have to agree before a grant ends
    ledger: Ledger,
    listed: Collection[tuple[str, str]],
    checkpoint_uids: Collection[str] | None,
    absent_since: Mapping[str, float],
    now: float,
    kubelet_since: float | None,
    uids: Mapping[tuple[str, str], str] | None = None,
) -> tuple[frozenset[str], Mapping[str, float]]:
    """Which grants are over, and since when the pods of others have been missing.

    A grant ends only when List and the kubelet's checkpoint both lack its pod twice, 30 s apart,
    and an absence counts only later than 60 s after kubelet.sock appeared.

    Args:
        ledger: All grants.
        listed: Namespace and name of every pod in PodResources List.
        checkpoint_uids: Every pod uid in the kubelet's checkpoint; None where it has none.
        absent_since: Second result of the last pass; empty at the first.
        now: Monotonic clock, seconds.
        kubelet_since: The same clock when kubelet.sock appeared; None while it is away.
        uids: See `live`.

    Returns:
        Slice ids to release, and slice id -> `now` of the first pass that lacked it.
    """
    is_settled = kubelet_since is not None and now - kubelet_since >= KUBELET_SETTLE_SECONDS
    if checkpoint_uids is None or not is_settled:
        return frozenset(), {}
    absent = {
        key: min(absent_since.get(key, now), now)
        for key, grant in ledger.grants.items()
        if not grant.holder.claim
        and grant.pod.uid not in checkpoint_uids
        and not (grant.pod.name and _is_listed(grant.pod, listed, uids or {}))
    }
    over = frozenset(key for key, since in absent.items() if now - since >= ABSENT_SECONDS)
    return over, {key: since for key, since in absent.items() if key not in over}


def drift(ledger: Ledger, listed: Iterable[ListedPod]) -> int:
    """In how many places our grants and the kubelet's List differ; 0 is good.

    A place is one resource of one container. Ordinary init containers are left out, because
    List never shows them.
    """
    theirs: _Places = {
        (*entry.pod.key, container, resource): ids
        for entry in listed
        for container, held in entry.held.items()
        for resource, ids in held.items()
        if ids
    }
    ours: _Places = {
        (*grant.pod.key, grant.container, resource): frozenset(grant.ids(resource))
        for grant in ledger.grants.values()
        for resource in grant.units
        if not grant.is_handed_on
    }
    return sum(ours.get(place) != theirs.get(place) for place in ours.keys() | theirs.keys())


def _is_listed(
    pod: PodRef, listed: Collection[tuple[str, str]], uids: Mapping[tuple[str, str], str]
) -> bool:
    """Whether List has the pod; one known only by its uid counts as listed."""
    if not pod.name:
        return True
    return pod.key in listed and (not pod.uid or uids.get(pod.key, pod.uid) == pod.uid)
