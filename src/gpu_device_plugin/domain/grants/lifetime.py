"""Who is alive: one rule for admission, for the end of a grant, and for every guard.

PodResources List has the names of all pods, but for some seconds after the kubelet's start. Its checkpoint
has the uids of all that hold units, and of others that are gone, until it is written again. The API
server has both, maybe late. No one of them decides alone where another says that a pod lives.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import HeldUnits, PodKey, PodRef, PodRequest

ABSENT_SECONDS = 30.0
"""A grant ends when the kubelet lacks it twice, at least this long apart."""
KUBELET_SETTLE_SECONDS = 60.0
"""For this long after kubelet.sock appeared List may be incomplete: its sources are not ready."""
_STILL_NAMED = " (ended, and still in the kubelet's checkpoint)"


@dataclass(frozen=True)
class Witnesses:
    """What kubelet and API server say of the node's pods at one moment.

    Attributes:
        specs: The API server's pods of this node.
        is_synced: Whether it has ever had all of them.
        is_settled: Whether the kubelet is up for long enough that List has all pods.
        ended: Pods that the API server has had, and has no more, or only as finished.
        runs: Whether a process of a grant runs: a pod that is deleted by force leaves some behind.
    """

    snapshot: KubeletSnapshot
    specs: Mapping[PodKey, PodRequest] = field(default_factory=dict)
    is_synced: bool = False
    is_settled: bool = True
    ended: frozenset[PodRef] = frozenset()
    runs: Callable[[Grant], bool] = lambda _: False

    @cached_property
    def uids(self) -> Mapping[PodKey, str]:
        """The uid that a name has now: as List and checkpoint agree, else by the API server."""
        of_api = {key: spec.ref.uid for key, spec in self.specs.items() if spec.ref.uid}
        return {**of_api, **self.snapshot.listed_uids}

    @cached_property
    def _finished(self) -> frozenset[str]:
        return frozenset(s.ref.uid for s in self.specs.values() if s.is_finished) - {""}

    def over(self, ledger: Ledger) -> frozenset[str]:
        """Slices whose pods may be over: their units count as free where the kubelet gives them again."""
        gone = self._gone(ledger)
        return frozenset(key for key in gone if not self.runs(ledger.grants[key]))

    def left_running(self, ledger: Ledger) -> frozenset[str]:
        """Slices of pods of which nothing but a process is left."""
        return self._gone(ledger) - self.over(ledger)

    def _gone(self, ledger: Ledger) -> frozenset[str]:
        return frozenset(key for key, grant in ledger.grants.items() if self._is_gone(grant))

    def unshown(self, ledger: Ledger) -> frozenset[str]:
        """Those of `over` whose pods the checkpoint does not name either; without one, all."""
        return frozenset(k for k in self.over(ledger) if not self._is_named(ledger.grants[k]))

    def superseded(self, ledger: Ledger) -> frozenset[str]:
        """Slices of living containers that hold other units, by List and checkpoint, and none of the slice's.

        A call for the container was cut off or refused, or the kubelet lost what it had given, and the
        same pod was admitted again. A grant without a container's name is of any of its pod's.
        """
        by_pod: dict[PodKey | str, list[HeldUnits]] = {}
        for units in self.held if self.is_settled else ():
            by_pod.setdefault(units.pod.key if units.pod.name else units.pod.uid, []).append(units)

        def is_superseded(grant: Grant) -> bool:
            its = [*by_pod.get(grant.pod.key, ()), *by_pod.get(grant.pod.uid, ())]
            has_others = any(
                units.ids
                and units.resource in grant.units
                and grant.container in ("", units.container)
                for units in its
            )
            return has_others and all(units.ids.isdisjoint(grant.all_ids) for units in its)

        # What a gone pod of the same name had is its own.
        return frozenset(
            key
            for key, grant in ledger.grants.items()
            if not grant.holder.claim and is_superseded(grant) and not self._is_gone(grant)
        )

    def displaced(self, ledger: Ledger) -> frozenset[str]:
        """Those of pods that are gone of whose units the kubelet has given some to another, whatever its name."""

        def is_displaced(grant: Grant) -> bool:
            given = (u.ids for u in self.held if u.pod.name or u.pod.uid != grant.pod.uid)
            return any(not ids.isdisjoint(grant.all_ids) for ids in given)

        return frozenset(key for key in self._gone(ledger) if is_displaced(ledger.grants[key]))

    @cached_property
    def held(self) -> tuple[HeldUnits, ...]:
        """Units of pods that exist. On an idle node the checkpoint has others too (docs/adr/0005)."""
        return tuple(u for u in self.snapshot.held if u.pod.name or u.pod.uid in self._existing)

    @cached_property
    def stale(self) -> frozenset[str]:
        """Uids in the checkpoint that neither List nor API server has."""
        return self.snapshot.uids - self._existing

    def as_noted(self) -> "Witnesses":
        """The same without the checkpoint's entries of these, for a node where it is not written again."""
        entries = [e for e in self.snapshot.entries if e.pod_uid in self._existing]
        return replace(self, snapshot=replace(self.snapshot, entries=entries))

    def holders(self, ledger: Ledger) -> frozenset[tuple[str, str]]:
        """Resource and pod, for people, of all units that List or checkpoint shows."""
        refs = {**self.snapshot.pods, **{spec.ref.uid: spec.ref for spec in self.specs.values()}}
        refs |= {grant.pod.uid: grant.pod for grant in ledger.grants.values()}
        holding = set[tuple[str, str]]()
        for units in filter(lambda each: each.ids, self.snapshot.held):
            pod = units.pod if units.pod.name else refs.get(units.pod.uid, units.pod)
            is_ended = self.is_settled and not units.pod.name and not self._is_listed(pod)
            holding.add((units.resource, f"{pod.text}{_STILL_NAMED if is_ended else ''}"))
        return frozenset(holding)

    @cached_property
    def _existing(self) -> frozenset[str]:
        of_api = {spec.ref.uid for spec in self.specs.values() if not spec.is_finished}
        return frozenset({*self.snapshot.listed_uids.values(), *of_api})

    def _is_gone(self, grant: Grant) -> bool:
        """A claim's grant counts until its allocation API releases it, whatever List says of the pod.

        Kubelets before 1.34 list finished pods until they are deleted, and give their units away all
        the same. While List may be short, a pod is gone only if the API server has told its end: the watch
        may never have had it, and a lost checkpoint is written empty. The List of a kubelet without an API
        server stays short: a pod lives that the API server has, and the checkpoint names.
        """
        pod = grant.pod
        is_finished = pod.uid in self._finished or self._is_outlived(grant)
        if grant.holder.claim or (not is_finished and self._is_listed(pod)):
            return False
        if is_finished:
            return True
        is_over_in_api = is_over(pod, self.specs)
        if self.is_settled:
            return is_over_in_api or not self._is_named(grant)
        return is_over_in_api and pod in self.ended

    def _is_outlived(self, grant: Grant) -> bool:
        """Whether List has its name for a finished pod that came after it: told as ended, and named no more."""
        has_ended = self.is_settled and grant.pod in self.ended and is_over(grant.pod, self.specs)
        return has_ended and self.snapshot.has_checkpoint and not self._is_named(grant)

    def _is_listed(self, pod: PodRef) -> bool:
        """Whether List has the pod; one known only by its uid is looked for in the checkpoint."""
        if not pod.name:
            return not self.snapshot.has_checkpoint or pod.uid in self.snapshot.uids
        is_there = pod.key in self.snapshot.names
        return is_there and (not pod.uid or self.uids.get(pod.key, pod.uid) == pod.uid)

    def _is_named(self, grant: Grant) -> bool:
        """Whether the checkpoint has the grant's pod; one known only by name is looked for by its units."""
        if grant.pod.uid:
            return grant.pod.uid in self.snapshot.uids
        others = frozenset(self.snapshot.listed_uids.values())
        entries = (each for each in self.snapshot.entries if each.pod_uid not in others)
        return any(not each.ids.isdisjoint(grant.all_ids) for each in entries)


def not_taken_back(
    ledger: Ledger,
    over: frozenset[str],
    resource: str,
    offered: frozenset[str],
    ended: frozenset[PodRef],
) -> frozenset[str]:
    """Those of `over` of whose units of `resource` the kubelet offers none, and nobody else has any.

    It takes back all that a pod held at once, and from its start until it has its pods nothing from
    anybody. That a pod wanted no other beside it ends with the pod, as the API server tells.
    """
    elsewhere = offered | ledger.release(over).ids() if over else offered
    grants = {key: ledger.grants[key] for key in over}
    held = {
        key: frozenset(grant.ids(resource))
        for key, grant in grants.items()
        if not (grant.pod in ended and any(s.is_exclusive for s in grant.shares))
    }
    return frozenset(key for key, ids in held.items() if ids and ids.isdisjoint(elsewhere))


def is_settled(since: float | None, now: float) -> bool:
    """Whether a kubelet whose kubelet.sock appeared then lists all its pods; None: it is away."""
    return since is not None and now - since >= KUBELET_SETTLE_SECONDS


def is_over(pod: PodRef, specs: Mapping[PodKey, PodRequest]) -> bool:
    """Whether a pod has ended or is gone, according to the API's pods of this node."""
    spec = specs.get(pod.key)
    return spec is None or spec.is_finished or not spec.ref.is_same_pod(pod)


class Overdue(NamedTuple):
    """Slice ids of what has been missing for long enough, and since when the rest is, in seconds."""

    over: frozenset[str]
    since: Mapping[str, float]


def overdue(
    missing: Collection[str], since: Mapping[str, float], now: float, witnesses: Witnesses
) -> Overdue:
    """What may be removed of what is missing: grants that are `unshown`, files that nobody names.

    It has to be missing twice, 30 s apart. An absence counts only where there is a checkpoint, and later
    than 60 s after kubelet.sock appeared. `since` is that of the last look; `now` is by the
    monotonic clock.
    """
    if not (witnesses.is_settled and witnesses.snapshot.has_checkpoint):
        return Overdue(frozenset(), {})
    first = {key: min(since.get(key, now), now) for key in missing}
    over = frozenset(key for key, at in first.items() if now - at >= ABSENT_SECONDS)
    return Overdue(over, {key: at for key, at in first.items() if key not in over})
