"""Who holds units, as the kubelet says it now: checked before they are given, and at a container's start.

PodResources Get and the kubelet's checkpoint tell. Both are harmless while an Allocate is in flight,
List is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import is_over
from gpu_device_plugin.domain.grants.snapshot_comparison import (
    KnownHolder,
    check_holder,
    complete_holder,
)
from gpu_device_plugin.domain.node.pods import ListedPod, PodRef
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.nvidia.nvidia_scheme import NvidiaScheme
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.errors import DoesNotFitError, KubeletError, UnknownPodError

_log = structlog.get_logger("holders")

_NOTHING: frozenset[str] = frozenset()


@dataclass(eq=False)
class HolderCheck:
    """Asks the kubelet who holds units; `is_behind` says whether the ledger may lack who was given some."""

    get_pod: Callable[[PodRef], Awaitable[ListedPod | None]]
    snapshots: SnapshotReader
    is_behind: Callable[[], bool]

    async def check_free(self, rivals: Iterable[Grant], ids: frozenset[str]) -> None:
        """DoesNotFitError if a pod of these grants has any of `ids`, or the kubelet does not say."""
        for pod, held in (await self._held({grant.pod for grant in rivals})).items():
            if held is None or ids & held:
                raise _double_booked(pod)

    async def check_chosen(
        self,
        call: Call,
        devices: frozenset[str],
        holders: Sequence[Grant],
        sharing: Sequence[Grant],
    ) -> None:
        """DoesNotFitError if a grant's pod still has units or devices that the kubelet has chosen.

        Where neither Get nor the checkpoint answers, the kubelet's call itself counts. `sharing`
        are grants of other schemes on the same devices: of a claim, which only its own calls end,
        the kubelet knows nothing. A pod with a process was lost where the kubelet shows no unit of it, or
        another pod under its name.
        """
        asked = [(grant, call.must_include) for grant in holders]
        asked += [(grant, grant.all_ids) for grant in sharing if not grant.holder.claim]
        noted = self._pods_in_checkpoint(call.must_include)
        told = await self._held({*(grant.pod for grant, _ in asked), *noted})
        for pod in noted:
            if call.must_include & (told[pod] or _NOTHING):
                raise _double_booked(pod)
        answers = self._or_noted(told)
        confirmed = {g.slice_id for g, ids in asked if ids & answers[g.pod]}
        for grant in holders:
            if grant.slice_id in confirmed:
                raise _double_booked(grant.pod)
        lost = {str(g.pod) for g, _ in asked if self._is_lost(g, answers[g.pod])}
        if lost:
            raise beside_left(DoesNotFitError("the device is in use", reason="NoDevice"), lost)
        for grant in sharing:
            if grant.holder.claim or grant.slice_id in confirmed:
                shared = ", ".join(sorted(devices.intersection(grant.devices)))
                raise DoesNotFitError(
                    f"{shared} is not free: pod {grant.pod} holds a part of it "
                    f"that is no {call.resource}; create the pod again, or use another node",
                    reason="NoRoom",
                )

    def _is_lost(self, grant: Grant, shown: frozenset[str]) -> bool:
        return (not shown or self._has_ended(grant.pod)) and self.snapshots.runs(grant)

    def _has_ended(self, pod: PodRef) -> bool:
        """Whether the API server says so; before it has shown any pod, it says nothing."""
        specs = self.snapshots.specs()
        return bool(specs) and is_over(pod, specs)

    def held_otherwise(self, scheme: NvidiaScheme, view: NodeState) -> Mapping[str, PodRef]:
        """Offered units -> a living pod that has their card under an earlier configuration.

        As far as the ledger may lack it, also after a pass whose List was short. PodResources may be
        silent for as long, and never shows init containers, so the checkpoint counts, but for pods that
        have ended by the API server.
        """
        if not self.is_behind() and self.snapshots.is_settled():
            return {}
        entries = self.snapshots.readable_entries()
        named = {spec.ref.uid: spec.ref for spec in self.snapshots.specs().values()}
        pods = {e.pod_uid: named.get(e.pod_uid, PodRef("", "", e.pod_uid)) for e in entries}
        living = [each for each in entries if not self._has_ended(pods[each.pod_uid])]
        return {unit: pods[uid] for unit, uid in scheme.held_otherwise(living, view).items()}

    def check_held_otherwise(self, call: Call, scheme: NvidiaScheme, view: NodeState) -> None:
        """DoesNotFitError if the kubelet has chosen any of `held_otherwise`."""
        otherwise = self.held_otherwise(scheme, view)
        for unit in sorted(call.must_include & otherwise.keys()):
            raise DoesNotFitError(
                f"{unit} is not free: by the kubelet's checkpoint pod {otherwise[unit].text} holds its card, or a "
                f"part of it, under the previous configuration; create the pod again, or use another node",
                reason="NoRoom",
            )

    def least_used(
        self, ledger: Ledger, free: frozenset[str], size: int, otherwise: Collection[str] = ()
    ) -> frozenset[str]:
        """Of units that the kubelet offers, the first of these that are enough.

        Those of nobody; those of pods that live by the API server, but have no process; all.
        """
        specs, runs = self.snapshots.specs(), self.snapshots.runs
        holders = ledger.holders(free)
        running = frozenset().union(*(grant.all_ids for grant in holders if runs(grant)))
        living = (grant.all_ids for grant in holders if not is_over(grant.pod, specs))
        allowed = free.difference(otherwise)
        found = (allowed - running.union(*living), allowed - running, free - running)
        return next((units for units in found if len(units) >= size), free)

    async def find_starting(self, grants: Sequence[Grant], resource: str) -> list[Grant]:
        """Those of the grants of the same units whose holders have them by the kubelet; others are of the past.

        UnknownPodError: of each it says that another container holds them.
        """
        found: list[Grant] = []
        wrong: UnknownPodError | None = None
        for grant in grants:
            listed = await self._listed(grant.pod) if grant.pod.name else None
            try:
                check_holder(grant, resource, listed, self.snapshots.readable_entries())
                found.append(grant)
            except UnknownPodError as error:
                wrong = error
        if wrong and not found:
            raise wrong
        return found

    def named(self, grant: Grant) -> KnownHolder:
        return complete_holder(grant, KubeletSnapshot((), self.snapshots.readable_entries()))

    def _pods_in_checkpoint(self, ids: frozenset[str]) -> set[PodRef]:
        """Pods that have any of these units by the checkpoint, as far as the ledger may lack them.

        The checkpoint alone proves nothing: they may have ended, or be handed on by an init container.
        """
        if not self.is_behind():
            return set()
        uids = {e.pod_uid for e in self.snapshots.readable_entries() if not ids.isdisjoint(e.ids)}
        return {spec.ref for spec in self.snapshots.specs().values() if spec.ref.uid in uids}

    async def _held(self, pods: Iterable[PodRef]) -> dict[PodRef, frozenset[str] | None]:
        """The units that each pod holds by Get; None where the kubelet does not say.

        All at once: the call as a whole has to be answered within seconds.
        """
        asked = list(pods)
        return dict(zip(asked, await asyncio.gather(*map(self._held_by, asked)), strict=True))

    def _or_noted(
        self, told: Mapping[PodRef, frozenset[str] | None]
    ) -> Mapping[PodRef, frozenset[str]]:
        """By the checkpoint where Get does not answer, but for pods that have ended by the API server.

        Those the checkpoint names until it is written again.
        """
        by_uid = self._told_by_checkpoint() if None in told.values() else {}

        def noted(pod: PodRef) -> frozenset[str]:
            return _NOTHING if self._has_ended(pod) else by_uid.get(pod.uid, _NOTHING)

        return {pod: noted(pod) if held is None else held for pod, held in told.items()}

    async def _held_by(self, pod: PodRef) -> frozenset[str] | None:
        listed = await self._listed(pod)
        held = listed.held.values() if listed else ()
        units = _NOTHING.union(*(ids for by_name in held for ids in by_name.values()))
        return units if listed else None

    async def _listed(self, pod: PodRef) -> ListedPod | None:
        """What Get says, of a pod that is gone that it holds nothing; None where it does not answer."""
        try:
            return await self.get_pod(pod) or ListedPod(pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(pod), error=str(error))
            return None

    def _told_by_checkpoint(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for entry in self.snapshots.readable_entries():
            found[entry.pod_uid] = found.get(entry.pod_uid, _NOTHING).union(entry.ids)
        return found


def beside_left(error: DoesNotFitError, pods: Collection[str]) -> DoesNotFitError:
    """The refusal, with the pods whose processes have what would fit."""
    if not pods:
        return error
    return error.in_words(
        f"{error}; what {few(sorted(pods))} had is not given again while a process of it runs: the kubelet "
        f"has forgotten it. Delete the pod; if it was deleted by force, end the process on the node"
    )


def beside_resized(error: DoesNotFitError, ledger: Ledger) -> DoesNotFitError:
    """The refusal, with the pods that have more than they asked for."""
    grown = sorted({str(g.pod) for g in ledger.grants.values() if g.extra_ids})
    if not grown:
        return error
    return error.in_words(f"{error}; by a resize {few(grown)} has more than it asked for")


def _double_booked(pod: PodRef) -> DoesNotFitError:
    return DoesNotFitError(
        f"the kubelet gives units that pod {pod} still holds (kubernetes pull request 137534); create the "
        f"pod again",
        reason="DoubleBooked",
    )
