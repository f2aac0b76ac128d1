"""What kube-scheduler does not say of pods whose claims it cannot allocate: which card comes nearest."""

import asyncio
from collections.abc import Callable

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.controller.leader import Leadership
from gpu_device_plugin.domain.fractions.node_fit import Fit, fit, node_rooms
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import resources_of
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import PodRequest
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.reflector import Reflection, Source, listen_by_key
from gpu_device_plugin.kubernetes.objects.events import EventNote
from gpu_device_plugin.kubernetes.objects.pod_spec import whole_request
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod

_UNALLOCATED = "cannot allocate all claims"
_MOST_DUE = 256
"""Pods that wait to be told; of more the oldest are left out until kube-scheduler speaks of them again."""
_PAUSE_SECONDS = 0.2
"""Between two pods: as fast as Events are written."""


class WaitingClaims:
    """One Event a pod and text; its count rises with each refusal of kube-scheduler's.

    A replica that does not lead keeps whom to tell: it may lead before kube-scheduler speaks again.
    """

    def __init__(
        self,
        api: ApiServer,
        ledger: ClusterLedger,
        post: Callable[[EventNote], None],
        leadership: Leadership,
    ) -> None:
        self._ledger, self._post, self._leadership = ledger, post, leadership
        self._due: dict[str, SurveyedPod] = {}
        self._wake = asyncio.Event()
        listener = listen_by_key(
            lambda pod: pod.metadata.uid, lambda: self._due, self._put, self._drop
        )
        source = Source("/api/v1/pods", "spec.nodeName=,status.phase=Pending")
        self._reflection = Reflection(api, source, SurveyedPod, listener)

    async def run(self) -> None:
        await asyncio.gather(self._reflection.run(), self._tell())

    def _put(self, pod: SurveyedPod) -> None:
        self._drop(pod.metadata.uid)
        if _UNALLOCATED in pod.condition("PodScheduled").message:
            if len(self._due) == _MOST_DUE:
                self._due.pop(next(iter(self._due)))
            self._due[pod.metadata.uid] = pod
            self._wake.set()

    def _drop(self, uid: str) -> None:
        self._due.pop(uid, None)

    def begin(self) -> None:
        """This replica is about to lead."""
        self._wake.set()

    async def _tell(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due and self._leadership.leads():
                pod = self._due.pop(next(iter(self._due)))
                try:
                    request = whole_request(pod)
                except ClusterError:
                    continue  # the agents refuse it with the reason
                if request.asks and (text := await self._text(request)):
                    self._post(EventNote(request.ref, "ClaimWaits", text, owner=request.owner))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _text(self, request: PodRequest) -> str:
        """What is free, or "" where some node has room by now."""
        emptiest: tuple[tuple[int, int], Room, str] | None = None
        nodes = 0
        for name, offer in list(self._ledger.offers.items()):
            await asyncio.sleep(0)  # kube-scheduler's calls go on, however many nodes there are
            if not (offer.is_by_claims and resources_of(offer.mode)):
                continue
            nodes += 1
            rooms = node_rooms(offer, self._ledger.holds(name))
            if isinstance(fit(offer, rooms, request, PlacementPolicy.BINPACK), Fit):
                return ""
            for room in rooms:
                free = (room.free_mem, room.free_core)
                if room.is_healthy and (emptiest is None or free > emptiest[0]):
                    emptiest = (free, room, name)
        if not nodes:
            return (
                "no node gives its cards by claims: label one gpu-device-plugin/allocation-api=dra"
            )
        told = ""
        if emptiest:
            (units, percent), room, name = emptiest
            whole = f"{units} of {count_noun(room.card.capacity(room.unit), 'unit')}"
            compute = f" and {percent} % of its compute" if room.least_core else ""
            told = f": the emptiest card, card {room.card.index} of node {name}, has {whole}{compute} free"
        every = (
            "the node that gives its cards by claims"
            if nodes == 1
            else f"any of the {nodes} nodes that give their cards by claims"
        )
        return f"no card of {every} has room for it{told}; `kubectl gpu why {request.ref}` shows each card"
