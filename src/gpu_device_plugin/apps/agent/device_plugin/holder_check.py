"""Who holds units, as the kubelet says it now: checked before they are given, and at a container's start.

PodResources Get and the kubelet's checkpoint tell. Both are harmless while an Allocate is in flight,
List is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from gpu_device_plugin.apps.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.kubelet_snapshot import CheckpointEntry, check_holder, completed
from gpu_device_plugin.domain.pods import ListedPod, PodRef
from gpu_device_plugin.errors import DoesNotFitError, KubeletError

_NOTHING: frozenset[str] = frozenset()
_log = structlog.get_logger("holders")


class HolderCheck:
    """Asks the kubelet who holds units.

    Args:
        get_pod: PodResources Get.
        snapshots: Where the checkpoint is read.
    """

    def __init__(
        self, get_pod: Callable[[PodRef], Awaitable[ListedPod | None]], snapshots: SnapshotReader
    ) -> None:
        self._get_pod = get_pod
        self._snapshots = snapshots

    async def check_free(self, rivals: Iterable[Grant], ids: frozenset[str]) -> None:
        """Return if no pod of these grants has any of `ids` any more.

        Raises:
            DoesNotFitError: One has, or the kubelet does not say.
        """
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
        """Return if units that the kubelet has chosen, and their devices, are free by its own word.

        Where neither Get nor the checkpoint answers, the kubelet's call itself counts.

        Args:
            call: What is asked.
            devices: Those that the call's units are of.
            holders: Grants that have any of these units.
            sharing: Grants of other schemes on the same devices. The kubelet knows nothing of a
                claim, which only its own calls end.

        Raises:
            DoesNotFitError: A grant's pod still has them.
        """
        asked = [(grant, call.must_include) for grant in holders]
        asked += [(grant, grant.all_ids) for grant in sharing if not grant.holder.claim]
        answers = await self._held({grant.pod for grant, _ in asked})
        if None in answers.values():
            told = self._told_by_checkpoint()
            answers = {p: told.get(p.uid, _NOTHING) if a is None else a for p, a in answers.items()}
        confirmed = {g.slice_id for g, ids in asked if ids & (answers[g.pod] or _NOTHING)}
        for grant in holders:
            if grant.slice_id in confirmed:
                raise _double_booked(grant.pod)
        for grant in sharing:
            if grant.holder.claim or grant.slice_id in confirmed:
                shared = ", ".join(sorted(devices.intersection(grant.devices)))
                raise DoesNotFitError(
                    f"{shared} is not free: pod {grant.pod} holds a part of it "
                    f"that is no {call.resource}; create the pod again, or use another node",
                    reason="NoRoom",
                )

    async def check_start(self, grant: Grant, resource: str) -> None:
        """Return if the kubelet gives a grant's units to its container, or does not know.

        Raises:
            UnknownPodError: Another pod or container holds these units.
        """
        listed = await self._listed(grant.pod) if grant.pod.name else None
        check_holder(grant, resource, listed, self._entries())

    def named(self, grant: Grant) -> tuple[str, str]:
        """Uid and container of a grant, as far as they are known."""
        return completed(grant, self._entries())

    async def _held(self, pods: Iterable[PodRef]) -> dict[PodRef, frozenset[str] | None]:
        """The units that each pod holds by Get; None where the kubelet does not say.

        All at once: the call as a whole has to be answered within seconds.
        """
        asked = list(pods)
        return dict(zip(asked, await asyncio.gather(*map(self._held_by, asked)), strict=True))

    async def _held_by(self, pod: PodRef) -> frozenset[str] | None:
        listed = await self._listed(pod)
        held = listed.held.values() if listed else ()
        units = _NOTHING.union(*(ids for by_name in held for ids in by_name.values()))
        return units if listed else None

    async def _listed(self, pod: PodRef) -> ListedPod | None:
        """What Get says, of a pod that is gone that it holds nothing; None where it does not answer."""
        try:
            return await self._get_pod(pod) or ListedPod(pod)
        except KubeletError as error:
            _log.info("PodResources Get does not answer", pod=str(pod), error=str(error))
            return None

    def _told_by_checkpoint(self) -> Mapping[str, frozenset[str]]:
        """Pod uid -> the units that it holds."""
        found: dict[str, frozenset[str]] = {}
        for entry in self._entries():
            found[entry.pod_uid] = found.get(entry.pod_uid, _NOTHING).union(entry.ids)
        return found

    def _entries(self) -> Sequence[CheckpointEntry]:
        try:
            return self._snapshots.entries()
        except KubeletError as error:
            _log.info("the kubelet's checkpoint cannot be read", error=str(error))
            return ()


def _double_booked(pod: PodRef) -> DoesNotFitError:
    return DoesNotFitError(
        f"the kubelet gives units that pod {pod} still holds (kubernetes issue 137534); create the "
        f"pod again",
        reason="DoubleBooked",
    )
