"""When a grant is over: its pod is gone by the kubelet and the API, and the files of its slice go after it."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import PodKey, PodRef, PodRequest


class Overdue(NamedTuple):
    """Slice ids of what has been missing for long enough, and since when the rest is, in seconds."""

    over: frozenset[str]
    since: Mapping[str, float]


ABSENT_SECONDS = 30.0
"""A grant ends when the kubelet lacks it twice, at least this long apart."""
KUBELET_SETTLE_SECONDS = 60.0
"""For this long after kubelet.sock appeared List may be incomplete: its sources are not ready."""


def live(
    ledger: Ledger,
    listed: Collection[PodKey],
    uids: Mapping[PodKey, str] | None = None,
    ended: Collection[str] = (),
) -> Ledger:
    """The grants whose pods the kubelet still has; at admission the others count as free.

    A claim's grant counts until its allocation API releases it, whatever List says of the pod.
    `listed` and `uids` are by namespace and name; a grant under another uid than in `uids` belongs
    to a pod that was replaced by one of the same name. `ended` are uids of pods that have finished:
    kubelets before 1.34 list these until they are deleted, and give their units away all the same.
    """
    return ledger.release(
        [
            key
            for key, grant in ledger.grants.items()
            if not grant.holder.claim
            and (grant.pod.uid in ended or not _is_listed(grant.pod, listed, uids or {}))
        ]
    )


def is_over(pod: PodRef, specs: Mapping[PodKey, PodRequest]) -> bool:
    """Whether a pod has ended or is gone, according to the API's pods of this node."""
    spec = specs.get(pod.key)
    return spec is None or spec.is_finished or not spec.ref.is_same_pod(pod)


def expired_grants(  # noqa: PLR0913, PLR0917 - all of them have to agree before a grant ends
    ledger: Ledger,
    listed: Collection[PodKey],
    checkpoint_uids: Collection[str] | None,
    absent_since: Mapping[str, float],
    now: float,
    kubelet_since: float | None,
    uids: Mapping[PodKey, str] | None = None,
) -> Overdue:
    """Slices to release, and those whose pods were missing for the first time in this pass or earlier.

    A grant ends only when List and the kubelet's checkpoint both lack its pod twice, 30 s apart,
    and an absence counts only later than 60 s after kubelet.sock appeared. `listed` and `uids` are
    as for `live`; `absent_since` is `since` of the last pass. `now` and `kubelet_since`
    are seconds of the monotonic clock; without a checkpoint or kubelet.sock, `checkpoint_uids` or
    `kubelet_since` is None.
    """
    is_settled = kubelet_since is not None and now - kubelet_since >= KUBELET_SETTLE_SECONDS
    if checkpoint_uids is None or not is_settled:
        return Overdue(frozenset(), {})
    absent = {
        key: min(absent_since.get(key, now), now)
        for key, grant in ledger.grants.items()
        if not grant.holder.claim
        and grant.pod.uid not in checkpoint_uids
        and not (grant.pod.name and _is_listed(grant.pod, listed, uids or {}))
    }
    return _overdue(absent, now)


def _is_listed(pod: PodRef, listed: Collection[PodKey], uids: Mapping[PodKey, str]) -> bool:
    """Whether List has the pod; one known only by its uid counts as listed."""
    if not pod.name:
        return True
    return pod.key in listed and (not pod.uid or uids.get(pod.key, pod.uid) == pod.uid)


def orphan_files(
    present: Collection[str],
    named: Collection[str] | None,
    unnamed_since: Mapping[str, float],
    now: float,
    kubelet_since: float | None,
) -> Overdue:
    """Files of slices that no grant names: which may be removed, and since when others are not named.

    They may remain after a crash, but also after a ledger was lost whose containers are running. So
    a slice's are removed only if neither a grant nor the kubelet's checkpoint names it in two passes,
    30 s apart and later than 60 s after kubelet.sock appeared.

    `named` is None without a checkpoint, because then it is not known. The rest is as for
    `expired_grants`.
    """
    if named is None or kubelet_since is None or now - kubelet_since < KUBELET_SETTLE_SECONDS:
        return Overdue(frozenset(), {})
    since = {key: min(unnamed_since.get(key, now), now) for key in present if key not in named}
    return _overdue(since, now)


def _overdue(since: Mapping[str, float], now: float) -> Overdue:
    over = frozenset(key for key, first in since.items() if now - first >= ABSENT_SECONDS)
    return Overdue(over, {key: first for key, first in since.items() if key not in over})
